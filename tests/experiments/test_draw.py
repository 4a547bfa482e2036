"""A picture's file shows the colours that were drawn."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from spcacw_flwr.experiments.draw import new_figure, save


def rgb(picture) -> np.ndarray:
    return np.asarray(Image.open(picture).convert("RGB"), dtype=int)


def test_thin_lines_among_wide_bands_keep_their_colours(tmp_path):
    figure = new_figure(8.4, 4.8)
    axes, x = figure.subplots(), np.arange(10)
    for k in range(14):
        axes.plot(x, x + k / 7, color=f"C{k}", linewidth=1.4, label=str(k))
        axes.fill_between(x, x + k / 7 - 2, x + k / 7 + 2, color=f"C{k}", alpha=0.15, lw=0)
    axes.legend()
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    save(figure, tmp_path / "lines.png")
    assert np.abs(rgb(tmp_path / "lines.png") - rgb(drawn)).max() < 32  # of 255
