"""Many runs, side by side; their means over seeds; the step sizes that did best; slopes."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import pandas as pd
import torch
from scipy import stats

from .trial import Trial

In = TypeVar("In")
Out = TypeVar("Out")


def spread(function: Callable[[In], Out], work: list[In], workers: int) -> list[Out]:
    """Map a function over a list in several processes of one thread each; in this one for 0."""
    if workers == 0:
        return list(map(function, work))
    context = multiprocessing.get_context("spawn")  # a fork would inherit PyTorch's threads
    with ProcessPoolExecutor(
        workers, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        return list(pool.map(function, work, chunksize=4))


@dataclass(frozen=True)
class Cell:
    """A run's place in a study: a line of the picture, and x."""

    label: str
    x: float
    trial: Trial


def run(cell: Cell) -> dict[str, float]:
    """Run a cell's trial."""
    return cell.trial.run()


def measured(cells: list[Cell], results: Iterable[dict[str, float]]) -> pd.DataFrame:
    """Return means over seeds: a row per label, x and factor, with the error's standard error."""
    rows = pd.DataFrame(
        {"label": cell.label, "x": cell.x, "factor": cell.trial.factor, **result}
        for cell, result in zip(cells, results, strict=True)
    )
    groups = rows.groupby(["label", "x", "factor"], sort=False)
    table = groups.mean()
    table.insert(1, "standard_error", groups["error"].sem())
    table["seeds"] = groups.size()
    return table.reset_index()


def best(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the factor with the least mean error, for each label and x."""
    return table.loc[table.groupby(["label", "x"], sort=False)["error"].idxmin()]


class Slope(NamedTuple):
    """y ≈ c x^slope, with a 95 % confidence interval of the slope."""

    slope: float
    low: float
    high: float


def fit(x: Iterable[float], y: Iterable[float]) -> Slope:
    """Fit log y = log c + slope · log x by least squares; t interval with n − 2 degrees.

    The interval tells how far the points are from one line, seeds' noise included.
    ValueError for fewer than three points, or one that is not positive.
    """
    across, up = np.array(list(x), dtype=float), np.array(list(y), dtype=float)
    if len(across) < 3 or not (across > 0).all() or not (up > 0).all():
        raise ValueError("A slope needs at least three points, all positive.")
    x_, y_ = (v - v.mean() for v in (np.log(across), np.log(up)))
    slope = float(x_ @ y_ / (x_ @ x_))
    freedom = len(across) - 2
    error = math.sqrt(np.square(y_ - slope * x_).sum() / freedom / (x_ @ x_))
    reach = float(stats.t.ppf(0.975, freedom)) * error
    return Slope(slope, slope - reach, slope + reach)


def log_spaced(last: int, count: int) -> list[int]:
    """Return about ``count`` whole numbers from 1 to ``last``, evenly spaced in the logarithm."""
    return sorted({round(math.exp(v)) for v in np.linspace(0, math.log(last), count)})
