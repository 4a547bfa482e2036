"""Run every study: ``python -m spcacw_flwr.experiments.theory OUT_DIR PICTURE_DIR``."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import click
import numpy as np
import pandas as pd
import typer

from ..pages import NONE, table
from . import claims, pictures, rates
from .trials import Cell, Trial, measured, spread


def training(study: Callable[[bool], list[Cell]], quick: bool, workers: int) -> pd.DataFrame:
    """Return the means of a study's runs."""
    cells = study(quick)
    return measured(cells, spread(Trial.run, [cell.trial for cell in cells], workers))


def estimates(quick: bool, workers: int) -> pd.DataFrame:
    """Return the traces of b̂."""
    return rates.traced(rates.bias_cells(quick, (0.0, *rates.TRACED)), workers)


def participation(quick: bool, workers: int) -> pd.DataFrame:
    """Return mean and variance of G̃(α)."""
    simulated = partial(rates.simulated, draws=200) if quick else rates.simulated
    return pd.DataFrame(spread(simulated, list(rates.CHANCES), workers))


STUDIES: dict[str, Callable[[bool, int], pd.DataFrame]] = {
    "quadratics-rounds": partial(training, rates.quadratics_T),
    "quadratics-helpers": partial(training, rates.quadratics_n),
    "logistic-rounds": partial(training, rates.logistic_T),
    "separation": partial(training, rates.separations),
    "moving-bias": partial(training, rates.bias_training),
    "bias-estimates": estimates,
    "schedule": partial(training, rates.schedules),
    "participation": participation,
    "participation-training": partial(training, rates.participation_training),
    "bounds": claims.bounds,
    "unequal-noise": claims.noises,
    "regularisers": claims.regularisers,
    "bounded-bias": claims.bounded,
    "public-data": claims.public,
}


def tabled(name: str, output: Path, quick: bool, workers: int) -> pd.DataFrame:
    """Return a study's table; run it and write the table if it is not there."""
    path, began = output / f"{name}.csv", time.perf_counter()
    if not path.exists():
        STUDIES[name](quick, workers).to_csv(path, index=False, float_format="%.5g")
        typer.echo(f"{name}: {time.perf_counter() - began:.0f} s")
    return pd.read_csv(path)


def compute(output: Path, quick: bool, workers: int) -> dict[str, pd.DataFrame]:
    """Return the studies' tables and that of the slopes, which is written."""
    tables = {name: tabled(name, output, quick, workers) for name in STUDIES}
    found = rates.separation_slopes(tables["separation"])
    for name, axis in (("quadratics-rounds", "T"), ("quadratics-helpers", "n₀"),
                       ("logistic-rounds", "T")):  # fmt: skip
        found += rates.slopes(name, axis, tables[name])
    tables["slopes"] = pd.DataFrame(found)
    tables["slopes"].to_csv(output / "slopes.csv", index=False, float_format="%.5g")
    (output / "slopes.md").write_text(as_markdown(tables["slopes"]))
    return tables


def as_markdown(slopes: pd.DataFrame) -> str:
    """Return the slopes as a Markdown table."""
    rows = [
        [row.study, row.label, row.against, row.step_size,
         f"{row.slope:.2f} [{row.low:.2f}, {row.high:.2f}]",
         NONE if np.isnan(row.theory) else f"{row.theory:g}"]
        for row in slopes.itertuples()
    ]  # fmt: skip
    heads = ["study", "error of", "against", "η", "fitted slope [95 %]", "theory"]
    return "\n".join(table(heads, rows, "l")) + "\n"


def main(
    output: Annotated[Path, typer.Argument(help="directory of the tables")],
    picture_dir: Annotated[Path, typer.Argument(help="directory of the pictures")],
    quick: Annotated[bool, typer.Option(help="tiny runs, to see that it works")] = False,
    workers: Annotated[int, typer.Option(help="processes of one thread each; 0: none")] = 2,
    only: Annotated[
        list[str] | None,
        typer.Option(
            click_type=click.Choice(list(STUDIES)), help="run this one anew, and print it"
        ),
    ] = None,
) -> None:
    """Run every study whose table is not there, write the table, and draw all pictures."""
    for directory in (output, picture_dir):
        directory.mkdir(parents=True, exist_ok=True)
    for name in only or ():
        (output / f"{name}.csv").unlink(missing_ok=True)
        typer.echo(tabled(name, output, quick, workers).to_string(index=False))
    if only:
        return
    pictures.draw(compute(output, quick, workers), picture_dir)


if __name__ == "__main__":
    typer.run(main)
