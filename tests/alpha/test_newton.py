"""Online Newton step: rounds by hand, the published two-step form, blocks, changing constants."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize

from spcacw_flwr.alpha.learners import DIAMETER, ftal_beta
from spcacw_flwr.config.registry import solver_class

UNIT = math.sqrt(1.0 / (64.0 * math.sqrt(2.0)))
"""The g_max at which, with L = 0, G = 8 g_max² = 1/(8 √2) and so β = 1/(8 √2 G) = 1."""


def test_three_rounds_of_two_silos_by_hand():
    learner = solver_class("ons")(2, eta=0.1, gradient_bound=UNIT)
    alpha, plays = np.array([1.0, 0.0]), []
    for H in ([[1 / 2, 0], [0, 1 / 4]], [[0, 0], [0, 2]], [[1, 1], [1, 4]]):
        learner.add(np.array(H), alpha, smoothness=0.0)
        alpha = learner.minimise(alpha).alpha
        plays.append(alpha)
    # β = 1, ε = 1/D² = 1/2. The projection lands at x + δ (1, -1), δ by one equation a round.
    # 1: x = (1, 0), ∇ = (1, 0), A = diag(3/2, 1/2), x - A⁻¹∇ = (1/3, 0):
    #    3/2 (a - 1/3)² + 1/2 (1-a)² is least at a = 1/2.
    # 2: x = (1/2, 1/2), ∇ = (0, 2), A = diag(3/2, 9/2), x - A⁻¹∇ = (1/2, 1/18):
    #    3 (a - 1/2) = 9 (17/18 - a), a = 5/6.
    # 3: x = (5/6, 1/6), ∇ = (2, 3), A = [[11/2, 6], [6, 27/2]]: along (δ, -δ) the quadratic is
    #    δ² (11/2 + 27/2 - 12)/2 = 7δ²/2, ∇ᵀ = -δ: δ = 1/7, a = 5/6 + 1/7 = 41/42.
    assert_allclose(plays, [[1 / 2, 1 / 2], [5 / 6, 1 / 6], [41 / 42, 1 / 42]], atol=1e-12)
    assert_allclose(learner.metric, [[11 / 2, 6], [6, 27 / 2]], rtol=1e-14)


def project(y, A):
    """The point of the simplex next to y in the norm of A, by another solver."""
    A = A / np.abs(A).max()
    return minimize(
        lambda z: (z - y) @ A @ (z - y), np.full(len(y), 1 / len(y)),
        jac=lambda z: 2 * A @ (z - y), bounds=[(0, 1)] * len(y), method="SLSQP",
        constraints={"type": "eq", "fun": lambda z: z.sum() - 1, "jac": np.ones_like},
        options={"ftol": 1e-16, "maxiter": 500},
    ).x  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_agrees_with_the_published_form(seed):
    """Aₜ = εI + Σ∇∇ᵀ, then xₜ - Aₜ⁻¹∇/β, then the projection."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(15, 4, 3))
    costs = rows @ rows.transpose(0, 2, 1)
    learner, alpha = solver_class("ons")(4, eta=0.2, gradient_bound=0.5), np.eye(4)[0]
    beta = ftal_beta(0.2, 3.0, 0.5)
    other, A = alpha, np.eye(4) / (beta * DIAMETER) ** 2
    for H in costs:
        learner.add(H, alpha, smoothness=3.0)
        alpha = learner.minimise(alpha).alpha
        slope = 2 * H @ other
        A += np.outer(slope, slope)
        other = project(other - np.linalg.solve(A, slope) / beta, A)
        assert_allclose(alpha, other, atol=1e-6)


def test_a_block_is_one_round_with_the_summed_gradient():
    """K = 3 rounds: γ/K and KG make β/K, here that of a g_max larger by √3."""
    rows = np.random.default_rng(0).normal(size=(6, 3, 2))
    costs = rows @ rows.transpose(0, 2, 1)
    lazy = solver_class("ons")(3, eta=0.1, gradient_bound=1.0)
    whole = solver_class("ons")(3, eta=0.1, gradient_bound=math.sqrt(3.0))
    one = other = np.eye(3)[0]
    for block in (costs[:3], costs[3:]):
        for H in block:
            lazy.add(H, one, smoothness=2.0)
        whole.add(block.sum(axis=0), other, smoothness=2.0)
        one, other = lazy.minimise(one).alpha, whole.minimise(other).alpha
        assert_allclose(one, other, atol=1e-9)
    assert_allclose(lazy.metric, whole.metric, rtol=1e-12)


def test_a_measured_gradient_bound():
    """Each round has the β of the g_max known by then; the multiple of I that of the last."""
    learner = solver_class("ons")(2, eta=0.1, gradient_bound=None)
    H, alpha = np.array([[2.0, 1.0], [1.0, 4.0]]), np.array([0.5, 0.5])
    with pytest.raises(ValueError, match="gradient_norm"):
        learner.add(H, alpha, smoothness=0.0)
    expected = np.zeros((2, 2))
    for norm, known in ((1.0, 1.0), (3.0, 3.0), (2.0, 3.0)):
        learner.add(H, alpha, smoothness=0.0, gradient_norm=norm)
        slope = 2 * H @ alpha
        expected += ftal_beta(0.1, 0.0, known) * np.outer(slope, slope)
        alpha = learner.minimise(alpha).alpha
    regular = np.eye(2) / (2 * ftal_beta(0.1, 0.0, 3.0))
    assert_allclose(learner.metric, expected + regular, rtol=1e-12)


def test_rounds_without_cost_change_nothing():
    learner, alpha = solver_class("ons")(3, 0.1, None), np.array([0.25, 0.25, 0.5])
    assert_array_equal(learner.minimise(alpha).alpha, alpha)
    learner.add(np.zeros((3, 3)), alpha, smoothness=1.0, gradient_norm=0.0)
    assert_array_equal(learner.minimise(alpha).alpha, alpha)
    assert_array_equal(learner.minimise(None).alpha, alpha)
    assert not learner.metric.any()


def test_one_silo():
    learner = solver_class("ons")(1, 0.1, 1.0)
    learner.add(np.ones((1, 1)), np.ones(1), smoothness=1.0)
    assert_array_equal(learner.minimise(np.ones(1)).alpha, [1.0])


def test_no_cubic_term():
    with pytest.raises(ValueError, match="no cubic term"):
        solver_class("ons")(2, 0.1, 1.0).minimise(None, cubic=1.0)
