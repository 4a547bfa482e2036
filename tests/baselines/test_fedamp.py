"""FedAMP and HeurFedAMP by hand: ξ, the pull, and what keeps both from going wrong."""

from math import exp, log, sqrt

import numpy as np
import pytest
import torch

from spcacw_flwr.config.declare import SpcacwError
from tests.baselines.by_hand import G, W, close, converse, make, play, sending

PUBLISHED = {"sigma": 0.5, "alpha": 0.2, "lambda": 1.0}
XI = [0.349329, 0.399041, 0.202647, 0.048983]


def test_known_answer_of_the_step():
    """Unsquared norms, a missing 1/σ or a 2 in the penalty would each change it."""
    made = make("fedamp", (0.0,) * 3, (32,) * 4, PUBLISHED, eta=0.1)
    made.models = torch.tensor(W)
    asked = converse(made, 1, sending(G))
    close(asked[0].points, W)
    close(made.personal, [0.032274, -0.096020, 0.230816], atol=1e-6, rtol=0)
    # An epoch is one round of 32 samples: the weights are noted.
    np.testing.assert_allclose(made.alpha, XI, atol=1e-6)
    assert made.alpha_round == 1


def test_automatic_sigma_by_hand():
    """Models 0, 1, 3: squared distances 1, 9, 4, median 4; σ is half of it: ξ_0j = ½ e^{−x/2}.

    α = 1: pull_0 = (λ/α)(w_0 − u_0) = −2 (½ e^{−1/2} · 1 + ½ e^{−9/2} · 3); g = 0, η = .1.
    """
    made = make("fedamp", (0.0,), own={"lambda": 2.0, "sigma-share": 0.5}, eta=0.1)
    made.models = torch.tensor([[0.0], [1.0], [3.0]])
    converse(made, 2, sending(torch.zeros(3, 1)))
    close(made.personal, [0.1 * (exp(-1 / 2) + 3 * exp(-9 / 2))])
    assert made.epoch_report()["sigma"] == 2.0
    assert made.alpha[0] == pytest.approx(1 - (exp(-1 / 2) + exp(-9 / 2)) / 2)


def test_equal_models_attract_nobody_and_silos_that_have_not_moved_do_not_count():
    """The squared distances are 0, 0, 0, and then 0, 4, 4."""
    made = make("fedamp", (0.0,), own={"sigma-share": 1.0})
    for models, sigma in (([1.0, 1.0, 1.0], 1.0), ([0.0, 0.0, 2.0], 4.0)):
        made.models = torch.tensor(models)[:, None]
        before = made.models.clone()
        converse(made, 1, sending(torch.zeros(3, 1)))
        assert made.sigma == sigma
        assert torch.equal(made.models, before) == (sigma == 1)


@pytest.mark.parametrize("own", [{}, PUBLISHED | {"sigma": 1.0}])
def test_alpha_cancels_in_the_step_and_not_in_the_weights(own):
    runs = [make("fedamp", own=own | {"alpha": alpha}, eta=0.05) for alpha in (0.1, 0.3)]
    for run in runs:
        play(run, 2, sending([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]]))
    close(runs[0].models, runs[1].models)
    peers = [1 - run.alpha[0] for run in runs]
    assert peers[1] == pytest.approx(3 * peers[0])


@pytest.mark.parametrize(("own", "silos", "most"), [(PUBLISHED, 4, 0.167), ({"alpha": 1.1}, 3, 1)])
def test_own_weights_are_never_negative(own, silos, most):
    """Published values, but all models start alike: 1 − 3 · .2/.5 < 0."""
    made = make("fedamp", sizes=(32,) * silos, own=own)
    with pytest.raises(SpcacwError, match=rf"at most {most}\.$"):
        converse(made, 1, sending(torch.ones(silos, 2)))


def test_the_default_never_makes_them_negative():
    assert make("fedamp", sizes=(32,) * 50).attention().min() > -1e-9


MODELS = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]])


@pytest.mark.parametrize(
    ("start", "since"), [((0.0, 0.0), False), ((5.0, -3.0), True), ((5.0, -3.0), False)]
)
def test_known_answer_of_heurfedamp(start, since):
    """cos(w_0, w_j) = 1/√2, 0 and σ = √2 ln 3: e^{σ cos} = 3, 1; ξ_00 = .2, ξ_0 = (.2, .6, .2).

    u_0 = .2 (1, 0) + .6 (1, 1) + .2 (0, 2) = (.8, 1); g_0 = (1, 2), λ = 2, η = .1:
    w_0 = (1, 0) − .1 ((1, 2) + 2 (.2, −1)) = (.86, 0). Cosines since a start of their own are
    those of models that it shifts; cosines of the models do not see where they began.
    """
    own = {"lambda": 2.0, "self-weight": 0.2, "sigma": sqrt(2) * log(3), "since-start": since}
    made = make("heurfedamp", start, (32,) * 3, own, eta=0.1)
    shift = since * made.parameters
    made.models = MODELS + shift
    converse(made, 1, sending([[1.0, 2.0], [0.0, 0.0], [0.0, 0.0]]))
    np.testing.assert_allclose(made.alpha, [0.2, 0.6, 0.2], rtol=1e-6)
    close(made.personal, shift + torch.tensor([0.86, 0.0]))


@pytest.mark.parametrize("since", [True, False])
def test_at_the_start_and_without_sigma_peers_count_alike(since):
    """Models that have not moved have no direction since their start."""
    made = make("heurfedamp", (1.0, 2.0), own={"since-start": since})
    np.testing.assert_allclose(made.attention()[0], [0.3, 0.35, 0.35], rtol=1e-6)
    made = make("heurfedamp", (1.0, 2.0), own={"since-start": since, "sigma": 0.0})
    made.models = MODELS
    np.testing.assert_allclose(made.attention()[0], [0.3, 0.35, 0.35])


def test_a_large_sigma_chooses_the_nearest_and_one_silo_has_itself():
    made = make("heurfedamp", own={"sigma": 1e6})
    made.models = MODELS
    np.testing.assert_allclose(made.attention()[0], [0.3, 0.7, 0.0])
    np.testing.assert_array_equal(make("heurfedamp", sizes=[32]).attention(), [[1.0]])
