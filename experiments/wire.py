"""What the representation of gradients on their way costs in accuracy, and saves in bytes.

    python -m spcacw_flwr.experiments.wire experiments/results/wire.csv --data-dir DIR

runs SP-CACW in process on each setting, with each value of the key ``wire`` and three seeds; the
numbers are those of every engine. Rows that are there already are not run again.
"""

from __future__ import annotations

import csv
from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.transport import WIRES
from spcacw_flwr.engine.simulate import simulate

COLUMNS = (
    "setting", "wire", "seed", "epochs", "best_accuracy", "last_accuracy", "floats", "bytes",
    "alpha_of_target",
)  # fmt: skip


def main(
    table: Annotated[Path, typer.Argument(help="CSV to write, or to go on with")],
    data_dir: Annotated[str, typer.Option(help="directory of the data sets")],
    settings: Annotated[str, typer.Option()] = "digits-relabel,mnist-relabel",
    seeds: Annotated[str, typer.Option()] = "0,1,2",
) -> None:
    """Fill the table with every setting × seed × wire."""
    if not table.exists():
        with table.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(COLUMNS)
    with table.open(newline="") as file:
        done = {tuple(row[:3]) for row in csv.reader(file)}
    for setting, seed, wire in product(settings.split(","), seeds.split(","), WIRES):
        if (setting, wire, seed) in done:
            continue
        result = simulate(Config.from_keys(
            setting=setting, wire=wire, seed=int(seed), data_dir=data_dir, compare_alone=False,
        ))  # fmt: skip
        last, accuracy, alpha = result.epochs[-1], result.accuracy, result.alpha
        assert alpha is not None
        with table.open("a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow([
                setting, wire, seed, len(accuracy), f"{max(accuracy):.3f}", f"{accuracy[-1]:.3f}",
                int(last["floats"]), int(last["bytes"]), f"{alpha[0]:.4f}",
            ])  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
