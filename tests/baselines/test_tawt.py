"""TAWT by hand."""

import numpy as np
import torch

from tests.baselines.by_hand import G, close, converse, make, play, replies_of, sending


def built(**keys):
    return make("tawt", (0.0, 0.0, 0.0), [64] * 4, {"rho": 1.0}, eta=1.0, **keys)


def test_known_answer():
    """cos(g_i, g_0) = 1, .991684, −.299572, −.948190; α ∝ e^{2 cos} after two rounds.

    Steps have the α of before: 1/4 each, then ∝ e^{cos} = (.415472, .412032, .113278, .059218).
    """
    method = built()
    asked = play(method, 2, sending(G))
    assert [(r.silos, r.draw) for r in asked] == [((0,), 1), ((0, 1, 2, 3), 0)]
    np.testing.assert_allclose(method.alpha, [0.481195, 0.473258, 0.035771, 0.009776], atol=1e-6)
    first = torch.tensor([0.415472, 0.412032, 0.113278, 0.059218])
    expected = -(torch.full((4,), 0.25) + first) @ torch.tensor(G)
    close(method.parameters, expected, atol=2e-6, rtol=0)
    assert method.epoch_report()["target_gradients"] == 4


def test_the_cosine_is_with_the_fresh_batch():
    """g' = −2 g_3, all send g_3 but silo 1, which sends 0: cosines −1, the target's too, and 0."""
    method, g = built(), torch.tensor(G)
    rows = g[[3] * 4] * torch.tensor([1.0, 0.0, 1.0, 1.0])[:, None]
    converse(method, 1, lambda r: replies_of(r, -2 * g[3:] if r.draw else rows))
    expected = np.exp([-1, 0, -1, -1])
    np.testing.assert_allclose(method.alpha, expected / expected.sum(), rtol=1e-6)


def test_partial_participation_counts_an_answer_twice():
    """p = .5, all answer, cosines 1 with g': the peers' log-odds against the target grow by 1."""
    method = built(participation=0.5)
    method.sampled = lambda *_: (0, 1, 2, 3)
    converse(method, 1, sending([G[0]] * 4))
    np.testing.assert_allclose(np.log(method.alpha[1:] / method.alpha[0]), 1, atol=1e-6)
