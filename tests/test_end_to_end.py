"""The real thing: Flower's Simulation Runtime on Ray, driven by its commands, on real digits."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
import torch
from safetensors.torch import load_file

from spcacw_flwr import launch
from spcacw_flwr.core.config import Config
from spcacw_flwr.core.loop import answer, train_alone
from tests.conftest import make_method, make_pool

ROOT = Path(__file__).parents[1]
SPCACW = str(Path(sys.executable).parent / "spcacw")
EPOCHS, ROUNDS = 3, 21
PLAIN = {"TERM": "dumb", "COLUMNS": "200", "NO_COLOR": "1"}


def spcacw(*arguments: str, cwd: Path, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SPCACW, *arguments], cwd=cwd, env=os.environ | PLAIN, capture_output=True, text=True,
        timeout=timeout, check=False,
    )  # fmt: skip


def metrics(directory: Path) -> list[dict]:
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


@pytest.fixture(scope="module")
def bare():
    """The same training without Flower: the accuracies, and the method at the end."""
    config = Config.from_keys(epochs=EPOCHS)
    pool = make_pool(config)
    method, accuracies = make_method(config, pool), []
    for t in range(1, ROUNDS + 1):
        request = method.request(t)
        method.fold(request, answer(pool, method, request))
        if t % 7 == 0:
            accuracies.append(pool.evaluate(method.parameters, 0)[0])
    return accuracies, method, train_alone(config, pool)


@pytest.fixture(scope="module")
def one_node_per_silo(tmp_path_factory):
    """A run by ``spcacw run``, one Flower node per silo."""
    home = tmp_path_factory.mktemp("run")
    done = spcacw("run", "--set", f"epochs={EPOCHS}", cwd=home)
    assert done.returncode == 0, done.stdout + done.stderr
    (directory,) = (home / "runs").iterdir()
    return directory, done.stdout


def assert_same_training(directory: Path, bare) -> None:
    """Equal accuracies, α and weights within the tolerance of float32 sums in another order."""
    accuracies, method, _ = bare
    assert [line["accuracy"] for line in metrics(directory)] == pytest.approx(accuracies, abs=0.3)
    alpha = pd.read_csv(directory / "alpha.csv").iloc[-1, 1:].to_numpy()
    np.testing.assert_allclose(alpha, method.alpha, atol=1e-4)
    model = load_file(directory / "model.safetensors")
    vector = torch.cat([model[n].flatten() for n in ("1.weight", "1.bias", "3.weight", "3.bias")])
    torch.testing.assert_close(vector, method.parameters, rtol=1e-3, atol=1e-5)


def test_spcacw_run_trains_and_tells(one_node_per_silo, bare):
    directory, said = one_node_per_silo
    assert_same_training(directory, bare)
    summary = json.loads((directory / "summary.json").read_text())
    assert (summary["engine"], summary["rounds"], summary["epochs"]) == ("ray", ROUNDS, EPOCHS)
    assert summary["alone"]["last_accuracy"] == pytest.approx(bare[2][-1], abs=0.3)
    assert re.search(r"epoch 3/3 +accuracy \d+\.\d+ % +loss \d+\.\d+ +α +silo 0: 0\.\d+", said)
    assert "alone (α = e₀)" in said
    assert str(directory) in said
    for name in ("accuracy.png", "alpha.png", "config.toml", "run.log"):
        assert (directory / name).stat().st_size > 0


def test_the_config_that_a_run_leaves_repeats_it_bit_for_bit(one_node_per_silo, tmp_path):
    directory, _ = one_node_per_silo
    again = tmp_path / "again"
    done = spcacw(
        "run", "--config", str(directory / "config.toml"), "--output", str(again), cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert metrics(again) == metrics(directory)
    for name in ("alpha.csv", "model.safetensors", "config.toml"):
        assert (again / name).read_bytes() == (directory / name).read_bytes()


def test_flwr_run_of_this_checkout_with_two_nodes(bare, tmp_path):
    """``flwr run .`` itself: Flower builds the app from the checkout; two nodes share 7 silos."""
    output = tmp_path / "run"
    overrides = f'epochs={EPOCHS} output="{output}" compare-alone=false'
    with launch.flower(tmp_path / "flower.log") as link:
        said = link.cli(
            "run", str(ROOT), "spcacw", "--run-config", overrides,
            "--federation-config", "num-supernodes=2 client-resources-num-cpus=1",
        )  # fmt: skip
        deadline = time.monotonic() + 240
        while not (word := link.status(said["run-id"])).startswith("finished"):
            assert time.monotonic() < deadline
            time.sleep(1)
    assert word == "finished:completed"
    assert_same_training(output, bare)
    assert json.loads((output / "summary.json").read_text())["alone"] is None


def test_an_unknown_key_is_refused_by_flwr_run(tmp_path):
    with (
        launch.flower(tmp_path / "flower.log") as link,
        pytest.raises(launch.SpcacwError, match=r"'flwr run' failed: .*Invalid run"),
    ):
        link.cli("run", str(ROOT), "spcacw", "--run-config", "betta=0.1")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--setting", "digit-relabel"], ["digit-relabel", "did you mean digits-relabel"]),
        (["--method", "spcawc"], ["method = 'spcawc'", "local, fedavg, oracle"]),
        (["--set", "betta=1"], ["'betta'", "did you mean beta"]),
        (["--set", "beta=1.5"], ["beta = 1.5", "(0, 1]"]),
        (["--set", "beta"], ["key=value"]),
        (["--set", "target=7"], ["target = 7", "0…6"]),
        (["--engine", "in-process"], ["in-process", "use 'ray'"]),
        (["--config", "none.toml"], ["none.toml"]),
        (["--setting", "mnist-relabel", "--data-dir", "nothing"], ["nothing", "data-dir"]),
        (["--output", "file/run"], ["file/run", "cannot be written"]),
    ],
)
def test_a_mistake_is_one_sentence_before_anything_starts(arguments, words, tmp_path):
    (tmp_path / "file").write_text("")
    start = time.monotonic()
    done = spcacw("run", *arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    assert said.startswith("spcacw:")
    for word in words:
        assert word in said
    assert time.monotonic() - start < 60
    assert not (tmp_path / "runs").exists()


def processes_of(directory: Path) -> list[psutil.Process]:
    """Processes whose Flower home belongs to the run that logs into ``directory``."""
    found = []
    for process in psutil.process_iter():
        try:
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get("SPCACW_RUN") == str(directory):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def start_long_run(output: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [SPCACW, "run", "--set", "epochs=2000", "--output", str(output)],
        env=os.environ | PLAIN | {"SPCACW_RUN": str(output)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while launch.read_status(output).get("epoch", 0) < 2:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.2)
    return process


def assert_nothing_is_left(output: Path) -> None:
    deadline = time.monotonic() + 30
    while processes_of(output):
        assert time.monotonic() < deadline, processes_of(output)
        time.sleep(0.5)


def assert_learning_is_on_disk(output: Path) -> None:
    assert len(metrics(output)) >= 2
    assert load_file(output / "model.safetensors")["3.bias"].shape == (10,)
    assert len(pd.read_csv(output / "alpha.csv")) >= 3


@pytest.mark.parametrize("program", ["flwr-simulation", "flower-superlink"])
def test_killing_flower_is_noticed(program, tmp_path):
    output = tmp_path / "run"
    process = start_long_run(output)
    (victim,) = [p for p in processes_of(output) if program in " ".join(p.cmdline()[:2])]
    victim.send_signal(signal.SIGKILL)
    said, _ = process.communicate(timeout=180)
    assert process.returncode == 1
    assert "before training was done" in said
    assert f"What was learned so far is in {output}" in said
    assert "Traceback" not in said
    assert_learning_is_on_disk(output)
    assert_nothing_is_left(output)


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_ends_everything_and_keeps_what_was_learned(ending, tmp_path):
    output = tmp_path / "run"
    process = start_long_run(output)
    process.send_signal(ending)
    said, _ = process.communicate(timeout=90)
    assert process.returncode == 130
    assert "stopped" in said
    assert f"What was learned so far is in {output}" in said
    assert_learning_is_on_disk(output)
    assert_nothing_is_left(output)
