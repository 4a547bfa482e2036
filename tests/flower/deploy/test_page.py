"""What docs/deploy.md says: its commands exist, its numbers are those of the committed files."""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path

import pytest
import typer

from spcacw_flwr.flower.deploy.cli import app

ROOT = Path(__file__).parents[3]
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
    rounded = [f"{weight:.3f}" for weight in summary["alpha"]]
    row = next(line for line in PAGE.splitlines() if line.startswith("| real silos"))
    alone = next(line for line in PAGE.splitlines() if line.startswith("| training alone"))
    for name in ("best_accuracy", "last_accuracy"):
        assert f" {summary[name]:.2f} " in row
        assert f" {summary['alone'][name]:.2f} " in alone
        assert f"{summary[name]:.2f} │" in log
    assert f" {', '.join(rounded[:3])} | {', '.join(rounded[3:])} |" in row
    with (RESULTS / "mnist.csv").open(newline="") as file:
        runs = {(r["column"], r["method"]): r for r in csv.DictReader(file)}
    simulated = runs["mnist-relabel", "spcacw"]
    line = next(x for x in PAGE.splitlines() if x.startswith("| simulation"))
    for name in ("best_accuracy", "last_accuracy"):
        assert f" {float(simulated[name]):.2f} " in line
        assert abs(float(simulated[name]) - summary[name]) < 0.1
    assert f"{summary['rounds']:,} rounds" in PAGE
    assert f"{summary['seconds']:.0f} s of them" in PAGE


def test_the_rates_are_the_committed_ones():
    table = {}
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0].isdigit() and len(cells) == 6:
            table[cells[0], cells[1].replace(",", "")] = cells[2:]
    with (ROOT / "benchmarks" / "stream.csv").open(newline="") as file:
        streams = {(row["silos"], row["parameters"]): row for row in csv.DictReader(file)}
    assert set(table) == set(streams)
    for place, row in streams.items():
        rate, load = float(row["rounds_per_second"]), float(row["load"])
        assert table[place][:2] == [f"{rate:.1f}", f"{load:.1f}"]
    for name, remark in ("deployment", ""), ("deployment-in-memory", " (in memory)"):
        with (ROOT / "benchmarks" / f"{name}.csv").open(newline="") as file:
            for row in csv.DictReader(file):
                seconds = f"{float(row['seconds']) / float(row['rounds']):.1f}{remark}"
                assert table[row["silos"], row["parameters"]][2:] == [seconds, row["load"]]
