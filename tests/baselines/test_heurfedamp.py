"""HeurFedAMP by hand."""

from math import log, sqrt

import numpy as np
import pytest
import torch

from tests.baselines.by_hand import close, converse, make, sending

MODELS = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]])


@pytest.mark.parametrize(
    ("start", "since"), [((0.0, 0.0), False), ((5.0, -3.0), True), ((5.0, -3.0), False)]
)
def test_known_answer(start, since):
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
