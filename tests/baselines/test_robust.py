"""Krum, median and centred clipping by hand."""

import numpy as np
import pytest
import torch

from spcacw_flwr.baselines import median
from spcacw_flwr.baselines.krum import krum_scores
from tests.baselines.by_hand import close, make, play, sending


def test_krum_scores_by_hand():
    """Gradients 0, 1, 3, 10; k = 4 allows f = 0, so each counts its 2 nearest.

    s = 1 + 9, 1 + 4, 4 + 9, 49 + 81. For 7 and f = 2 it is the 3 nearest.
    """
    x = np.array([0.0, 1.0, 3.0, 10.0])
    np.testing.assert_allclose(krum_scores(np.outer(x, x), 2), [10, 5, 13, 130])
    x = np.array([0.0, 1.0, 2.0, 3.0, 50.0, 60.0, 61.0])
    assert krum_scores(np.outer(x, x), 2)[1] == pytest.approx(1 + 1 + 4)
    assert krum_scores(np.outer(x, x), 0)[1] == pytest.approx(1 + 1 + 4 + 49**2 + 59**2)


@pytest.mark.parametrize(
    ("keep", "alpha", "mean"), [(1, [0, 1, 0, 0], 1.0), (2, [0.5, 0.5, 0, 0], 0.5)]
)
def test_krum_steps_along_the_best(keep, alpha, mean):
    method = make("krum", [0.0], [64] * 4, {"keep": keep}, eta=1.0)
    play(method, 2, sending([[0.0], [1.0], [3.0], [10.0]]))
    np.testing.assert_array_equal(method.alpha, alpha)
    assert float(method.parameters) == pytest.approx(-2 * mean)


@pytest.mark.parametrize("name", ["krum", "median", "centered-clipping", "fedcluster"])
def test_of_one_silo_it_is_its_gradient(name):
    own = {"tau": 9.0} if name == "centered-clipping" else {}
    method = make(name, sizes=[64], own=own, eta=1.0)
    play(method, 1, sending([[1.0, -2.0]]))
    close(method.parameters, [-1.0, 2.0])


def median_of(rows):
    """Return the median of the rows of a tensor (k, d), and each row's share in supplying it."""
    shares, found = make("median").aggregate(rows, 0)
    return found, shares


def test_median_of_three_and_of_four():
    """(1, 2, 9) and (5, 4, 3) have the medians 2 and 4, both silo 1's.

    Of 1, 2, 4, 9 it is 3, half from each of the two in the middle; the lower one would be 2.
    """
    found, shares = median_of(torch.tensor([[1.0, 5], [2, 4], [9, 3]]))
    assert (found.tolist(), shares.tolist()) == ([2, 4], [0, 1, 0])
    found, shares = median_of(torch.tensor([[1.0], [2.0], [4.0], [9.0]]))
    assert (found.tolist(), shares.tolist()) == ([3], [0, 0.5, 0.5, 0])


def test_equal_gradients_are_their_own_median_and_share_it():
    method = make("median", sizes=[64] * 5, eta=1.0)
    play(method, 2, sending([[3.0, -1.0]] * 5))
    close(method.parameters, [-6.0, 2.0])
    np.testing.assert_allclose(method.alpha, [0.2] * 5)


def test_silos_that_hold_one_middle_value_share_its_coordinate():
    """Of (1, 2, 2, 2, 9) silos 1, 2 and 3 supply a third each, of (1, 2, 3, 4, 5) silo 2 all."""
    rows = torch.tensor([[1.0, 1.0], [2.0, 2.0], [2.0, 3.0], [2.0, 4.0], [9.0, 5.0]])
    found, shares = median_of(rows)
    assert found.tolist() == [2, 3]
    np.testing.assert_allclose(shares, [0, 1 / 6, 4 / 6, 1 / 6, 0], rtol=1e-6)


@pytest.mark.parametrize("silos", [1, 6, 7])
def test_median_in_blocks_is_numpys(silos, monkeypatch):
    monkeypatch.setattr(median, "COLUMNS", 4)
    rows = torch.randn(silos, 11, generator=torch.Generator().manual_seed(0))
    found, shares = median_of(rows)
    np.testing.assert_allclose(found, np.median(rows.numpy(), axis=0), rtol=1e-6)
    assert shares.sum() == pytest.approx(1)


def clipping(tau, rows, rounds=2, **own):
    """Return centred clipping after rounds in which two silos send ``rows``."""
    method = make("centered-clipping", [0.0], [64, 64], {"tau": tau} | own, eta=1.0)
    play(method, rounds, sending(rows))
    return method


def test_centred_clipping_by_hand():
    """τ = 1, gradients 1 and 3. From v = 0: λ = (1, 1/3), v = (1 + 1)/2 = 1, c = (1/2, 1/6).

    From v = 1: λ = (1, ½), v = 1 + (0 + 1)/2 = 1.5, c = ¼ (1/2, 1/6) + (½, ¼) = (15, 7)/24, and
    indeed c · (1, 3) = 36/24. The steps add up to 2.5.
    """
    method = clipping(1.0, [[1.0], [3.0]])
    close(method.centre, [1.5])
    close(method.parameters, [-2.5])
    np.testing.assert_allclose(method.alpha, [15 / 22, 7 / 22])


def test_inner_rounds_of_centred_clipping_go_on_from_the_centre():
    """Two inner rounds in one round are the two centres above: 1, then 1.5."""
    method = clipping(1.0, [[1.0], [3.0]], rounds=1, **{"inner-rounds": 2})
    close(method.parameters, [-1.5])


def test_the_clipping_of_the_step_leaves_the_centre_alone():
    """The optimiser clips in place what it is given: v = 3 must stay 3, and the step be 1."""
    keys = {"clip": "aggregate", "max_norm": 1.0}
    method = make("centered-clipping", [0.0], [64, 64], {"tau": 9.0}, eta=1.0, **keys)
    play(method, 1, sending([[3.0], [3.0]]))
    close(method.parameters, [-1.0])
    close(method.centre, [3.0])


@pytest.mark.parametrize("name", ["krum", "median", "centered-clipping"])
def test_an_outlier_moves_no_control_far(name):
    method = make(name, [0.0], [64] * 5, eta=1.0)
    play(method, 1, sending([[1.0], [1.1], [0.9], [1.0], [1e6]]))
    assert abs(float(method.parameters)) < 1.2
