"""``spcacw deploy demo`` as a person uses it: Ctrl-C, the same command again, and the report.

And where nothing but its own programs can be reached it calls nobody else.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file

from spcacw_flwr.flower import launch
from spcacw_flwr.flower.deploy import CLOSED
from tests.test_end_to_end import PLAIN, SPCACW
from tests.watching import marked, wait_until

pytestmark = pytest.mark.slow
SILOS = 2
KEYS = {
    "cluster-sizes": "1,1", "samples-per-silo": 64, "epochs": 200, "compare-alone": "false",
    "checkpoint-every": 4,
}  # fmt: skip


def demo(root: Path, **more: int) -> subprocess.Popen[str]:
    keys = (KEYS | more).items()
    options = [word for name, value in keys for word in ("--set", f"{name}={value}")]
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


def test_a_second_demo_leaves_the_first_alone_and_goes_on_when_that_was_killed(tmp_path):
    root, long = tmp_path / "federation", {"epochs": 100_000}
    first, results = demo(root, **long), root / "results"

    def wait_for_epochs(more: int) -> dict:
        goal = launch.read_status(results).get("epoch", 0) + more
        wait_until(lambda: launch.read_status(results).get("epoch", 0) >= goal, 180)
        return launch.read_status(results)

    try:
        wait_for_epochs(3)
        second = demo(root, **long)
        said, _ = second.communicate(timeout=60)
        assert second.returncode == 1, said
        assert f"Another command runs the host in {root / 'server'}" in " ".join(said.split())
        before = wait_for_epochs(3)
        assert first.poll() is None
        first.kill()
        first.wait()
        assert left_of(root)
        again = demo(root, **long)
        run = before["flower_run"]
        wait_until(lambda: launch.read_status(results).get("flower_run", run) != run, 180)
        wait_for_epochs(3)
        again.send_signal(signal.SIGINT)
        said, _ = again.communicate(timeout=90)
        assert again.returncode == 130, said
        wait_until(lambda: not left_of(root), 10)
        lines = (results / "metrics.jsonl").read_text().splitlines()
        epochs = [json.loads(line)["epoch"] for line in lines]
        assert epochs == [*range(1, len(epochs) + 1)]
        assert len(epochs) > before["epoch"] > 5
    finally:
        for one in left_of(root):
            one.kill()


ALONE = ["unshare", "--map-root-user", "--net", "--mount"]
"""A network of its own, with a loopback interface and whatever it makes."""
SCRIPT = """
set -e
ip link set lo up
ip link add away type veth peer name far
for one in away far; do
    echo 1 > /proc/sys/net/ipv6/conf/$one/disable_ipv6
    ip link set $one up
done
ip addr add 10.9.9.1/24 dev away
ip neigh add 10.9.9.9 lladdr 02:00:00:00:00:01 dev away
ip route add default via 10.9.9.9
echo nameserver 10.9.9.9 > resolv.conf
mount --bind resolv.conf /etc/resolv.conf
sent() { awk '/away:/ {print "sent " $11}' /proc/net/dev; }
sent
"$@"
sent
"$PYTHON" -c "import socket; socket.create_connection(('example.org', 80), 2)" 2> /dev/null || sent
"""
"""All that does not stay on the machine leaves by ``away``, where it is counted; names too."""


def can_be_alone() -> bool:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    make = "ip link add away type veth peer name far && mount --bind /etc/hosts /etc/hosts"
    return subprocess.run([*ALONE, "sh", "-c", make], capture_output=True).returncode == 0


def test_a_federation_calls_nobody_but_itself(tmp_path):
    """Nor does it look a name up. At last somebody else calls, and is counted."""
    if not can_be_alone():
        pytest.skip("no network of one's own can be made here")
    keys = ("epochs=2", "cluster-sizes='2,1'", "samples-per-silo=40")
    given = [word for key in keys for word in ("--set", key)]
    command = [SPCACW, "deploy", "demo", "fed", *given]
    done = subprocess.run(
        [*ALONE, "sh", "-c", SCRIPT, "sh", *command], cwd=tmp_path, capture_output=True, text=True,
        timeout=400, env=os.environ | {"PYTHON": sys.executable, "COLUMNS": "200"},
    )  # fmt: skip
    assert (tmp_path / "fed" / "results" / "summary.json").is_file(), done.stdout + done.stderr
    before, after, control = [line for line in done.stdout.splitlines() if line[:5] == "sent "]
    assert (before, after) == ("sent 0", "sent 0")
    assert control != after
    assert CLOSED in done.stdout
