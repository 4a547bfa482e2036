"""Table 1 as a picture, and the figures of each column.

``accuracy-<column>.png``: test accuracy over epochs, mean and ± 1 sample std over seeds, all rows.
``cost-<column>.png``: seconds, and bytes between target and peers, until an accuracy is reached:
the mean over seeds at the first epoch that reaches it. A line ends where some seed never does.
Seconds are of one process with one thread, next to others. A method that sends nothing has no line.
``alpha-<column>.png``: above, the last α of each method, mean over seeds; below, SP-CACW's α over
the rounds of its first seed. Silos are in the order of their true clusters, the target's first, or
of their angles, the target in the middle.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator

from spcacw_flwr.engine import plots
from spcacw_flwr.engine.plots import by_group, heat, new_figure, some_rows

from . import conf
from .pages import NONE
from .results import Curves, Overview
from .scores import Array, pair, to_reach

LEVELS = 60
HIGH, TICKS = 80, (0, 20, 40, 60, 70, 80, 85, 90, 92, 94, 96, 98, 99, 100)
"""Above this accuracy the axis is by errors, with these ticks."""
LABELLED = 20
"""About so many silos are named."""
Cells = Mapping[str, Curves]
"""The finished runs of a column by the title of their row."""


def colour(k: int) -> tuple[float, float, float, float]:
    """Return the colour of the k-th line of a figure."""
    return colormaps["tab20"](k % 20)


def looks(names: Iterable[str]) -> dict[str, tuple[float, float, float, float]]:
    """Return the colour of each row by its title: the same in all figures. Own rows come last."""
    places = dict.fromkeys([*(row.title for row in conf.rows()), *names])
    return {name: colour(k) for k, name in enumerate(places)}


def over_seeds(found: Iterable[Curves], spread: str = "") -> str:
    """Say over which seeds values are means; ``spread`` is what the figure shows of them."""
    seeds = {seed for curves in found for seed in curves.seeds}
    return f"mean{spread} over seeds" if len(seeds) > 1 else f"seed {min(seeds)}"


def _by_errors(accuracy: Array) -> Array:
    """Return a place on an axis where 90 to 95 % has the room of 80 to 90 %: errors are halved."""
    return -np.log(101 - np.asarray(accuracy))


def accuracy(path: Path, title: str, found: Cells) -> None:
    """Draw mean and spread over epochs."""
    figure = new_figure(8.4, 4.8)
    axes = figure.add_subplot()
    look = looks(found)
    for name, c in found.items():
        epochs, mean = np.arange(1, c.accuracy.shape[1] + 1), c.accuracy.mean(axis=0)
        axes.plot(epochs, mean, color=look[name], label=name, linewidth=1.4)
        if len(c.seeds) > 1:
            std = c.accuracy.std(axis=0, ddof=1)
            above = np.minimum(mean + std, 100)  # the axis by errors has no place far beyond
            axes.fill_between(epochs, mean - std, above, color=look[name], alpha=0.15, lw=0)
    axes.set_xlabel("epoch of the target")
    axes.set_ylabel("target's test accuracy (%)")
    if max(float(c.accuracy.max()) for c in found.values()) > HIGH:
        axes.set_yscale("function", functions=(_by_errors, lambda y: 101 - np.exp(-y)))
        axes.yaxis.set_major_locator(FixedLocator(TICKS))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    said = over_seeds(found.values(), " ± sample std")
    axes.set_title(f"{title}: {said}", fontsize=10)
    figure.legend(loc="outside right upper", fontsize=8)
    plots.save(figure, path)


def _reach(axes: Axes, found: Cells, costs: Mapping[str, Array]) -> None:
    low = min(float(c.accuracy[:, 0].min()) for c in found.values())
    high = max(float(c.accuracy.max()) for c in found.values())
    levels = np.linspace(low, high, LEVELS)
    look = looks(found)
    for name, c in found.items():
        if (cost := costs[name]).any():
            axes.plot(levels, to_reach(c.accuracy, cost, levels), color=look[name], label=name)
    axes.set_yscale("log")
    axes.set_xlabel("test accuracy (%)")
    axes.grid(alpha=0.3)


def cost(path: Path, title: str, found: Cells) -> None:
    """Draw seconds and bytes until an accuracy is reached."""
    figure = new_figure(11.0, 4.4)
    left, right = figure.subplots(1, 2)
    _reach(left, found, {name: c.seconds for name, c in found.items()})
    _reach(right, found, {name: c.bytes for name, c in found.items()})
    left.set_ylabel("seconds until then")
    right.set_ylabel("bytes between target and peers until then")
    figure.suptitle(f"{title}: what an accuracy costs", fontsize=10)
    handles, names = left.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right upper", fontsize=8)
    plots.save(figure, path)


def table(path: Path, rows: Overview, columns: Sequence[str]) -> None:
    """Draw the overview: our score, the paper's below it in grey, the three best in bold blue."""
    figure = new_figure(max(5.0, 2.2 + 1.75 * len(columns)), 1.1 + 0.46 * len(rows))
    axes = figure.add_subplot()
    axes.axis("off")
    axes.set_xlim(-1.15, len(columns))
    axes.set_ylim(len(rows), -0.6)
    for k, title in enumerate(columns):
        axes.text(k + 0.5, -0.2, title, ha="center", fontsize=8, weight="bold")
    for edge in (-0.55, 0.0, len(rows)):
        axes.axhline(edge, color="black", linewidth=1.2 if edge else 0.6, clip_on=False)
    middle: dict[str, Any] = {"ha": "center", "va": "center"}
    for j, (title, cells) in enumerate(rows):
        axes.text(-1.12, j + 0.5, title, va="center", fontsize=9)
        for k, cell in enumerate(cells):
            height, look = 0.5, middle
            if cell and cell["top"]:
                look = {"color": "tab:blue", "weight": "bold", **middle}
            if cell and cell["paper_mean"] is not None:
                height, paper = 0.36, pair(cell["paper_mean"], cell["paper_std"])
                axes.text(k + 0.5, j + 0.74, f"paper {paper}", fontsize=7, color="0.45", **middle)
            best = pair(cell["best_mean"], cell["best_std"]) if cell else NONE
            axes.text(k + 0.5, j + height, best, fontsize=9, **look)
    axes.set_title("Target's highest mean test accuracy (%) ± sample std over seeds", fontsize=10)
    plots.save(figure, path)


def weights_of(directory: Path) -> tuple[Array, Array]:
    """Return the rounds (updates,) and weights (updates, M) of a run; most families have none."""
    table = pd.read_csv(directory / "alpha.csv", dtype=np.float64).to_numpy()
    return table[:, 0], table[:, 1:]


def named(directory: Path) -> tuple[list[int], int, list[str]]:
    """Return a run's silos in the order of their true groups, its target, and all silos' names."""
    summary = json.loads((directory / "summary.json").read_text())
    groups, target = summary["groups"], summary["target"]
    names = [f"{i}" + (f" ({g:g})" if g is not None else "") for i, g in enumerate(groups)]
    return by_group(groups, target, summary.get("group_kind") == "angle"), target, names


def _weights(
    axes: Axes, rows: Mapping[str, Array], order: Sequence[int], target: int, names: Sequence[str]
) -> None:
    """Draw a row of weights for each name, as colours; of many silos some are named."""
    mesh = heat(axes, [alphas[order] for alphas in rows.values()])
    axes.set_yticks(np.arange(len(rows)) + 0.5, list(rows), fontsize=8)
    places = some_rows(order, target, LABELLED)
    axes.set_xticks([place + 0.5 for place in places], [names[order[place]] for place in places],
                    fontsize=7, rotation=0 if len(order) <= 10 else 90)  # fmt: skip
    axes.figure.colorbar(mesh, ax=axes, label="weight", ticks=[0, 0.05, 0.2, 0.5, 1])


def alpha(path: Path, title: str, found: Mapping[str, Curves], reference: str) -> bool:
    """Draw all methods' last weights and the reference's trajectory; False without any weights."""
    last = {}
    for name, c in found.items():
        tables = [weights_of(directory)[1] for directory in c.directories]
        if all(len(table) for table in tables):
            last[name] = np.mean([table[-1] for table in tables], axis=0)
    if not last:
        return False
    order, target, names = named(next(iter(found.values())).directories[0])
    figure = new_figure(11.0, 1.6 + 0.3 * len(last) + 3.2)
    upper, lower = figure.subplots(2, 1, height_ratios=[0.8 + 0.3 * len(last), 3.2])
    _weights(upper, last, order, target, names)
    upper.set_xlabel(f"silo (true group); {target} is the target")
    said = over_seeds(found.values())
    upper.set_title(f"{title}: last α, {said} (white: exactly 0)", fontsize=10)
    if reference in last:
        _trajectory(lower, found[reference].directories[0], order, names, reference)
    else:
        lower.axis("off")
    plots.save(figure, path)
    return True


def listening(path: Path, title: str, found: Mapping[int, Curves]) -> bool:
    """Draw each target's last α over all silos, mean over seeds; False if no α is learned."""
    tables = {t: [weights_of(place)[1] for place in c.directories] for t, c in found.items()}
    if not all(len(table) > 1 for of in tables.values() for table in of):
        return False
    _, first, names = named(next(iter(found.values())).directories[0])
    last = {names[t]: np.mean([of[-1] for of in tables[t]], axis=0) for t in sorted(tables)}
    figure = new_figure(3.0 + min(9.0, 0.3 * len(names)), 2.0 + 0.26 * len(last))
    axes = figure.add_subplot()
    _weights(axes, last, list(range(len(names))), first, names)
    axes.set_ylabel("target (true group)")
    axes.set_xlabel("silo that it listens to")
    said = over_seeds(found.values())
    axes.set_title(f"{title}\nlast α, {said} (white: exactly 0)", fontsize=10)
    plots.save(figure, path)
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
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def draw_all(directory: Path, column: str, title: str, found: Cells, reference: str) -> list[Path]:
    """Draw the figures of a column; return the pictures."""
    paths = [directory / f"{what}-{column}.png" for what in ("accuracy", "cost", "alpha")]
    accuracy(paths[0], title, found)
    cost(paths[1], title, found)
    drawn = alpha(paths[2], title, found, reference)
    return paths if drawn else paths[:2]
