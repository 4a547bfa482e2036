"""The two pictures of a run: the target's metric over epochs, and α over time.

They need no display (Matplotlib's Agg canvas, no pyplot state), so a worker thread can write them.
:func:`heat` draws every heat-map of weights: here, in reports and in experiments.
"""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import QuadMesh
from matplotlib.colors import Colormap, ListedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from spcacw_flwr.engine.directory import write_atomically
from spcacw_flwr.silos.metrics import Metric
from spcacw_flwr.silos.protocol import Federation

HEAT = ListedColormap(matplotlib.colormaps["magma_r"](np.linspace(0.1, 1, 256)))
"""The colour map, without the lightest tints: they look like white, which means no weight."""
BLUE, ORANGE = "#0072B2", "#D55E00"
MOST_POINTS = 400
"""Most epochs or updates that are drawn; of more, an even choice is drawn."""


def new_figure(width: float, height: float, dpi: int = 100) -> Figure:
    """Return an empty figure; width and height are in inches."""
    figure = Figure(figsize=(width, height), dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def heat(
    axes: Axes, table: ArrayLike, edges: Sequence[float] | None = None, *, top: float = 1.0,
    colours: Colormap = HEAT,
) -> QuadMesh:  # fmt: skip
    """Draw weights, an array (rows, columns), as colours, with the first row at the top.

    A weight of exactly 0 is white; ``top`` has the last of the ``colours``. The scale is √weight:
    otherwise the target's large weight would make all peers look alike. ``edges`` has the left edge
    of each column and the end of the last one, 0, 1, … by default.
    """
    values = np.ma.masked_equal(np.asarray(table, dtype=np.float64), 0.0)
    mesh = axes.pcolormesh(
        np.arange(values.shape[1] + 1) if edges is None else edges,
        np.arange(len(values) + 1), values, cmap=colours, rasterized=True,
        norm=PowerNorm(0.5, vmin=0, vmax=top),
    )  # fmt: skip
    axes.set_ylim(len(values), 0)
    return mesh


def thin(count: int) -> list[int]:
    """Return at most MOST_POINTS indices below ``count``, with the first and the last."""
    return sorted({round(x) for x in np.linspace(0, count - 1, min(count, MOST_POINTS))})


def draw_metric(
    axes: Axes, metric: Metric, epochs: Sequence[float], values: Sequence[float],
    alone: Sequence[float],
) -> None:  # fmt: skip
    """Draw a metric over epochs, with training alone if that is known.

    ``alone`` has a value per epoch; a single value is the one after the last epoch.
    """

    def line(x: Sequence[float], y: Sequence[float], what: str, **style: Any) -> None:
        at, label = thin(len(y)), f"{what}: {metric.text(y[-1])}"
        axes.plot([x[k] for k in at], [y[k] for k in at], label=label, **style)

    dashed: dict[str, Any] = {"color": ORANGE, "lw": 1.8, "ls": "--"}
    mark = "o" if len(values) == 1 else ""
    line(epochs, values, "this run", color=BLUE, lw=2.2, marker=mark)
    if len(alone) > 1:
        line(range(1, len(alone) + 1), alone, "alone", **dashed)
    elif alone:
        axes.axhline(alone[-1], label=f"alone, at its end: {metric.text(alone[-1])}", **dashed)
    axes.set_xlabel("epoch (the target's pass over its data)")
    better = "" if metric.higher else ", less is better"
    axes.set_ylabel(metric.label + (" (%)" if metric.percent else better))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=2)  # hides no line


def save(figure: Figure, path: Path, **how: Any) -> None:
    """Write a picture in one step."""
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix[1:] or "png", **how)
    write_atomically(path, content.getvalue())


def save_metric(
    path: Path, metric: Metric, epochs: Sequence[Mapping[str, float]],
    alone: Mapping[str, Sequence[float]],
) -> None:  # fmt: skip
    """Save the picture of the target's metric over epochs."""
    figure = new_figure(6.4, 4.0, dpi=120)
    numbers, values = ([line[name] for line in epochs] for name in ("epoch", metric.name))
    draw_metric(figure.add_subplot(), metric, numbers, values, alone.get(metric.name, ()))
    save(figure, path)


def some_rows(order: Sequence[int], target: int, most: int) -> range:
    """Return about ``most`` evenly spaced rows to label, with the target's row."""
    step = max(1, len(order) // most)
    return range(order.index(target) % step, len(order), step)


def by_group(groups: Sequence[float | None], target: int, circular: bool) -> list[int]:
    """Return the silos in the order of their true groups, the target's own group first.

    If the groups are angles in degrees (``circular``), the order is that of the angles relative to
    the target, which is in the middle. Where groups are not known, the target is first.
    """
    gaps = [(group or 0.0) - (groups[target] or 0.0) for group in groups]
    place = [((gap + 180) % 360,) if circular else (abs(gap), gap) for gap in gaps]
    return sorted(range(len(gaps)), key=lambda i: (place[i], i != target, i))


def save_alpha(
    path: Path, alphas: Sequence[tuple[int, NDArray[np.float64]]], federation: Federation,
    circular: bool, end: int,
) -> None:  # fmt: skip
    """Draw α over ``end`` rounds, as a heat-map of the silos by true group; white is exactly 0."""
    target, known = federation.target, [info.group for info in federation.silos]
    order = by_group(known, target, circular)
    weights = np.array([alpha for _, alpha in alphas])[:, order].T
    figure = new_figure(7.2, max(2.6, min(10.0, 1.4 + 0.22 * len(order))), dpi=120)
    axes = figure.add_subplot()
    mesh = heat(axes, weights, [*(round_ for round_, _ in alphas), end])
    rows, names = some_rows(order, target, 30), []
    for silo in (order[row] for row in rows):
        group = "" if known[silo] is None else f" ({known[silo]:g}{'°' if circular else ''})"
        names.append(f"silo {silo}{group}{' ← target' if silo == target else ''}")
    axes.set_yticks([row + 0.5 for row in rows], names)
    axes.tick_params(axis="y", labelsize=7 if len(order) > 15 else 9)
    axes.set_xlabel("round")
    axes.set_title("α: how much the target listens to each silo (white: exactly 0)", fontsize=11)
    figure.colorbar(mesh, ax=axes, label="weight", ticks=[0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.7, 1])
    save(figure, path)
