"""The real thing: Flower's Simulation Runtime on Ray, driven by its commands, on real digits."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.registry import METHODS
from spcacw_flwr.engine import checkpoint
from spcacw_flwr.engine.loop import History
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.flower import launch
from tests.watching import marked, wait_until

ROOT = Path(__file__).parents[1]
SPCACW = str(Path(sys.executable).parent / "spcacw")
EPOCHS, ROUNDS = 3, 21
EVERY = os.environ.get("SPCACW_METHODS") == "all"
"""Whether every method runs on Ray and on real nodes: a quarter and half an hour.

All of them run through Flower's messages in process in any case (tests/baselines/test_all.py).
"""
SOME = ["spcacw", "fedfomo"]
"""Which between them ask every kind of question."""
PLAIN = {"TERM": "dumb", "COLUMNS": "200", "NO_COLOR": "1"}


def spcacw(*arguments: str, cwd: Path, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SPCACW, *arguments], cwd=cwd, env=os.environ | PLAIN, capture_output=True, text=True,
        timeout=timeout, check=False,
    )  # fmt: skip


def succeeded(*arguments: str, cwd: Path) -> str:
    """What a command that succeeds says."""
    done = spcacw(*arguments, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def metrics(directory: Path) -> list[dict]:
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


@pytest.fixture(scope="module")
def bare():
    """The same training by the in-process engine."""
    torch.set_num_threads(1)
    return simulate(Config.from_keys(epochs=EPOCHS))


@pytest.fixture(scope="module")
def one_node_per_silo(tmp_path_factory):
    """A run by ``spcacw run``, one Flower node per silo."""
    home = tmp_path_factory.mktemp("run")
    said = succeeded("run", "--set", f"epochs={EPOCHS}", cwd=home)
    (directory,) = (home / "runs").iterdir()
    return directory, said


def assert_same_training(directory: Path, result: History) -> None:
    """Equal accuracies, α and weights within the tolerance of float32 sums in another order."""
    found = [line["accuracy"] for line in metrics(directory)]
    assert found == pytest.approx(result.accuracy, abs=0.3)
    alphas = pd.read_csv(directory / "alpha.csv")
    assert len(alphas) == len(result.alphas)
    if result.alpha is not None:
        np.testing.assert_allclose(alphas.iloc[-1, 1:].to_numpy(), result.alpha, atol=1e-4)
    model = load_file(directory / "model.safetensors")
    assert set(model) == set(result.parameters)
    for name, part in result.parameters.items():
        torch.testing.assert_close(model[name], part, rtol=1e-3, atol=1e-5)


def test_spcacw_run_trains_and_tells(one_node_per_silo, bare):
    directory, said = one_node_per_silo
    assert_same_training(directory, bare)
    summary = json.loads((directory / "summary.json").read_text())
    assert (summary["engine"], summary["rounds"], summary["epochs"]) == ("ray", ROUNDS, EPOCHS)
    assert summary["alone"]["last_accuracy"] == pytest.approx(bare.accuracy_alone[-1], abs=0.3)
    number = r"\d+\.\d+"
    line = rf"epoch 3/3 +accuracy {number} % \(alone {number} %\) +loss {number} +α +silo 0: 0\.\d+"
    assert re.search(line, said)
    assert re.search("metric .* last .* alone .* better by", said)
    assert str(directory) in said
    for name in ("accuracy.png", "alpha.png", "config.toml", "run.log", "report.html"):
        assert (directory / name).stat().st_size > 0


def assert_it_repeats(directory: Path, home: Path) -> Path:
    """The config that a run left gives the same run bit for bit; return where."""
    again, config = home / "again", str(directory / "config.toml")
    succeeded("run", "--config", config, "--output", str(again), cwd=home)
    assert metrics(again) == metrics(directory)
    for name in ("alpha.csv", "model.safetensors", "config.toml"):
        assert (again / name).read_bytes() == (directory / name).read_bytes()
    return again


@pytest.mark.slow
def test_the_config_that_a_run_leaves_repeats_it_bit_for_bit(one_node_per_silo, tmp_path):
    assert_it_repeats(one_node_per_silo[0], tmp_path)


def flwr_run(link: launch.Link, output: Path, keys: dict, nodes: int = 0, app: Path = ROOT) -> None:
    """``flwr run`` itself, of this checkout or of another app, until it has finished well.

    On so many simulated nodes, or on those that are connected.
    """
    flat = {"output": str(output)} | keys
    overrides = " ".join(f"{name}={json.dumps(value)}" for name, value in flat.items())
    simulated = f"num-supernodes={nodes} client-resources-num-cpus=1"
    said = link.cli(
        "run", str(app), launch.CONNECTION, "--run-config", overrides,
        *(["--federation-config", simulated] if nodes else []),
    )  # fmt: skip
    program = "flwr-simulation" if nodes else "flwr-serverapp"
    alive = partial(launch.named, program, link.home)
    launch.follow(link, str(said["run-id"]), output, lambda status: None, alive)


@pytest.fixture(scope="module")
def link(tmp_path_factory):
    """A SuperLink, for ``flwr run`` itself."""
    with launch.flower(tmp_path_factory.mktemp("flower") / "flower.log") as link:
        yield link


@pytest.mark.slow
def test_flwr_run_of_this_checkout_with_two_nodes(bare, link, tmp_path):
    """Flower builds the app from the checkout; two nodes share 7 silos."""
    flwr_run(link, tmp_path / "run", {"epochs": EPOCHS, "compare-alone": False}, nodes=2)
    assert_same_training(tmp_path / "run", bare)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["alone"] is None


@pytest.mark.slow
def test_methods_have_one_trajectory_on_ray_and_in_process(link, tmp_path):
    """With momentum, weight decay, clipping, L estimated and peers sampled (p = .6)."""
    torch.set_num_threads(1)
    methods = METHODS if EVERY else SOME
    # Two epochs: the last one's accuracy comes by another message than the first's.
    keys = {"participation": 0.6, "update-every": 5, "epochs": 2, "compare-alone": False}
    for method in methods:
        flwr_run(link, tmp_path / method, keys | {"method": method}, nodes=3)
        result = simulate(Config.from_flat(keys | {"method": method}))
        assert_same_training(tmp_path / method, result)


def test_spcacw_run_in_process(bare, tmp_path):
    keys = ("--engine", "in-process", "--set", f"epochs={EPOCHS}")
    said = succeeded("run", *keys, cwd=tmp_path)
    assert re.search("metric .* last .* alone .* better by", said)
    (directory,) = (tmp_path / "runs").iterdir()
    assert_same_training(directory, bare)
    again = assert_it_repeats(directory, tmp_path)
    assert json.loads((again / "summary.json").read_text())["engine"] == "in-process"


@pytest.mark.slow
def test_the_in_process_engine_is_refused_by_flwr_run(link, tmp_path):
    with pytest.raises(launch.Died):
        flwr_run(link, tmp_path / "run", {"engine": "in-process"}, nodes=2)
    assert [run["status"] for run in link.cli("ls")["runs"]].count("finished:failed") == 1


@pytest.mark.slow
def test_an_unknown_key_is_refused_by_flwr_run(link):
    with pytest.raises(launch.SpcacwError, match=r"'flwr run' failed: .*Invalid run"):
        link.cli("run", str(ROOT), "spcacw", "--run-config", "betta=0.1")


def test_a_mistake_ends_the_process_at_once(tmp_path):
    start = time.monotonic()
    done = spcacw("run", "--setting", "digit-relabel", cwd=tmp_path)
    assert time.monotonic() - start < 60
    assert done.returncode == 1
    assert done.stdout.startswith("spcacw: ")
    assert "did you mean digits-relabel" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert not (tmp_path / "runs").exists()


# Runs that are ended from outside: what they say, what is left, and how they go on.


def start_long_run(output: Path, epochs: int = 2000) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [SPCACW, "run", "--set", f"epochs={epochs}", "--output", str(output)],
        env=os.environ | PLAIN | {"SPCACW_RUN": str(output)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    wait_until(lambda: launch.read_status(output).get("epoch", 0) >= 2 or process.poll(), 120)
    assert process.poll() is None
    return process


def assert_it_ended(process: subprocess.Popen[str], output: Path, code: int) -> str:
    """The command has ended, all of its processes with it, and learning is on disk."""
    said, _ = process.communicate(timeout=180)
    assert process.returncode == code, said
    assert "Traceback" not in said
    assert f"What was learned so far is in {output}" in said
    assert len(metrics(output)) >= 2
    assert load_file(output / "model.safetensors")["3.bias"].shape == (10,)
    assert len(pd.read_csv(output / "alpha.csv")) >= 3
    wait_until(lambda: not marked("SPCACW_RUN", output), 30)
    return said


@pytest.mark.slow
def test_killing_flower_is_noticed(tmp_path):
    output, program = tmp_path / "run", "flwr-simulation"  # tests/deploy kills SuperLinks
    process = start_long_run(output)
    (victim,) = [p for p in marked("SPCACW_RUN", output) if program in " ".join(p.cmdline()[:2])]
    victim.send_signal(signal.SIGKILL)
    assert "before training was done" in assert_it_ended(process, output, 1)


@pytest.mark.slow
def test_terminating_ends_everything_and_keeps_what_was_learned(tmp_path):
    process = start_long_run(tmp_path / "run")
    process.send_signal(signal.SIGTERM)
    assert "stopped" in assert_it_ended(process, tmp_path / "run", 130)


@pytest.mark.slow
def test_an_interrupted_run_goes_on(tmp_path):
    """The ServerApp finishes its round and leaves a checkpoint; so the run is one of the other."""
    output, epochs = tmp_path / "run", 30
    process = start_long_run(output, epochs)
    process.send_signal(signal.SIGINT)
    said = assert_it_ended(process, output, 130)
    assert f"'spcacw run --resume {output}' goes on from the last checkpoint" in said
    sentence = launch.read_status(output)["error"]
    assert re.fullmatch(r"It was stopped after round \d+ of 210\.", sentence)
    (round_,) = re.findall(r"round (\d+)", sentence)
    assert checkpoint.load(output / "checkpoint")[0]["round"] == int(round_)
    succeeded("run", "--resume", str(output), cwd=tmp_path)
    torch.set_num_threads(1)
    assert_same_training(output, simulate(Config.from_keys(epochs=epochs)))
    assert [line["epoch"] for line in metrics(output)] == list(range(1, epochs + 1))
    wait_until(lambda: not marked("SPCACW_RUN", output), 30)
