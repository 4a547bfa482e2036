"""The heat-map of weights: what is white, what is dark, and how long an α holds."""

from __future__ import annotations

import numpy as np

from spcacw_flwr.engine.plots import heat, new_figure


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
