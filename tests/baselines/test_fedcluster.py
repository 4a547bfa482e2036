"""Federated Clustering by hand."""

import numpy as np
import pytest
import torch

from tests.baselines.by_hand import G, close, converse, heard, make, play, replies_of, sending


def within(tau, inner_rounds=1):
    return {"inner-rounds": inner_rounds, "threshold": "fixed", "tau": tau}


@pytest.mark.parametrize(
    ("inner_rounds", "alpha", "centre"),
    [
        (1, [0.75, 0.25, 0, 0], [0.975, -0.475, 0.275]),
        (3, [0.5625, 0.4375, 0, 0], [0.95625, -0.45625, 0.29375]),
    ],
)
def test_known_answer(inner_rounds, alpha, centre):
    """τ = .5; distances from g_0: 0, √.03 = .17, 1.75, 2.20, so silos 0 and 1 are within.

    Each inner round is α ← (1, 1, 0, 0)/4 + (1 − 2/4) α: α_0 = 1, .75, .625, .5625.
    """
    method = make("fedcluster", [0.0] * 3, [64] * 4, within(0.5, inner_rounds), eta=1.0)
    weights, found = method.aggregate(torch.tensor(G, dtype=torch.float64), 0)
    np.testing.assert_allclose(weights, alpha, atol=1e-12)
    np.testing.assert_allclose(found, centre, atol=1e-12)
    play(method, 2, sending(G))
    close(method.parameters, -2 * torch.tensor(centre))
    np.testing.assert_allclose(method.alpha, alpha, atol=1e-12)
    assert method.alpha_round == 2


def test_the_next_inner_round_looks_from_the_new_centre():
    """Gradients 0, 1, 1.25, τ = 1. From 0 silos 0 and 1 are near: α = (⅔, ⅓, 0), centre ⅓.

    From there all are, and α ← (1, 1, 1)/3 + (1 − 3/3) α.
    """
    method = make("fedcluster", [0.0], [64] * 3, within(1.0, 2))
    weights, _ = method.aggregate(torch.tensor([[0.0], [1.0], [1.25]]), 0)
    np.testing.assert_allclose(weights, [1 / 3] * 3)


@pytest.mark.parametrize(
    ("silos", "quantile", "near"),
    [(7, 0.2, 2), (7, 0.4, 3), (20, 0.2, 5), (4, 0.2, 2), (4, 0.0, 1), (1, 0.2, 1)],
)
def test_the_quantile_counts_the_silo_itself_and_keeps_the_one_that_gives_it(silos, quantile, near):
    """Gradients at 0, 1, 2, …: τ is the distance at place ⌊qM⌋, and ⌊qM⌋ + 1 silos are within.

    With the MNIST code's factor .99 the first case would hold the target alone: Local.
    """
    own = {"inner-rounds": 1, "quantile": quantile}
    method = make("fedcluster", [0.0], [64] * silos, own)
    weights, centre = method.aggregate(torch.arange(float(silos))[:, None], 0)
    expected = np.zeros(silos)
    expected[1:near] = 1 / silos
    expected[0] = 1 - (near - 1) / silos
    np.testing.assert_allclose(weights, expected)
    assert float(centre) == pytest.approx(sum(range(near)) / silos)


def test_the_centre_is_the_targets_row_whichever_silos_answered():
    """The target is silo 2; silo 0 is silent. Rows 9, 5 and 0 are those of silos 1, 2 and 3."""
    method = make("fedcluster", [0.0], [64] * 4, within(1.0), target=2, eta=1.0)
    rows = [[5.0], [9.0], [5.0], [0.0]]
    play(method, 2, lambda request: heard(replies_of(request, rows), (1, 2, 3)))
    assert float(method.parameters) == -10
    np.testing.assert_array_equal(method.alpha, [0, 0, 1, 0])


def test_what_is_logged_is_the_mean_of_the_epoch_alone():
    """K = 2 rounds: within τ are both silos in rounds 1 and 3, the target alone in 2 and 4 to 6."""
    method = make("fedcluster", [0.0], [64, 64], within(1.0))
    logged = []
    for t in range(1, 7):
        converse(method, t, sending([[0.0], [1.0 if t in (1, 3) else 9.0]]))
        logged.append(method.alpha.tolist())
    assert logged[1::2] == [[0.75, 0.25], [0.75, 0.25], [1, 0]]
