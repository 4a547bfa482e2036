"""Sweeps as tasks of a Ray cluster: two raylets on loopback, of which one is killed."""

import shutil
import tempfile
import time
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster as Raylets
from rich.console import Console

from spcacw_flwr.config.config import Config
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.experiments.conf import Job
from spcacw_flwr.experiments.sweep import Where
from tests.conftest import one_sentence

pytestmark = pytest.mark.slow
KEYS = {"setting": "digits-relabel", "epochs": 2, "engine": "in-process", "compare-alone": False}


@pytest.fixture
def raylets(monkeypatch):
    """A head without cores, and two nodes with one each."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    place = tempfile.mkdtemp(dir="/tmp")  # short, for a socket's name; and not Ray's, where other
    args = {"num_cpus": 0, "temp_dir": place}  # programs would find it and join it
    monkeypatch.setenv("RAY_TMPDIR", place)  # where the head's address goes
    (Path(place) / "ray").mkdir()
    head = Raylets(initialize_head=True, head_node_args=args)
    yield head, [head.add_node(num_cpus=1) for _ in range(2)]
    ray.shutdown()
    head.shutdown()
    shutil.rmtree(place, ignore_errors=True)


def noted(keys):
    """Say on disk when a run begins, and when it has ended."""
    path = Path(keys["file"])
    with path.open("a") as file:
        file.write(f"begin {keys['k']}\n")
    time.sleep(1)
    with path.open("a") as file:
        file.write(f"end {keys['k']}\n")
    return keys["k"] ** 2


def test_what_a_lost_node_was_at_is_made_again_and_nothing_else_twice(raylets, tmp_path):
    head, nodes = raylets
    todo = [Job("c", "r", {"k": k, "file": str(tmp_path / "lines")}) for k in range(8)]
    where = Where(tmp_path, ray=head.address)
    assert len(where.places()) == 2
    made = where.short(noted, todo, Console(quiet=True))
    found = [next(made), next(made)]
    head.remove_node(nodes[1], allow_graceful=False)
    found += made
    assert {job.keys["k"]: square for job, square in found} == {k: k**2 for k in range(8)}
    lines = (tmp_path / "lines").read_text().split("\n")
    ended, begun = ([lines.count(f"{word} {k}") for k in range(8)] for word in ("end", "begin"))
    assert 8 <= sum(begun) <= 9  # it was at one, or at none
    assert all(1 <= end <= begin for end, begin in zip(ended, begun, strict=True))
    # Twice only where it was lost between the end of a job and the word of it.


def test_runs_come_home_as_they_are_made_here(raylets, tmp_path):
    wrong = {**KEYS, "seed": 0, "guard": 999}  # more than there are samples
    jobs = [Job("c", "r", {**KEYS, "seed": seed}) for seed in (0, 1)] + [Job("c", "r", wrong)]
    runs = Where(tmp_path, ray=raylets[0].address).run(jobs, Console(quiet=True))
    for run in runs[:2]:
        here = simulate(Config.from_flat(run.job.keys))
        assert run.summary()["last_accuracy"] == here.accuracy[-1]
        assert (run.directory / "model.safetensors").is_file()
    assert runs[2].state == "failed"
    assert runs[2].status()["error"] == runs[2].error


def test_no_cluster_is_a_sentence(tmp_path):
    with one_sentence("There is no Ray cluster at '127.0.0.1:1'"):
        Where(tmp_path, ray="127.0.0.1:1").places()
