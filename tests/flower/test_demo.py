"""``spcacw deploy demo`` as a person uses it: Ctrl-C, the same command again, and the report."""

import json
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file

from spcacw_flwr.flower import launch
from tests.test_end_to_end import PLAIN, SPCACW
from tests.watching import marked, wait_until

pytestmark = pytest.mark.slow
SILOS = 2
KEYS = {
    "cluster-sizes": "1,1", "samples-per-silo": 64, "epochs": 200, "compare-alone": "false",
    "checkpoint-every": 4,
}  # fmt: skip


def demo(root: Path) -> subprocess.Popen[str]:
    options = [word for name, value in KEYS.items() for word in ("--set", f"{name}={value}")]
    return subprocess.Popen(
        [SPCACW, "deploy", "demo", str(root), *options], cwd=root.parent, text=True,
        env=os.environ | PLAIN | {"SPCACW_DEMO": str(root)}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip


def left_of(root: Path) -> list[psutil.Process]:
    """The living processes that a demo has started."""
    return marked("SPCACW_DEMO", root)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A demo that was ended by Ctrl-C in its training, and what it said."""
    root = tmp_path_factory.mktemp("demo") / "federation"
    process = demo(root)
    results = root / "results"
    try:
        wait_until(lambda: launch.read_status(results).get("epoch", 0) >= 3, 180)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=90)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(timeout=60)
    return root, process.returncode, said


def test_ctrl_c_ends_every_process_and_leaves_a_checkpoint(interrupted):
    root, code, said = interrupted
    assert code == 130, said
    assert "stopped" in said
    assert f"'spcacw deploy demo {root}' goes on from the last checkpoint." in said
    assert "Traceback" not in said
    wait_until(lambda: not left_of(root), 10)
    assert (root / "results" / "checkpoint" / "checkpoint.json").is_file()


def test_each_silo_has_its_own_data_and_key_and_nothing_else(interrupted):
    root, _, said = interrupted
    for silo in range(SILOS):
        place = root / f"silo-{silo}"
        assert [path.name for path in (place / "data").iterdir()] == [f"silo-{silo}.safetensors"]
        tested = "test.x" in load_file(place / "data" / f"silo-{silo}.safetensors")
        assert tested == (silo == 0)
        assert f"FLWR_HOME={place / 'flower'}" in said
        assert str(place) not in (root / f"silo-{1 - silo}" / "node.toml").read_text()
    assert not list((root / "server").rglob("*.safetensors"))
    # Every command is shown: SuperLink and SuperExec, a registration and a node of each silo.
    assert sum(line.startswith("$ FLWR_HOME=") for line in said.splitlines()) == 2 + 2 * SILOS


def test_the_same_command_goes_on_to_the_report(interrupted):
    root, _, _ = interrupted
    before = launch.read_status(root / "results")["round"]
    process = demo(root)
    said, _ = process.communicate(timeout=240)
    assert process.returncode == 0, said
    wait_until(lambda: not left_of(root), 10)
    summary = json.loads((root / "results" / "summary.json").read_text())
    assert (summary["engine"], summary["epochs"], summary["rounds"]) == ("deployment", 200, 400)
    assert 6 <= before < 400
    lines = (root / "results" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == list(range(1, 201))
    assert "final α of 2 silos" in said
    again = demo(root)
    said, _ = again.communicate(timeout=60)
    assert again.returncode == 1
    assert "has finished: name another directory" in " ".join(said.split())
