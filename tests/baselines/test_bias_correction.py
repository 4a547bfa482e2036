"""Weighted gradient averaging and bias correction by hand, and where they converge."""

import numpy as np
import pytest
import torch

from tests.baselines.by_hand import PLAIN, converse, make, quadratics, replies_of
from tests.baselines.on_digits import distance, trained, weights
from tests.baselines.toy import G


def built(name, own, eta=0.1, start=(0.0, 0.0, 0.0), count=4, **keys):
    return make(name, start, [64] * count, eta=eta, **PLAIN, **{name: own}, **keys)


def test_known_answers():
    """ḡ = (.1, .8, −.15)/3; ḡ − g_0 = (−.966667, .766667, −.3), of which c_2 holds 3/4.

    d_1 = (g_0 + ḡ)/2, d_2 = d_1 − c_1/2 with c_1 = (ḡ − g_0)/2; WGA steps along d_1 twice.
    """
    bc, wga = built("bc", {"a": 0.5, "beta": 0.5}), built("wga", {"a": 0.5})
    for t in (1, 2):
        before = bc.parameters.clone()
        for method in (bc, wga):
            converse(method, t, lambda request: replies_of(request, G))
    d = (before - bc.parameters) / 0.1
    torch.testing.assert_close(d, torch.tensor([0.758333, -0.308333, 0.175]), atol=1e-6, rtol=0)
    for found, expected in [
        (bc.bias, [-0.725, 0.575, -0.225]),
        (bc.parameters, [-0.1275, 0.0425, -0.0275]),
        (wga.parameters, [-0.103333, 0.023333, -0.02]),
    ]:
        torch.testing.assert_close(found, torch.tensor(expected), atol=1e-6, rtol=0)
    np.testing.assert_allclose(wga.alpha, [0.5, 1 / 6, 1 / 6, 1 / 6])
    np.testing.assert_allclose(bc.alpha, wga.alpha)


def test_where_they_converge():
    """f_i = ½‖x − c_i‖²: WGA ends at (c_0 + mean of the peers)/2, BC at c_0."""
    centres = torch.tensor([[4.0, 0.0], [0.0, 4.0], [0.0, 0.0]])
    for name, own, end in (
        ("wga", {"a": 0.5}, [2.0, 1.0]), ("bc", {"a": 0.5, "beta": 0.3}, [4.0, 0.0])
    ):  # fmt: skip
        method = built(name, own, eta=0.3, start=(0.0, 0.0), count=3)
        for t in range(1, 201):
            converse(method, t, quadratics(centres))
        torch.testing.assert_close(method.parameters, torch.tensor(end), atol=1e-5, rtol=0)


def test_partial_participation_counts_those_who_answer_twice():
    """p = .5 and all answer: d = g_0/2 + 2 ḡ/2, and c = β (2 ḡ − g_0)."""
    method = built("bc", {"a": 0.5, "beta": 1.0}, eta=1.0, participation=0.5)
    replies = replies_of(type("R", (), {"silos": (0, 1, 2, 3)}), G)
    method.fold(None, replies)
    g = torch.tensor(G)
    torch.testing.assert_close(method.parameters, -(g[0] / 2 + g[1:].mean(0)))
    torch.testing.assert_close(method.bias, 2 * g[1:].mean(0) - g[0])


@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_at_the_ends_of_their_keys(participation):
    """Without peers both are Local; with all alike, FedAvg; without β BC is WGA."""
    asked = [
        ("local", {}), ("fedavg", {}), ("wga", {"a": 0.0}), ("bc", {"a": 0.0}), ("wga", {"a": 0.5}),
        ("bc", {"a": 0.5, "beta": 0.0}), ("bc", {"a": 0.5, "beta": 0.1}),
    ]  # fmt: skip
    runs = {
        (name, *own.values()): trained(
            name, participation=participation, **{name: own} if own else {}
        )
        for name, own in asked
    }
    for name in ("wga", "bc"):
        assert distance(runs[name, 0.0], runs["local",]) < 1e-5
    assert torch.equal(weights(runs["bc", 0.5, 0.0]), weights(runs["wga", 0.5]))
    assert distance(runs["bc", 0.5, 0.1], runs["wga", 0.5]) > 0.1
    if participation == 1:
        assert distance(trained("wga", wga={"a": 6 / 7}), runs["fedavg",]) < 1e-4


def test_a_target_without_peers_is_alone():
    for name in ("wga", "bc"):
        method = built(name, {}, eta=1.0, start=(0.0,), count=1)
        for t in (1, 2):
            converse(method, t, lambda request: replies_of(request, [[1.0]]))
        assert method.alpha.tolist() == [1.0]
        assert float(method.parameters) == -2
