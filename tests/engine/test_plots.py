"""The heat-map of weights: what is white, what is dark, and how long an α holds."""

import numpy as np
import pytest

from spcacw_flwr.engine.plots import draw_metric, heat, new_figure
from spcacw_flwr.silos.metrics import METRICS


def test_zero_is_white_and_colour_grows_with_the_root():
    axes = new_figure(2, 2).add_subplot()
    mesh = heat(axes, [[0.0, 0.25], [1.0, 0.0]])
    assert np.ma.getmaskarray(mesh.get_array()).tolist() == [[True, False], [False, True]]
    assert float(mesh.norm(0.25)) == 0.5
    assert axes.get_ylim() == (2, 0)  # the first row is above the second
    assert heat(axes, [[0.1]], top=0.1).norm(0.1) == 1


def test_an_alpha_holds_until_the_next_one():
    axes = new_figure(2, 2).add_subplot()
    edges = heat(axes, [[1.0, 0.5, 0.2]], [0, 7, 21]).get_coordinates()[0, :, 0]
    assert edges.tolist() == [0, 7, 21, 35]  # the last one as long as the one before it
    lone = heat(axes, [[1.0]], [5]).get_coordinates()[0, :, 0]
    assert lone.tolist() == [5, 6]


@pytest.mark.parametrize("name", ["accuracy", "log-loss"])
def test_the_legend_hides_no_line(name):
    """An interval at the last epoch went through it."""
    figure = new_figure(6.4, 3.1)
    axes = figure.add_subplot()
    draw_metric(axes, METRICS[name], [1, 2, 3], [0.91, 0.92, 0.93], [0.81, 0.82, 0.83])
    figure.draw_without_rendering()
    legend, whole = axes.get_legend().get_window_extent(), figure.bbox
    assert not legend.overlaps(axes.get_window_extent())
    assert whole.contains(legend.x0, legend.y0)
    assert whole.contains(legend.x1, legend.y1)
