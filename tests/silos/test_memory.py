"""The engine keeps gradients and biases, and little else, of size M × d."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from pathlib import Path
import psutil
from spcacw_flwr.silos.setting import SiloData
from spcacw_flwr.partitions.relabel import DigitsRelabel
from spcacw_flwr.config.config import Config
from spcacw_flwr.engine.loop import play as play_round
from tests.conftest import make_method, make_pool

sketch, participation = int(sys.argv[1]), float(sys.argv[2])
config = Config.from_keys(cluster_sizes="80,70", samples_per_silo=2, hidden=6000, update_every=99,
                          sketch=sketch, participation=participation, smoothness=1.0)
pool = make_pool(config)
pool.data
before = psutil.Process().memory_info().rss
method = make_method(config, pool)
for t in (1, 2, 3):
    play_round(pool, method, t)
# ru_maxrss would not do: it starts at what the parent process held when it forked.
(line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
peak = 1024 * int(line.split()[1])
print((peak - before) / (4 * 150 * pool.layout.size))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sketch", "participation", "most"), [(0, 1.0, 2.6), (0, 0.5, 2.7), (500, 1.0, 1.6)]
)
def test_peak_of_memory_in_matrices_of_gradients(sketch, participation, most):
    """150 silos of d = 450,010: a matrix is 270 MB, beside which two samples a silo are nothing.

    Where not all are asked there are three: b̂, what is heard, and the last gradient of each.
    """
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(sketch), str(participation)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 0.9 < float(done.stdout) < most
