"""Run every study: ``python -m spcacw_flwr.experiments.theory OUT_DIR PICTURE_DIR``."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer

from ..render import line
from . import estimates as estimated
from . import pictures, rates
from .measure import Cell, measured, run, spread
from .problems import Logistic, Quadratics


def estimates(quick: bool, workers: int) -> pd.DataFrame:
    """Return the traces of b̂."""
    runs = estimated.trials(quick, (0.0, *estimated.TRACED))
    return estimated.traced(runs, spread(estimated.trace, [trial for _, _, trial in runs], workers))


def simulated(quick: bool, workers: int) -> pd.DataFrame:
    """Return mean and variance of G̃(α)."""
    return pd.DataFrame(spread(estimated.draw, estimated.draws(quick), workers))


def training(study: Callable[[bool], list[Cell]], quick: bool, workers: int) -> pd.DataFrame:
    """Return the means of a study's runs."""
    cells = study(quick)
    return measured(cells, spread(run, cells, workers))


STUDIES: dict[str, Callable[[bool, int], pd.DataFrame]] = {
    "quadratics-rounds": partial(training, rates.quadratics_T),
    "quadratics-helpers": partial(training, rates.quadratics_n),
    "logistic-rounds": partial(training, rates.logistic_T),
    "separation": partial(training, rates.separations),
    "moving-bias": partial(training, estimated.bias_cells),
    "bias-estimates": estimates,
    "schedule": partial(training, rates.schedules),
    "participation": simulated,
    "participation-training": partial(training, estimated.participation_cells),
}


def compute(output: Path, quick: bool, workers: int) -> dict[str, pd.DataFrame]:
    """Return the studies' tables; run those that are not there, write each when it is done."""
    tables = {}
    for name, study in STUDIES.items():
        path, began = output / f"{name}.csv", time.perf_counter()
        if not path.exists():
            study(quick, workers).to_csv(path, index=False, float_format="%.5g")
            typer.echo(f"{name}: {time.perf_counter() - began:.0f} s")
        tables[name] = pd.read_csv(path)
    found = rates.separation_slopes(tables["separation"])
    for name, axis in (("quadratics-rounds", "T"), ("quadratics-helpers", "n₀"),
                       ("logistic-rounds", "T")):  # fmt: skip
        found += rates.slopes(name, axis, tables[name])
    tables["slopes"] = pd.DataFrame(found)
    tables["slopes"].to_csv(output / "slopes.csv", index=False, float_format="%.5g")
    (output / "slopes.md").write_text(as_markdown(tables["slopes"]))
    return tables


def draw(tables: dict[str, pd.DataFrame], to: Path) -> None:
    """Draw all pictures."""
    slopes = tables["slopes"].groupby("study")
    problem, logistic = Quadratics(), Logistic()
    half = problem.off / (problem.own + problem.off)
    for name, across, title, floor in (
        ("quadratics-rounds", "T, rounds", "Quadratics: n₀ = 8 of M = 16, σ² = 10, ‖b‖ = 1, L = 1, "
         "δ₁ = 1, d = 20", half**2 * problem.distance**2),
        ("quadratics-helpers", "n₀, silos of the target's cluster",
         "Quadratics: M = n₀ + 8, T = 1000, σ² = 10, ‖b‖ = 1", 0.0),
        ("logistic-rounds", "T, rounds", f"Logistic regression: n₀ = 8 of M = 16, "
         f"σ² = {logistic.variance:.1f}, L = {logistic.smoothness:.2f}, δ₁ = {logistic.gap:.2f}, "
         "labels turned by 90°", 0.0),
    ):  # fmt: skip
        pictures.rates(to / f"{name}.png", tables[name], slopes.get_group(name), across, title,
                       floor)  # fmt: skip
    pictures.separation(to / "separation.png", tables["separation"])
    pictures.moving(to / "moving-bias.png", tables["bias-estimates"], tables["moving-bias"])
    pictures.cumulative(to / "cumulative-bias.png", tables["bias-estimates"])
    pictures.schedule(to / "schedule.png", tables["schedule"])
    pictures.participation(to / "participation.png", tables["participation"],
                           tables["participation-training"])  # fmt: skip


def as_markdown(slopes: pd.DataFrame) -> str:
    """Return the slopes as a Markdown table."""
    rows = [line(["study", "error of", "against", "η", "fitted slope [95 %]", "theory"])]
    rows.append(line(["---"] * 6))
    for row in slopes.itertuples():
        fitted = f"{row.slope:.2f} [{row.low:.2f}, {row.high:.2f}]"
        theory = "–" if np.isnan(row.theory) else f"{row.theory:g}"
        rows.append(line([row.study, row.label, row.against, row.step_size, fitted, theory]))
    return "\n".join(rows) + "\n"


def main(
    output: Annotated[Path, typer.Argument(help="directory of the tables")],
    picture_dir: Annotated[Path, typer.Argument(help="directory of the pictures")],
    quick: Annotated[bool, typer.Option(help="tiny runs, to see that it works")] = False,
    workers: Annotated[int, typer.Option(help="processes of one thread each; 0: none")] = 2,
) -> None:
    """Run every study whose table is not there, write the table, and draw all pictures."""
    for directory in (output, picture_dir):
        directory.mkdir(parents=True, exist_ok=True)
    draw(compute(output, quick, workers), picture_dir)


if __name__ == "__main__":
    typer.run(main)
