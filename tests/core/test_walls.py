"""The core runs where there is neither Flower nor Ray."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
for hidden in ("flwr", "ray", "flwr_datasets"):
    sys.modules[hidden] = None  # importing it now fails
import torch
from spcacw_flwr.core.config import Config
from spcacw_flwr.core.loop import train_alone
from spcacw_flwr.core.silo import SiloPool
from spcacw_flwr.core.registry import METHODS, method_class
import spcacw_flwr.alpha, spcacw_flwr.core.artefacts
for name in METHODS:
    method_class(name)
config = Config.from_keys(epochs=1)
print(len(train_alone(config, SiloPool(config, config.checked_setting(), [0]))))
"""

ALPHA = """
import sys
for hidden in ("flwr", "ray", "flwr_datasets", "partitions", "baselines", "spcacw_flwr.core"):
    sys.modules[hidden] = None
import spcacw_flwr.alpha
"""


def python(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_core_methods_and_artefacts_import_without_flower():
    assert python(PROGRAM) == "1"


def test_the_maths_of_alpha_imports_nothing_of_the_project():
    python(ALPHA)
