"""Runs on Ray that are ended from outside: what they say, what is left, and how they go on."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from spcacw_flwr.config.config import Config
from spcacw_flwr.engine import checkpoint
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.flower import launch
from tests.test_end_to_end import PLAIN, SPCACW, assert_same_training, metrics, spcacw
from tests.watching import marked, wait_until

pytestmark = pytest.mark.slow


def start_long_run(output: Path, epochs: int = 2000) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [SPCACW, "run", "--set", f"epochs={epochs}", "--output", str(output)],
        env=os.environ | PLAIN | {"SPCACW_RUN": str(output)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    wait_until(lambda: launch.read_status(output).get("epoch", 0) >= 2 or process.poll(), 120)
    assert process.poll() is None
    return process


def assert_nothing_is_left(output: Path) -> None:
    wait_until(lambda: not marked("SPCACW_RUN", output), 30)


def assert_it_ended(process: subprocess.Popen[str], output: Path, code: int) -> str:
    """The command has ended, all of its processes with it, and learning is on disk."""
    said, _ = process.communicate(timeout=180)
    assert process.returncode == code, said
    assert "Traceback" not in said
    assert f"What was learned so far is in {output}" in said
    assert len(metrics(output)) >= 2
    assert load_file(output / "model.safetensors")["3.bias"].shape == (10,)
    assert len(pd.read_csv(output / "alpha.csv")) >= 3
    assert_nothing_is_left(output)
    return said


def test_killing_flower_is_noticed(tmp_path):
    output, program = tmp_path / "run", "flwr-simulation"  # tests/deploy kills SuperLinks
    process = start_long_run(output)
    (victim,) = [p for p in marked("SPCACW_RUN", output) if program in " ".join(p.cmdline()[:2])]
    victim.send_signal(signal.SIGKILL)
    assert "before training was done" in assert_it_ended(process, output, 1)


def test_terminating_ends_everything_and_keeps_what_was_learned(tmp_path):
    process = start_long_run(tmp_path / "run")
    process.send_signal(signal.SIGTERM)
    assert "stopped" in assert_it_ended(process, tmp_path / "run", 130)


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
    done = spcacw("run", "--resume", str(output), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    torch.set_num_threads(1)
    assert_same_training(output, simulate(Config.from_keys(epochs=epochs)))
    assert [line["epoch"] for line in metrics(output)] == list(range(1, epochs + 1))
    assert_nothing_is_left(output)
