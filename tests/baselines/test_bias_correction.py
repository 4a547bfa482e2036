"""Weighted gradient averaging and bias correction by hand, and where they converge."""

import numpy as np
import pytest
import torch

from tests.baselines.by_hand import G, close, converse, heard, make, play, quadratics, sending


def built(name, own, eta=0.1, start=(0.0, 0.0, 0.0), count=4, **keys):
    return make(name, start, [64] * count, own, eta=eta, **keys)


def test_known_answers():
    """ḡ = (.1, .8, −.15)/3; ḡ − g_0 = (−.966667, .766667, −.3), of which c_2 holds 3/4.

    d_1 = (g_0 + ḡ)/2, d_2 = d_1 − c_1/2 with c_1 = (ḡ − g_0)/2; WGA steps along d_1 twice.
    """
    bc, wga = built("bc", {"a": 0.5, "beta": 0.5}), built("wga", {"a": 0.5})
    play(wga, 2, sending(G))
    converse(bc, 1, sending(G))
    before = bc.parameters.clone()
    converse(bc, 2, sending(G))
    for found, expected in [
        ((before - bc.parameters) / 0.1, [0.758333, -0.308333, 0.175]),
        (bc.bias, [-0.725, 0.575, -0.225]),
        (bc.parameters, [-0.1275, 0.0425, -0.0275]),
        (wga.parameters, [-0.103333, 0.023333, -0.02]),
    ]:
        close(found, expected, atol=1e-6, rtol=0)
    np.testing.assert_allclose(wga.alpha, [0.5, 1 / 6, 1 / 6, 1 / 6])
    np.testing.assert_allclose(bc.alpha, wga.alpha)


@pytest.mark.parametrize(
    ("name", "own", "end"),
    [("wga", {"a": 0.5}, [2.0, 1.0]), ("bc", {"a": 0.5, "beta": 0.3}, [4.0, 0.0])],
)
def test_where_they_converge(name, own, end):
    """f_i = ½‖x − c_i‖²: WGA ends at (c_0 + mean of the peers)/2, BC at c_0."""
    method = built(name, own, eta=0.3, start=(0.0, 0.0), count=3)
    play(method, 200, quadratics([[4.0, 0.0], [0.0, 4.0], [0.0, 0.0]]))
    close(method.parameters, end, atol=1e-5, rtol=0)


def test_partial_participation_counts_those_who_answer_twice():
    """p = .5 and all answer: d = g_0/2 + 2 ḡ/2, and c = β (2 ḡ − g_0)."""
    method = built("bc", {"a": 0.5, "beta": 1.0}, eta=1.0, participation=0.5)
    method.sampled = lambda *_: (0, 1, 2, 3)
    converse(method, 1, sending(G))
    g = torch.tensor(G)
    close(method.parameters, -(g[0] / 2 + g[1:].mean(0)))
    close(method.bias, 2 * g[1:].mean(0) - g[0])


def test_a_round_in_which_no_peer_answers_counts_in_c():
    """ḡ is 0 then: c = −β g_0, as it must for c's mean, and d goes towards g_0 alone."""
    method = built("bc", {"a": 0.5, "beta": 0.25}, start=(0.0,))
    play(method, 1, lambda request: heard(sending([[2.0]] * 4)(request), (0,)))
    close(method.bias, [-0.5])


@pytest.mark.parametrize("name", ["wga", "bc"])
def test_a_target_without_peers_is_alone(name):
    method = built(name, {}, eta=1.0, start=(0.0,), count=1)
    play(method, 2, sending([[1.0]]))
    assert method.alpha.tolist() == [1.0]
    assert float(method.parameters) == -2
