"""Table 1 as a picture, and the figures of each column.

``accuracy-<column>.png``: test accuracy over epochs, mean and ± 1 sample std over seeds, all rows.
``cost-<column>.png``: seconds, and bytes between target and peers, until an accuracy is reached:
the mean over seeds at the first epoch with it; a line ends where some seed never gets there.
Seconds are of one process with one thread beside others; a float has 4 bytes; a method that sends
nothing has no line. ``alpha-<column>.png``: :mod:`spcacw_flwr.experiments.weights`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from .cells import REFERENCE, Cell
from .draw import new_figure, save
from .render import NONE, by_place, ordered_rows, pair, shown
from .results import Curves
from .scores import Array, to_reach
from .weights import alpha, colour

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


def table(
    path: Path, cells: Sequence[Cell], columns: Mapping[str, str], order: Sequence[str]
) -> None:
    """Draw the overview: ours, below it the paper's in grey, the three best in bold blue."""
    titles, place = by_place(cells)
    rows = ordered_rows(cells, order)
    figure = new_figure(max(5.0, 2.2 + 1.75 * len(columns)), 1.1 + 0.46 * len(rows))
    axes = figure.add_subplot()
    axes.axis("off")
    axes.set_xlim(-1.15, len(columns))
    axes.set_ylim(len(rows), -0.6)
    for k, title in enumerate(columns.values()):
        axes.text(k + 0.5, -0.2, title, ha="center", fontsize=8, weight="bold")
    for edge in (-0.55, 0.0, len(rows)):
        axes.axhline(edge, color="black", linewidth=1.2 if edge else 0.6, clip_on=False)
    for j, row in enumerate(rows):
        axes.text(-1.12, j + 0.5, titles[row], va="center", fontsize=9)
        for k, column in enumerate(columns):
            if (cell := place.get((row, column))) is None:
                axes.text(k + 0.5, j + 0.5, NONE, ha="center", va="center", fontsize=9)
                continue
            look: dict[str, Any] = {"color": "tab:blue", "weight": "bold"} if cell.top else {}
            height = j + (0.36 if cell.paper else 0.5)
            axes.text(k + 0.5, height, shown(cell.best), ha="center", va="center", fontsize=9,
                      **look)  # fmt: skip
            if cell.paper:
                axes.text(k + 0.5, j + 0.74, f"paper {pair(*cell.paper)}", ha="center",
                          va="center", fontsize=7, color="0.45")  # fmt: skip
    axes.set_title("Target's highest mean test accuracy (%) ± sample std over seeds", fontsize=10)
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
