"""Figures of α: what each method ended with, and how SP-CACW's weights moved.

The upper part is the last α of each method with weights, mean over seeds; the lower one follows a
method's α over the rounds of its first seed. Silos are in the order of their true clusters or
angles, the target first.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm

from .draw import new_figure, save
from .results import Curves
from .scores import Array

LABELLED = 30
"""Silos that are labelled one by one."""


def colour(k: int) -> tuple[float, float, float, float]:
    """Return the colour of the k-th line of a figure."""
    return colormaps["tab20"](k % 20)


def weights_of(directory: Path) -> tuple[Array, Array]:
    """Return the rounds (updates,) and weights (updates, M) of a run; none of most families."""
    path = directory / "alpha.csv"
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    table = np.array(rows[1:], dtype=np.float64).reshape(-1, len(rows[0]))
    return table[:, 0], table[:, 1:]


def silo_order(directory: Path) -> tuple[list[int], list[str]]:
    """Return silos, the target first, by true cluster or the angle from it, and their names."""
    summary = json.loads((directory / "summary.json").read_text())
    groups = [group or 0.0 for group in summary["groups"]]
    target = summary["target"]
    names = [f"{i}" + (f" ({g:g})" if g is not None else "")
             for i, g in enumerate(summary["groups"])]  # fmt: skip
    if len(set(groups)) > LABELLED:  # angles: from the target on, around the circle
        groups = [(group - groups[target]) % 360 for group in groups]
    order = sorted(range(len(groups)), key=lambda i: (i != target, groups[i], i))
    return order, names


def alpha(path: Path, title: str, found: Mapping[str, Curves], reference: str) -> bool:
    """Draw last weights of all methods, and the trajectory of one; False if there are none."""
    last = {}
    for name, c in found.items():
        tables = [weights_of(directory)[1] for directory in c.directories]
        if all(len(table) for table in tables):
            last[name] = np.mean([table[-1] for table in tables], axis=0)
    if not last:
        return False
    order, names = silo_order(next(iter(found.values())).directories[0])
    figure = new_figure(11.0, 1.6 + 0.3 * len(last) + 3.2)
    upper, lower = figure.subplots(2, 1, height_ratios=[0.8 + 0.3 * len(last), 3.2])
    table = np.ma.masked_equal(np.array(list(last.values()))[:, order], 0.0)
    mesh = upper.pcolormesh(table, cmap="magma_r", norm=PowerNorm(0.5, vmin=0, vmax=1))
    upper.set_yticks(np.arange(len(last)) + 0.5, list(last), fontsize=8)
    upper.invert_yaxis()
    step = 1 if len(order) <= LABELLED else 5
    shown = order[::step]
    upper.set_xticks(np.arange(0, len(order), step) + 0.5, [names[i] for i in shown], fontsize=7,
                     rotation=0 if step == 1 and len(order) <= 10 else 90)  # fmt: skip
    upper.set_xlabel("silo (true group), the target first")
    upper.set_title(f"{title}: last α, mean over seeds (white: exactly 0)", fontsize=10)
    figure.colorbar(mesh, ax=upper, label="weight", ticks=[0, 0.05, 0.2, 0.5, 1])
    if reference in last:
        _trajectory(lower, found[reference].directories[0], order, names, reference)
    else:
        lower.axis("off")
    save(figure, path)
    return True


def _trajectory(
    axes: Axes, directory: Path, order: list[int], names: list[str], title: str
) -> None:
    rounds, weights = weights_of(directory)
    heaviest = set(np.argsort(-weights.max(axis=0), kind="stable")[:10].tolist())
    for k, silo in enumerate(i for i in order if i in heaviest):
        axes.step(rounds, weights[:, silo], where="post", color=colour(k), label=names[silo])
    others = [i for i in order if i not in heaviest]
    if others:
        axes.step(rounds, weights[:, others].sum(axis=1), "k:", where="post", label="all others")
    axes.set_ylim(0, 1)
    axes.set_yscale("function", functions=(np.sqrt, np.square))  # as the colours above
    axes.set_yticks([0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.7, 1])
    axes.set_xlabel("round")
    axes.set_ylabel("weight")
    axes.set_title(f"α of {title} over rounds, first seed; the heaviest silos", fontsize=10)
    axes.legend(fontsize=7, ncols=2)
