"""TAWT by hand, at the end of its key, and on digits."""

import numpy as np
import torch

from spcacw_flwr.baselines.tawt import cosines
from tests.baselines.by_hand import PLAIN, converse, make, replies_of
from tests.baselines.on_digits import distance, trained
from tests.baselines.toy import G


def built(rho=1.0, **keys):
    return make("tawt", (0.0, 0.0, 0.0), [64] * 4, eta=1.0, **PLAIN, tawt={"rho": rho}, **keys)


def test_known_answer():
    """cos(g_i, g_0) = 1, .991684, −.299572, −.948190; α ∝ e^{2 cos} after two rounds.

    Steps have the α of before: 1/4 each, then ∝ e^{cos} = (.415472, .412032, .113278, .059218).
    """
    method = built()
    for t in (1, 2):
        asked = converse(method, t, lambda r: replies_of(r, [G[i] for i in r.silos]))
    assert [(r.silos, r.draw) for r in asked] == [((0,), 1), ((0, 1, 2, 3), 0)]
    np.testing.assert_allclose(method.alpha, [0.481195, 0.473258, 0.035771, 0.009776], atol=1e-6)
    first = torch.tensor([0.415472, 0.412032, 0.113278, 0.059218])
    expected = -(torch.full((4,), 0.25) + first) @ torch.tensor(G)
    torch.testing.assert_close(method.parameters, expected, atol=2e-6, rtol=0)
    assert method.epoch_report()["target_gradients"] == 4


def test_the_cosine_is_with_the_fresh_batch():
    """g' = −g_3: silo 3's cosine is −1 although its batch and the target's agree."""
    method, same = built(), [G[3]] * 4

    def silo(request):
        rows = [[-x for x in G[3]]] if request.draw else same
        return replies_of(request, rows)

    converse(method, 1, silo)
    np.testing.assert_allclose(method.alpha, [0.25] * 4)  # all alike, the target too
    found = cosines(torch.tensor([G[0], [0.0, 0.0, 0.0]]), torch.tensor(G[0]) * 3)
    np.testing.assert_allclose(found, [1, 0], atol=1e-6)


def test_partial_participation_counts_an_answer_twice():
    """p = .5, all answer, cosines 1 with g': the peers' log-odds against the target grow by 1."""
    method = built(participation=0.5)
    method.fresh = torch.tensor(G[0])
    replies = replies_of(type("R", (), {"silos": (0, 1, 2, 3)}), [G[0]] * 4)
    method.learn(type("R", (), {"round": 1}), replies)
    np.testing.assert_allclose(np.log(method.alpha[1:] / method.alpha[0]), 1, atol=1e-6)


def test_on_digits_it_finds_the_cluster_and_without_rho_it_is_fedavg():
    """Silos 0, 1 and 2 share the target's labels."""
    alpha = trained("tawt", 24).alpha
    assert alpha[:3].sum() > 0.8
    assert alpha[1:3].min() > 2 * alpha[3:].max()
    assert distance(trained("tawt", tawt={"rho": 0.0}), trained("fedavg")) < 1e-4
