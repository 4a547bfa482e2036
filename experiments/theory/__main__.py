"""Run every study: ``python -m spcacw_flwr.experiments.theory OUT_DIR PICTURE_DIR``."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import click
import numpy as np
import pandas as pd
import typer

from spcacw_flwr.engine.directory import write_atomically

from ..pages import NONE, table
from . import claims, pictures, rates
from .trials import Cell, few_rounds, measured

Study = tuple[Callable[[], Iterator[Cell]], Callable[[list[Cell], int], pd.DataFrame]]
"""The cells to run, and the function that makes a table of them in so many processes."""
STUDIES: dict[str, Study] = {
    "quadratics-rounds": (rates.quadratics_T, measured),
    "quadratics-helpers": (rates.quadratics_n, measured),
    "logistic-rounds": (rates.logistic_T, measured),
    "separation": (rates.separations, measured),
    "moving-bias": (rates.bias_training, measured),
    "bias-estimates": (rates.bias_cells, rates.traced),
    "schedule": (rates.schedules, measured),
    "participation": (rates.participation, rates.drawn),
    "participation-training": (rates.participation_training, measured),
    "bounds": (claims.bounds, claims.compared),
    "unequal-noise": (claims.noises, partial(claims.ended, part="shift")),
    "regularisers": (claims.regularisers, partial(claims.ended, part="beta")),
    "bounded-bias": (claims.bounded, partial(claims.ended, part="bias")),
    "public-data": (claims.public, claims.ended),
}


def tabled(name: str, output: Path, quick: bool, workers: int) -> pd.DataFrame:
    """Return a study's table; if it does not exist, run the study and write the table."""
    path, began = output / f"{name}.csv", time.perf_counter()
    if not path.exists():
        cells_of, table_of = STUDIES[name]
        cells = few_rounds(cells_of()) if quick else cells_of()
        found = table_of(list(cells), workers).to_csv(index=False, float_format="%.5g")
        write_atomically(path, found.encode())
        typer.echo(f"{name}: {time.perf_counter() - began:.0f} s")
    return pd.read_csv(path)


def compute(output: Path, quick: bool, workers: int) -> dict[str, pd.DataFrame]:
    """Return the studies' tables and the table of slopes, which is also written."""
    tables = {name: tabled(name, output, quick, workers) for name in STUDIES}
    found = rates.separation_slopes(tables["separation"])
    for name, axis in (("quadratics-rounds", "T"), ("quadratics-helpers", "n₀"),
                       ("logistic-rounds", "T")):  # fmt: skip
        found += rates.slopes(name, axis, tables[name])
    tables["slopes"] = pd.DataFrame(found)
    slopes = tables["slopes"].to_csv(index=False, float_format="%.5g")
    write_atomically(output / "slopes.csv", slopes.encode())
    write_atomically(output / "slopes.md", as_markdown(tables["slopes"]).encode())
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
    """Run every study that has no table yet, write its table, and draw all pictures."""
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
