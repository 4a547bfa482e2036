"""The figures beside Table 1, for each column.

``accuracy-<column>.png``: test accuracy over epochs, mean and ± 1 sample std over seeds, all rows.
``cost-<column>.png``: seconds, and bytes between target and peers, until an accuracy is reached:
the mean over seeds at the first epoch with it; a line ends where some seed never gets there.
Seconds are of one process with one thread beside others; a float has 4 bytes; a method that sends
nothing has no line. ``alpha-<column>.png``: :mod:`experiments.weights`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from experiments.cells import REFERENCE
from experiments.draw import colour, new_figure, save
from experiments.results import Curves
from experiments.scores import Array, to_reach
from experiments.weights import alpha

FLOAT_BYTES = 4
LEVELS = 60
Cells = Mapping[str, Curves]
"""The finished runs of a column by the title of their row."""


def accuracy(path: Path, title: str, found: Cells) -> None:
    """Draw mean and spread over epochs."""
    figure = new_figure(8.4, 4.8)
    axes = figure.add_subplot()
    for k, (name, c) in enumerate(found.items()):
        epochs, mean = np.arange(1, c.accuracy.shape[1] + 1), c.accuracy.mean(axis=0)
        axes.plot(epochs, mean, color=colour(k), label=name, linewidth=1.4)
        if len(c.seeds) > 1:
            std = c.accuracy.std(axis=0, ddof=1)
            axes.fill_between(epochs, mean - std, mean + std, color=colour(k), alpha=0.15, lw=0)
    axes.set_xlabel("epoch of the target")
    axes.set_ylabel("target's test accuracy (%)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.set_title(f"{title}: mean ± sample std over seeds", fontsize=10)
    figure.legend(loc="outside right upper", fontsize=8)
    save(figure, path)


def _reach(axes: Axes, found: Cells, costs: Mapping[str, Array]) -> None:
    low = min(float(c.accuracy[:, 0].min()) for c in found.values())
    high = max(float(c.accuracy.max()) for c in found.values())
    levels = np.linspace(low, high, LEVELS)
    for k, (name, c) in enumerate(found.items()):
        if (cost := costs[name]).any():
            axes.plot(levels, to_reach(c.accuracy, cost, levels), color=colour(k), label=name)
    axes.set_yscale("log")
    axes.set_xlabel("test accuracy (%)")
    axes.grid(alpha=0.3)


def cost(path: Path, title: str, found: Cells) -> None:
    """Draw seconds and bytes until an accuracy is reached."""
    figure = new_figure(11.0, 4.4)
    left, right = figure.subplots(1, 2)
    _reach(left, found, {name: c.seconds for name, c in found.items()})
    _reach(right, found, {name: FLOAT_BYTES * c.floats for name, c in found.items()})
    left.set_ylabel("seconds until then")
    right.set_ylabel("bytes between target and peers until then")
    figure.suptitle(f"{title}: what an accuracy costs", fontsize=10)
    handles, names = left.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right upper", fontsize=8)
    save(figure, path)


def draw_all(directory: Path, column: str, title: str, rows: Mapping[str, Curves],
             titles: Mapping[str, str]) -> list[Path]:  # fmt: skip
    """Draw the figures of a column from its rows' runs; return the pictures."""
    found = {titles[row]: curves for row, curves in rows.items()}
    paths = [directory / f"{what}-{column}.png" for what in ("accuracy", "cost", "alpha")]
    accuracy(paths[0], title, found)
    cost(paths[1], title, found)
    drawn = alpha(paths[2], title, found, titles.get(REFERENCE, REFERENCE))
    return paths if drawn else paths[:2]
