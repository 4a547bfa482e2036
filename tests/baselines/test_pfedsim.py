"""pFedSim: bodies from those whose classifiers look alike, heads of one's own."""

import math

import numpy as np
import pytest
import torch

from spcacw_flwr.baselines.pfedsim import aggregation_weights
from tests.baselines.by_hand import close, converse, make, quadratics, shaped

SELF = -math.log(1 - 0.9999)
CENTRES = torch.tensor([[2.0, 1.0, 0.0], [4.0, 1.0, 2.0], [-2.0, -3.0, 0.0]])
"""After one half step from (0; 1, 0): (1; 1, 0), (2; 1, 1), (−1; −1, 0)."""
SILOS = quadratics(CENTRES)


def simulated(warmup):
    own, layout = {"warmup": warmup, "head-tensors": 1}, shaped(body=(1,), head=(1, 2))
    return make("pfedsim", [0.0, 1.0, 0.0], own=own, layout=layout, eta=0.5, epochs=1)


def test_weights_by_hand():
    """Classes' cosines of 0 and 1: 1, 0, mean ½, weight −ln ½; of 0 and 2: −1, −1, cut to 0."""
    heads = np.array([[[1.0, 0], [0, 3]], [[2.0, 0], [5, 0]], [[-1.0, 0], [0, -1]]])
    half = math.log(2)
    own, other = SELF / (SELF + half), half / (SELF + half)
    expected = [[own, other, 0], [other, own, 0], [0, 0, 1]]
    np.testing.assert_allclose(aggregation_weights(heads), expected, atol=1e-12)


def test_equal_heads_and_empty_rows_are_finite():
    """The trap: −ln(1 − 1). Bounded as oneself is, equal heads give equal weights."""
    np.testing.assert_allclose(aggregation_weights(np.ones((4, 3, 2))), np.full((4, 4), 0.25))
    nearly = np.ones((2, 1, 2)) * [[[1.0]], [[1 + 1e-9]]]
    np.testing.assert_allclose(aggregation_weights(nearly), np.full((2, 2), 0.5))
    np.testing.assert_array_equal(aggregation_weights(np.zeros((2, 3, 2))), np.eye(2))


def test_two_rounds_by_hand():
    """No warm-up, η = .5, f_i = ½‖w − c_i‖²: a step is half way to c_i.

    Round 1: heads are equal, bodies too, so w_i = (w + c_i)/2.
    Round 2: cos(h_0, h_1) = 1/√2, cos(h_0, h_2) = −1 → 0: a = −ln(1 − 1/√2), and u_0 has the body
    (SELF·1 + a·2)/(SELF + a) and its own head.
    """
    method = simulated(0.0)
    converse(method, 1, SILOS)
    close(method.bodies[:, 0], [1.0, 2.0, -1.0])
    close(method.heads, [[1.0, 0.0], [1.0, 1.0], [-1.0, 0.0]])
    (asked,) = converse(method, 2, SILOS)
    a = -math.log(1 - 1 / math.sqrt(2))
    body = (SELF + 2 * a) / (SELF + a)
    close(asked.points[0], [body, 1.0, 0.0])
    close(method.personal, [(body + 2) / 2, 1.0, 0.0])
    assert asked.floats() == (1, 3)
    np.testing.assert_allclose(method.alpha, [SELF / (SELF + a), a / (SELF + a), 0], atol=1e-7)
    assert method.alpha_round == 2


def test_after_the_warm_up_every_silo_starts_from_the_global_model():
    """One epoch of two rounds, half of them FedAvg with shares (.5, .25, .25).

    (0; 1, 0) → half way to the mean centre (1.5; 0, .5): (.75; .5, .25).
    """
    method = simulated(0.5)
    (warm,) = converse(method, 1, SILOS)
    assert warm.floats() == (3, 3)
    reached = torch.tensor([0.75, 0.5, 0.25])
    close(method.personal, reached)
    (asked,) = converse(method, 2, SILOS)
    close(asked.points, reached.repeat(3, 1))
    close(method.personal, (reached + CENTRES[0]) / 2)
    assert method.alpha == pytest.approx([1 / 3] * 3)


def test_one_who_does_not_take_part_keeps_its_model():
    """Round 1 as above. Silo 2 is like no other: in round 2 it goes half way from its own model."""
    method = simulated(0.0)
    converse(method, 1, SILOS)
    method.sampled = lambda round_: (0, 2)
    (asked,) = converse(method, 2, SILOS)
    assert asked.silos == (0, 2)
    assert method.bodies[1:].tolist() == [[2.0], [-1.5]]
    assert method.heads.tolist() == [[1.0, 0.0], [1.0, 1.0], [-2.0, 0.0]]


@pytest.mark.parametrize("tensors", [2, 3, 4])
def test_the_classifier_is_the_last_matrix_of_the_head(tensors):
    layout = shaped(body=(3,), a=(4, 3), b=(4,), c=(2, 4), d=(2,))
    own = {"head-tensors": tensors}
    assert make("pfedsim", [0.0] * layout.size, own=own, layout=layout).classifier == "c"
