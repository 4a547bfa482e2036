"""The in-process engine runs where there is neither Flower nor Ray, nor a terminal library."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
hidden = ("flwr", "ray", "flwr_datasets", "typer", "rich", "tomli_w", "psutil", "pydantic",
           "jinja2", "spcacw_flwr.report.page", "grpc")
for package in hidden:
    sys.modules[package] = None  # importing it now fails
from spcacw_flwr.config.config import Config
from spcacw_flwr.config.registry import METHODS, method_class
from spcacw_flwr.engine.simulate import simulate
for name in METHODS:
    method_class(name)
result = simulate(Config.from_keys(epochs=1, output=sys.argv[1]))
print(len(result.accuracy), len(result.accuracy_alone), (result.directory / "alpha.png").is_file())
"""

ALPHA = """
import sys
for hidden in ("flwr", "ray", "flwr_datasets", "spcacw_flwr.partitions", "spcacw_flwr.silos",
               "spcacw_flwr.config"):
    sys.modules[hidden] = None
import spcacw_flwr.alpha
"""

HELP = """
import sys
for hidden in ("torch", "numpy", "matplotlib", "flwr"):
    sys.modules[hidden] = None
from spcacw_flwr.cli import app
app(sys.argv[1:])
"""


def python(program: str, *arguments: str) -> str:
    command = [sys.executable, "-W", "ignore", "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_engine_runs_with_pytorch_and_the_scientific_stack_alone(tmp_path):
    assert python(PROGRAM, str(tmp_path / "run")) == "1 1 True"


def test_the_maths_of_alpha_imports_nothing_of_the_project():
    python(ALPHA)


@pytest.mark.parametrize("command", [[], ["run"], ["report"]])
def test_help_does_not_wait_for_pytorch(command):
    assert "Usage: -c" in python(HELP, *command, "--help")


def test_importing_changes_no_environment_variable():
    """But for what other libraries do."""
    python("""
import os
before = dict(os.environ)
import spcacw_flwr
from spcacw_flwr import SPCACW, Config, simulate
import spcacw_flwr.cli, spcacw_flwr.flower.client_app, spcacw_flwr.flower.server_app
theirs = {"KMP_DUPLICATE_LIB_OK", "GRPC_VERBOSITY"}
assert {k for k, v in os.environ.items() if before.get(k) != v} <= theirs
""")
