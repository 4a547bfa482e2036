"""Real nodes: a SuperLink, and SuperNodes that each hold some silos, as separate processes.

Flower takes seconds for each message here, so that by default only one method runs, which asks for
gradients and losses at models of the silos' own; ``SPCACW_METHODS=all`` runs every one, and streams
without keys (``tests/flower/test_federation.py`` has them with keys).
"""

import os

import pytest
import torch

from benchmarks.separate import certificate
from spcacw_flwr.config.config import Config
from spcacw_flwr.config.registry import METHODS
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.flower import launch, processes
from tests.test_end_to_end import EVERY, assert_same_training, flwr_run

pytestmark = pytest.mark.slow

HELD = "0,1,2,3", "4,5,6"
SMALL = {"samples-per-silo": 32, "epochs": 1, "compare-alone": False}
"""One round."""


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    logs = tmp_path_factory.mktemp("deployment")
    certificate(logs)
    os.environ["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "0.05"
    with launch.flower(logs / "superlink.log", simulation=False) as link:
        nodes = []
        for silos in HELD:
            command = [
                str(processes.PROGRAMS / "flower-supernode"), "--insecure", "--superlink",
                link.address, "--port", str(processes.free_port()), "--node-config",
                f'silos="{silos}" root-certificates="{logs}/certificate.pem"',
            ]  # fmt: skip
            node = processes.Program(command, link.home, logs / f"node-{silos[0]}.log")
            nodes.append(node.start())
        yield link, logs
    for node in nodes:
        node.process.wait(timeout=30)


@pytest.mark.parametrize("method", METHODS if EVERY else ["fedfomo"])
def test_real_nodes_follow_the_in_process_trajectory(federation, method, tmp_path):
    torch.set_num_threads(1)
    flwr_run(federation[0], tmp_path / "run", SMALL | {"method": method})
    result = simulate(Config.from_flat(SMALL | {"method": method}))
    assert_same_training(tmp_path / "run", result)


@pytest.mark.skipif(not EVERY, reason="SPCACW_METHODS=all runs it; tests/flower has streams too")
def test_real_nodes_answer_in_streams(federation, tmp_path):
    """One message to each node, and 70 rounds in seconds, over TLS."""
    torch.set_num_threads(1)
    link, certificates = federation
    keys = {
        "exchange": "stream", "epochs": 10, "compare-alone": False, "participation": 0.6,
        "stream-certificate": str(certificates / "certificate.pem"),
        "stream-key": str(certificates / "key.pem"),
    }  # fmt: skip
    flwr_run(link, tmp_path / "run", keys)
    assert_same_training(tmp_path / "run", simulate(Config.from_flat(keys)))
