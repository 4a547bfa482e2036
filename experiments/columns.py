"""Run methods on settings through the app, one ``spcacw run`` each, and table the results.

    python -m spcacw_flwr.experiments.columns results.csv --settings mnist-relabel,mnist-rotate \\
        --methods spcacw,local --seeds 0 --data-dir DIR --set nodes=2 --tuned experiments/tuned

Each row of the table carries the command that made it. Rows that are there already are not run
again, so an interrupted table goes on where it stopped. With ``--tuned`` each method has the keys
that ``spcacw tune`` chose for it.
"""

from __future__ import annotations

import csv
import json
import shlex
import subprocess
import sys
import tempfile
import tomllib
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer

from spcacw_flwr.config.config import flattened

COLUMNS = (
    "column", "method", "seed", "epochs", "best_accuracy", "last_accuracy", "target_gradients",
    "floats", "seconds", "alpha", "command",
)  # fmt: skip


def run(command: list[str], data_dir: Path | None) -> dict[str, Any]:
    """Run one command and return its summary; raise CalledProcessError if it failed."""
    with tempfile.TemporaryDirectory(prefix="spcacw-column-") as name:
        output = Path(name) / "run"
        where = ["--data-dir", str(data_dir.resolve())] if data_dir else []
        program = str(Path(sys.executable).parent / command[0])
        subprocess.run([program, *command[1:], *where, "--output", str(output)], check=True)
        return dict(json.loads((output / "summary.json").read_text()))


def row_of(summary: dict[str, Any], command: list[str]) -> dict[str, Any]:
    """Return a row of the table."""
    alpha = {i: round(a, 4) for i, a in enumerate(summary["alpha"] or []) if a > 0}
    return {
        "column": summary["setting"], "method": summary["method"], "seed": summary["seed"],
        "epochs": summary["epochs"], "best_accuracy": round(summary["best_accuracy"], 3),
        "last_accuracy": round(summary["last_accuracy"], 3),
        "target_gradients": summary["target_gradients"], "floats": summary["floats"],
        "seconds": summary["seconds"],
        "alpha": json.dumps(alpha), "command": shlex.join(command),
    }  # fmt: skip


def chosen(directory: Path, setting: str, method: str) -> list[str]:
    """Return the assignments that tuning chose for a method on a setting."""
    path = directory / f"{setting}.toml"
    table = tomllib.loads(path.read_text())
    if method not in table:
        raise typer.BadParameter(f"{path} has no choice for {method}: tune it first.")
    return [f"{name}={json.dumps(value)}" for name, value in flattened(table[method]).items()]


def main(
    table: Annotated[Path, typer.Argument(help="CSV to write, or to go on with")],
    settings: Annotated[str, typer.Option(help="comma-separated settings")],
    methods: Annotated[str, typer.Option(help="comma-separated methods")],
    seeds: Annotated[str, typer.Option(help="comma-separated seeds")] = "0",
    data_dir: Annotated[Path | None, typer.Option(help="directory of the data sets")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="key=value")] = None,
    tuned: Annotated[Path | None, typer.Option(help="directory of the tuned choices")] = None,
) -> None:
    """Fill the table with every setting × method × seed."""
    if not table.exists():
        table.parent.mkdir(parents=True, exist_ok=True)
        with table.open("w", newline="") as file:
            csv.DictWriter(file, COLUMNS, lineterminator="\n").writeheader()
    names = [n.split(",") for n in (settings, methods, seeds)]
    for setting, method, seed in product(*names):
        command = ["spcacw", "run", "--setting", setting, "--method", method, "--seed", seed]
        choice = chosen(tuned, setting, method) if tuned else []
        for assignment in ("compare-alone=false", *choice, *(set_ or [])):
            command += ["--set", assignment]
        with table.open(newline="") as file:
            done = {row["command"] for row in csv.DictReader(file)}
        if shlex.join(command) not in done:
            try:
                row = row_of(run(command, data_dir), command)
            except subprocess.CalledProcessError as error:
                typer.echo(f"'{shlex.join(command)}' failed (exit {error.returncode}).", err=True)
                raise typer.Exit(1) from None
            with table.open("a", newline="") as file:
                csv.DictWriter(file, COLUMNS, lineterminator="\n").writerow(row)


if __name__ == "__main__":
    typer.run(main)
