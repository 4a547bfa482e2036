"""HeurFedAMP by hand."""

from math import log, sqrt

import numpy as np
import pytest
import torch

from spcacw_flwr.baselines.heurfedamp import attention
from tests.baselines.by_hand import close, converse, make, sending

MODELS = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]])


@pytest.mark.parametrize(("start", "since"), [((0.0, 0.0), False), ((5.0, -3.0), True)])
def test_known_answer(start, since):
    """cos(w_0, w_j) = 1/√2, 0 and σ = √2 ln 3: e^{σ cos} = 3, 1; ξ_00 = .2, ξ_0 = (.2, .6, .2).

    u_0 = .2 (1, 0) + .6 (1, 1) + .2 (0, 2) = (.8, 1); g_0 = (1, 2), λ = 2, η = .1:
    w_0 = (1, 0) − .1 ((1, 2) + 2 (.2, −1)) = (.86, 0). From a start of their own all are shifted.
    """
    own = {"lambda": 2.0, "self-weight": 0.2, "sigma": sqrt(2) * log(3), "since-start": since}
    made = make("heurfedamp", start, (32,) * 3, own, eta=0.1)
    made.models = MODELS + made.parameters
    converse(made, 1, sending([[1.0, 2.0], [0.0, 0.0], [0.0, 0.0]]))
    np.testing.assert_allclose(made.alpha, [0.2, 0.6, 0.2], rtol=1e-6)
    close(made.personal, made.parameters + torch.tensor([0.86, 0.0]))


def test_with_since_start_off_it_does_not_matter_where_models_began():
    """ξ_0 of the models above, begun elsewhere."""
    own = {"self-weight": 0.2, "sigma": sqrt(2) * log(3), "since-start": False}
    made = make("heurfedamp", (5.0, -3.0), own=own)
    made.models = MODELS
    np.testing.assert_allclose(made.attention()[0], [0.2, 0.6, 0.2], rtol=1e-6)


@pytest.mark.parametrize("since", [True, False])
def test_at_the_start_and_without_sigma_peers_count_alike(since):
    """Models that have not moved have no direction since their start."""
    made = make("heurfedamp", (1.0, 2.0), own={"since-start": since})
    np.testing.assert_allclose(made.attention()[0], [0.3, 0.35, 0.35], rtol=1e-6)
    made = make("heurfedamp", (1.0, 2.0), own={"since-start": since, "sigma": 0.0})
    made.models = MODELS
    np.testing.assert_allclose(made.attention()[0], [0.3, 0.35, 0.35])


def test_a_large_sigma_chooses_the_nearest_and_one_silo_has_itself():
    cosines = np.array([[1.0, 0.5, 0.1], [0.5, 1.0, -1.0], [0.1, -1.0, 1.0]])
    np.testing.assert_allclose(attention(cosines, 0.3, 1e6)[0], [0.3, 0.7, 0.0])
    np.testing.assert_array_equal(attention(np.ones((1, 1)), 0.3, 10.0), [[1.0]])
