"""A federation where nothing but its own programs can be reached calls nobody else."""

import os
import shutil
import subprocess
import sys

import pytest

from spcacw_flwr.flower.deploy import CLOSED
from spcacw_flwr.flower.processes import PROGRAMS

pytestmark = pytest.mark.slow

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
    command = [PROGRAMS / "spcacw", "deploy", "demo", "fed", *given]
    done = subprocess.run(
        [*ALONE, "sh", "-c", SCRIPT, "sh", *command], cwd=tmp_path, capture_output=True, text=True,
        timeout=400, env=os.environ | {"PYTHON": sys.executable, "COLUMNS": "200"},
    )  # fmt: skip
    assert (tmp_path / "fed" / "results" / "summary.json").is_file(), done.stdout + done.stderr
    before, after, control = [line for line in done.stdout.splitlines() if line[:5] == "sent "]
    assert (before, after) == ("sent 0", "sent 0")
    assert control != after
    assert CLOSED in done.stdout
