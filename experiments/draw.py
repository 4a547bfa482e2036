"""Pictures of a setting: samples of each silo, and who holds how much of what.

Drawn without a display, and saved with 256 colours, which keeps the files small.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.float32]
ROWS = 30
"""Rows that are labelled one by one; of more, every fifth is."""


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, in inches."""
    figure = Figure(figsize=(width, height), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG with a palette.

    It covers the colours that there are: by median cut, thin lines would take those of wide bands.
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    picture = Image.open(buffer).convert("RGB")
    palette = picture.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    palette.save(path, optimize=True)


def _show(axes: Axes, image: Pixels | None) -> None:
    """Draw an image (channels, height, width) in [0, 1], or leave the place empty."""
    axes.set_xticks([])
    axes.set_yticks([])
    if image is None:
        axes.axis("off")
    elif len(image) == 1:
        axes.imshow(image[0], cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    else:
        axes.imshow(image.transpose(1, 2, 0), vmin=0, vmax=1, interpolation="nearest")


def image_rows(
    path: Path, title: str, rows: Sequence[Sequence[Pixels | None]], names: Sequence[str],
    captions: Sequence[Sequence[str]],
) -> None:  # fmt: skip
    """Draw a row of images for each silo, a caption over each image."""
    columns = max(len(row) for row in rows)
    figure = new_figure(1.3 + 0.62 * columns, 0.5 + 0.68 * len(rows))
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for row, name, said, places in zip(rows, names, captions, grid, strict=True):
        for k, axes in enumerate(places):
            _show(axes, row[k] if k < len(row) else None)
            axes.set_title(said[k] if k < len(said) else "", fontsize=6, pad=1.5)
        places[0].axis("on")
        places[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
        for spine in places[0].spines.values():
            spine.set_visible(False)
    figure.suptitle(title, fontsize=10)
    save(figure, path)


def image_grid(
    path: Path, title: str, images: Sequence[Pixels], names: Sequence[str], columns: int = 15
) -> None:
    """Draw one image of each of many silos."""
    down = -(-len(images) // columns)
    figure = new_figure(0.66 * columns, 0.5 + 0.82 * down)
    places = figure.subplots(down, columns, squeeze=False).flatten()
    for k, axes in enumerate(places):
        _show(axes, images[k] if k < len(images) else None)
        axes.set_title(names[k] if k < len(names) else "", fontsize=6, pad=1.5)
    figure.suptitle(title, fontsize=10)
    save(figure, path)


def texts(
    path: Path, title: str, names: Sequence[str], about: Sequence[str], lines: Sequence[str]
) -> None:
    """Write a row for each silo: its name, what it is about, and a line of its text."""
    figure = new_figure(11, 0.5 + 0.24 * len(lines))
    axes = figure.add_subplot()
    axes.axis("off")
    axes.set_ylim(len(lines), 0)
    for k, (name, who, line) in enumerate(zip(names, about, lines, strict=True)):
        # A dollar sign would start mathematics.
        axes.text(0.0, k + 0.5, name, va="center", fontsize=8, weight="bold")
        axes.text(0.055, k + 0.5, who.replace("$", r"\$"), va="center", fontsize=8)
        said = line.replace("$", r"\$")
        axes.text(0.6, k + 0.5, said, va="center", fontsize=8, family="monospace")
    axes.set_title(title, fontsize=10)
    save(figure, path)


def distribution(
    path: Path, title: str, table: NDArray[np.floating], sizes: Sequence[int],
    names: Sequence[str], labels: Sequence[str], edges: Sequence[int], unit: str,
    share: str = "share of the silo's labels (white: none)",
) -> None:  # fmt: skip
    """Draw what share of each silo's labels each label has, and the silos' sizes beside it.

    Parameters
    ----------
    table : array (silos, labels)
        The shares; white is exactly 0, and the colour grows with the square root.
    sizes, names : sequences
        Of the silos.
    labels : sequence of str
        Of the columns; every tenth is written where there are many.
    edges : sequence of int
        Rows before which a line separates two clusters.
    unit, share : str
        What the sizes count, and what the colours show.
    """
    silos, columns = table.shape
    width = 3.4 + max(0.3 * min(columns, 20), 0.075 * columns)
    height = 1.2 + (0.26 if silos <= ROWS else 0.115) * silos
    figure = new_figure(min(11.0, width), min(11.0, height))
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[3.2, 1])
    shown = np.ma.masked_equal(table, 0.0)
    scale = PowerNorm(0.5, vmin=0, vmax=table.max())
    mesh = left.pcolormesh(shown, cmap="viridis_r", norm=scale)
    left.set_ylim(silos, 0)
    step = 1 if silos <= ROWS else 5
    left.set_yticks(np.arange(0, silos, step) + 0.5, list(names)[::step], fontsize=8)
    across = 1 if columns <= 80 else 10
    left.set_xticks(np.arange(0, columns, across) + 0.5, list(labels)[::across],
                    fontsize=8 if columns <= 20 else 6)  # fmt: skip
    left.set_xlabel("label")
    right.barh(np.arange(silos) + 0.5, sizes, height=0.8, color="0.55")
    right.set_xlabel(unit)
    right.tick_params(axis="x", labelsize=8)
    for edge in edges:
        for axes in (left, right):
            axes.axhline(edge, color="crimson", linewidth=1)
    bar = figure.colorbar(mesh, ax=right, pad=0.03)
    bar.set_label(share, fontsize=8)
    bar.ax.tick_params(labelsize=7)
    figure.suptitle(title, fontsize=10)
    save(figure, path)
