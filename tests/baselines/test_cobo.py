"""CoBo by hand."""

import numpy as np
import pytest
import torch

from tests.baselines.by_hand import G, W, close, converse, heard, make, play, quadratics

SILOS = quadratics(G)


def built(start=1.0, rho=0.5, gamma=0.1, eta=0.1, **keys):
    own = {"rho": rho, "gamma": gamma}
    made = make("cobo", (0.0, 0.0, 0.0), [64] * 4, own, eta=eta, **keys)
    made.models = torch.tensor(W)
    made.pairs = start * made.pairs
    return made


def test_known_answer():
    """f_i = ½‖x − G_i‖²; ⟨z − G_0, z − G_i⟩ at z = (W_0 + W_i)/2 is .7658, −.5275, −1.1175.

    From w = 0 the pairs of round 1 are (0, 1) and (2, 3), whose −.2175 is clipped:
    x_0 = W_0 − .1 (W_0 − G_0) − .1 · .5 · .07658 (W_0 − W_1), and alike for x_1.
    """
    made = built(start=0.0)
    mine, between = converse(made, 1, SILOS)
    np.testing.assert_allclose(made.pairs[0], [0, 0.07658, 0, 0], atol=1e-7)
    np.testing.assert_array_equal(made.pairs, made.pairs.T)
    close(made.personal, [0.190077, -0.229923, 0.294923], atol=1e-6, rtol=0)
    close(made.models[1], [0.197923, -0.202077, 0.287077], atol=1e-6, rtol=0)
    assert (mine.silos, mine.draw) == ((0, 1, 2, 3), 0)
    assert (between.silos, between.draw) == ((0, 1, 2, 3), 1)
    close(between.points[0], [0.11, -0.19, 0.29])
    close(between.points[0], between.points[1])


@pytest.mark.parametrize(
    ("round_", "peer", "weight"), [(1, 1, 1.0), (2, 2, 1 - 0.05275), (3, 3, 1 - 0.11175)]
)
def test_from_one_a_weight_falls_where_gradients_oppose(round_, peer, weight):
    made = built()
    converse(made, round_, SILOS)
    assert made.pairs[0, peer] == pytest.approx(weight, abs=1e-7)


@pytest.mark.parametrize("count", [2, 5, 6])
def test_each_pair_comes_once_in_m_rounds(count):
    made = make("cobo", (0.0,), [64] * count, eta=0.1)
    rounds = [made.partners(t, tuple(range(count))) for t in range(count)]
    seen = [(i, j) for partners in rounds for i, j in partners.items() if i < j]
    assert sorted(seen) == [(i, j) for i in range(count) for j in range(i + 1, count)]


def test_a_silo_that_is_silent_stays_and_takes_its_pair_with_it():
    made = built()
    converse(made, 1, lambda r: heard(SILOS(r), [i for i in r.silos if i != 1]))
    assert made.pairs[0, 1] == 1
    assert made.models[1].tolist() == torch.tensor(W[1]).tolist()
    assert made.pairs[2, 3] == pytest.approx(1 - 0.02175)


def test_where_it_converges():
    """Equal minima attract, opposed ones part: silos 0 and 1 end at 1, silo 2 at −1."""
    made = make("cobo", (0.2,), [64] * 3, {"rho": 0.5, "gamma": 0.5}, eta=0.1)
    play(made, 200, quadratics([[1.0], [1.0], [-1.0]]))
    close(made.models, [[1.0], [1.0], [-1.0]], atol=1e-3, rtol=0)
    assert made.pairs[0].tolist() == [0, 1, 0]
    np.testing.assert_allclose(made.alpha, [0.5, 0.5, 0])


def test_the_bound_of_the_pull_grows_with_momentum():
    """η ρ M = 1 · .5 · 4 = 2 is below 2 (1 + μ)."""
    built(eta=1.0, momentum=0.5)
