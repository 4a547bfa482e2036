"""FedAMP by hand: ξ, the pull, and what keeps both from going wrong."""

import math

import numpy as np
import pytest
import torch

from spcacw_flwr.baselines.fedamp import attention, squared_distances
from spcacw_flwr.config.declare import SpcacwError
from tests.baselines.by_hand import PLAIN, converse, make, replies_of
from tests.baselines.on_digits import trained

W = [[0.10, -0.20, 0.30], [0.12, -0.18, 0.28], [0.50, 0.10, 0.00], [-0.40, 0.60, -0.10]]
G = [[1.00, -0.50, 0.25], [0.90, -0.40, 0.35], [0.20, 0.80, -0.60], [-1.00, 0.40, 0.10]]
PUBLISHED = {"sigma": 0.5, "alpha": 0.2, "lambda": 1.0}


def test_known_answer_of_the_weights():
    models = torch.tensor(W, dtype=torch.float64)
    squared = squared_distances(models)
    np.testing.assert_allclose(squared[0], [0, 0.0012, 0.34, 1.05], atol=1e-12)
    xi = attention(squared, alpha=0.2, sigma=0.5)
    np.testing.assert_allclose(xi[0], [0.349329, 0.399041, 0.202647, 0.048983], atol=1e-6)
    np.testing.assert_allclose(xi.sum(axis=1), 1)
    np.testing.assert_allclose(xi[0] @ models.numpy(), [0.164548, -0.092039, 0.211632], atol=1e-6)


def test_known_answer_of_the_step():
    """Unsquared norms, a missing 1/σ or a 2 in the penalty would each change it."""
    made = make("fedamp", start=(0.0,) * 3, sizes=(32,) * 4, eta=0.1, fedamp=PUBLISHED, **PLAIN)
    made.models = torch.tensor(W)
    asked = converse(made, 1, lambda r: replies_of(r, G))
    torch.testing.assert_close(asked[0].points, torch.tensor(W))
    expected = torch.tensor([0.032274, -0.096020, 0.230816])
    torch.testing.assert_close(made.personal, expected, atol=1e-6, rtol=0)
    # An epoch is one round of 32 samples: the weights are noted.
    np.testing.assert_allclose(made.alpha, [0.349329, 0.399041, 0.202647, 0.048983], atol=1e-6)
    assert made.alpha_round == 1


def test_automatic_sigma_by_hand():
    """Models 0, 1, 3: squared distances 1, 9, 4, median 4; σ is half of it: ξ_0j = ½ e^{−x/2}.

    α = 1: pull_0 = (λ/α)(w_0 − u_0) = −2 (½ e^{−1/2} · 1 + ½ e^{−9/2} · 3); g = 0, η = .1.
    """
    keys = {"lambda": 2.0, "sigma-share": 0.5}
    made = make("fedamp", start=(0.0,), eta=0.1, fedamp=keys, **PLAIN)
    made.models = torch.tensor([[0.0], [1.0], [3.0]])
    converse(made, 2, lambda r: replies_of(r, torch.zeros(3, 1)))
    pulled = 0.1 * (math.exp(-1 / 2) + 3 * math.exp(-9 / 2))
    torch.testing.assert_close(made.personal, torch.tensor([pulled]))
    assert made.epoch_report()["sigma"] == 2.0
    assert made.alpha[0] == pytest.approx(1 - (math.exp(-1 / 2) + math.exp(-9 / 2)) / 2)


def test_equal_models_attract_nobody_and_silos_that_have_not_moved_do_not_count():
    """The squared distances are 0, 0, 0, and then 0, 4, 4."""
    made = make("fedamp", start=(0.0,), fedamp={"sigma-share": 1.0})
    for models, sigma in (([1.0, 1.0, 1.0], 1.0), ([0.0, 0.0, 2.0], 4.0)):
        made.models = torch.tensor(models)[:, None]
        pull = made.pull((0, 1, 2))
        assert made.sigma == sigma
        assert pull.any() == (sigma == 4)


@pytest.mark.parametrize("fedamp", [{}, PUBLISHED | {"sigma": 1.0}])
def test_alpha_cancels_in_the_step_and_not_in_the_weights(fedamp):
    runs = {}
    for alpha in (0.1, 0.3):
        runs[alpha] = make("fedamp", eta=0.05, fedamp=fedamp | {"alpha": alpha}, **PLAIN)
        for t in (1, 2):
            converse(runs[alpha], t, lambda r: replies_of(r, [[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]]))
    torch.testing.assert_close(runs[0.1].models, runs[0.3].models)
    peers = [1 - run.alpha[0] for run in runs.values()]
    assert peers[1] == pytest.approx(3 * peers[0])


def test_own_weights_are_never_negative():
    """Published values, but all models start alike: 1 − 3 · .2/.5 < 0."""
    made = make("fedamp", sizes=(32,) * 4, fedamp=PUBLISHED)
    with pytest.raises(SpcacwError, match=r"at most 0\.167\.$"):
        converse(made, 1, lambda r: replies_of(r, torch.ones(4, 2)))
    made = make("fedamp", fedamp={"alpha": 1.1})
    with pytest.raises(SpcacwError, match=r"at most 1\.$"):
        converse(made, 1, lambda r: replies_of(r, torch.ones(3, 2)))
    made = make("fedamp", sizes=(32,) * 50)  # the default, many silos
    converse(made, 1, lambda r: replies_of(r, torch.ones(50, 2)))
    assert made.xi.min() > -1e-9


def test_a_pull_that_overshoots_is_refused():
    with pytest.raises(SpcacwError, match=r"η λ/α_k = 1 must be below 1"):
        make("fedamp", eta=0.1, fedamp={"lambda": 10.0})


def test_a_trained_net_does_not_make_it_local_and_neighbours_are_found():
    """Automatic σ keeps peers in play; those of the true cluster (0, 1, 2) count most."""
    alpha = trained("fedamp", 8).alpha
    assert alpha[0] < 0.9
    assert alpha[1:3].min() > 4 * alpha[3:].max()  # σ = the median itself: 2
