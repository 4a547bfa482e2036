"""The two pictures of a run: the target's accuracy over epochs, and α over time.

Drawn without a display (matplotlib's Agg canvas, no pyplot state), so that they can be written from
a worker thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from spcacw_flwr.silos.protocol import Federation


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_accuracy(
    path: Path, epochs: Sequence[Mapping[str, float]], alone: Sequence[float]
) -> None:
    """Draw the target's accuracy (percent) over epochs, beside training alone when that was run."""
    figure = _figure(6.4, 4.0)
    axes = figure.add_subplot()
    axes.plot([e["epoch"] for e in epochs], [e["accuracy"] for e in epochs], label="with peers")
    if alone:
        axes.plot(range(1, len(alone) + 1), alone, "--", color="0.4", label="alone (α = e₀)")
    axes.set_xlabel("epoch of the target")
    axes.set_ylabel("target's accuracy (%)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)


def _order(federation: Federation, circular: bool) -> list[int]:
    """Silos by true cluster, or along the circle of angles with the target in the middle."""
    groups = [info.group or 0.0 for info in federation.silos]
    if circular:
        own = groups[federation.target]
        groups = [(group - own + 180) % 360 for group in groups]
    return sorted(range(len(groups)), key=lambda i: (groups[i], i != federation.target, i))


def _label(federation: Federation, silo: int, unit: str) -> str:
    group = federation.silos[silo].group
    mark = " ← target" if silo == federation.target else ""
    return f"silo {silo}" + (f" ({group:g}{unit})" if group is not None else "") + mark


def save_alpha(
    path: Path,
    alphas: Sequence[tuple[int, NDArray[np.float64]]],
    federation: Federation,
    circular: bool,
) -> None:
    """Draw α over rounds as a heat-map; white is a weight of exactly 0.

    Silos are in the order of their true clusters or, where ``circular`` says that the groups are
    angles in degrees, along the circle around the target. Colour grows with √α, or the target's
    own large weight would leave its peers' all alike.
    """
    order = _order(federation, circular)
    rounds = [r for r, _ in alphas]
    weights = np.array([alpha for _, alpha in alphas])[:, order].T
    # Each α holds from its update to the next one; a lone α is shown as one column.
    edges = np.array([*rounds, rounds[-1] + (rounds[-1] - rounds[-2] if len(rounds) > 1 else 1)])
    figure = _figure(7.2, max(2.6, min(10.0, 1.4 + 0.22 * len(order))))
    axes = figure.add_subplot()
    shown = np.ma.masked_equal(weights, 0.0)
    scale = PowerNorm(0.5, vmin=0, vmax=1)
    mesh = axes.pcolormesh(edges, np.arange(len(order) + 1), shown, cmap="magma_r", norm=scale)
    axes.invert_yaxis()
    rows = _labelled_rows(order, federation.target)
    unit = "°" if circular else ""
    names = [_label(federation, order[row], unit) for row in rows]
    axes.set_yticks([row + 0.5 for row in rows], names)
    axes.tick_params(axis="y", labelsize=7 if len(order) > 15 else 9)
    axes.set_xlabel("round")
    axes.set_title("α: how much the target listens to each silo (white: exactly 0)", fontsize=11)
    figure.colorbar(mesh, ax=axes, label="weight", ticks=[0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.7, 1])
    figure.savefig(path)


def _labelled_rows(order: Sequence[int], target: int) -> list[int]:
    """At most about thirty rows, the target's among them."""
    step = max(1, len(order) // 30)
    return list(range(order.index(target) % step, len(order), step))
