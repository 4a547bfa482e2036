"""What docs/deploy.md says: its commands exist, its numbers are those of the committed files."""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path

import pytest
import typer

from spcacw_flwr.flower.deploy import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deploy.md").read_text()
BLOCKS = "\n".join(re.findall(r"```bash\n(.*?)```", PAGE, re.S)).replace("\\\n", " ")
COMMANDS = [line for line in BLOCKS.splitlines() if line.startswith("spcacw deploy")]
RESULTS = ROOT / "experiments" / "results"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_is_one_that_there_is(command):
    words = shlex.split(command)[2:]
    parser = typer.main.get_command(app).commands[words[0]]
    parser.make_context(words[0], words[1:])


def test_all_commands_are_on_the_page():
    names = {f"spcacw deploy {name}" for name in typer.main.get_command(app).commands}
    assert all(name in PAGE for name in names)


def test_the_shown_run_is_the_committed_one():
    summary = json.loads((RESULTS / "deployment-summary.json").read_text())
    log = (ROOT / "docs" / "deploy" / "mnist-relabel.log").read_text()
    words = " ".join(PAGE.split())
    alone = summary["alone"]["last_accuracy"]
    assert f"at {summary['last_accuracy']:.2f} % (training alone: {alone:.2f} %)" in words
    assert f"{summary['last_accuracy']:.2f} │" in log
    assert f"{summary['rounds']:,} rounds in streams" in words
    assert f"{summary['seconds']:.0f} s of them" in words
    with (RESULTS / "mnist.csv").open(newline="") as file:
        runs = {(r["column"], r["method"]): r for r in csv.DictReader(file)}
    simulated = runs["mnist-relabel", "spcacw"]
    assert abs(float(simulated["last_accuracy"]) - summary["last_accuracy"]) < 0.011  # one image
    weights = json.loads(simulated["alpha"])
    for silo, weight in enumerate(summary["alpha"]):
        assert f"{weights[str(silo)]:.3f}" == f"{weight:.3f}"


def test_the_rates_are_the_committed_ones():
    def lines(name):
        with (ROOT / "benchmarks" / f"{name}.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    three = lines("stream")[0]
    assert three["silos"] == "3"
    assert float(three["rounds_per_second"]) > 100
    large = [float(row["method_ms"]) / float(row["round_ms"]) for row in lines("stream")[4:]]
    assert min(large) > 0.8  # the target moves bytes, and does not wait for silos
    seconds = [float(r["seconds"]) / float(r["rounds"]) for r in lines("deployment-in-memory")]
    assert "take {:.0f} and {:.0f} seconds a round".format(*seconds) in " ".join(PAGE.split())
