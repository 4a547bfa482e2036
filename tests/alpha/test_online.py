"""ONS and EG: rounds by hand, the published forms, blocks, changing constants, extremes."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from spcacw_flwr.alpha import ExponentiatedGradient
from spcacw_flwr.alpha.learners import DIAMETER, ftal_beta
from spcacw_flwr.config.registry import solver_class
from tests.alpha.test_learners import UNIT
from tests.alpha.test_solver import slsqp

HALVES = np.array([0.5, 0.5])


def test_ons_three_rounds_of_two_silos_by_hand():
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
    return slsqp(lambda z: (z - y) @ A @ (z - y), lambda z: 2 * A @ (z - y), len(y), ftol=1e-16)


@pytest.mark.parametrize("seed", range(5))
def test_ons_agrees_with_the_published_form(seed):
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


def test_ons_with_a_measured_gradient_bound():
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


def test_ons_rounds_without_cost_change_nothing():
    learner, alpha = solver_class("ons")(3, 0.1, None), np.array([0.25, 0.25, 0.5])
    assert_array_equal(learner.minimise(alpha).alpha, alpha)
    learner.add(np.zeros((3, 3)), alpha, smoothness=1.0, gradient_norm=0.0)
    assert_array_equal(learner.minimise(alpha).alpha, alpha)
    assert_array_equal(learner.minimise(None).alpha, alpha)
    assert not learner.metric.any()


def test_ons_of_one_silo():
    learner = solver_class("ons")(1, 0.1, 1.0)
    learner.add(np.ones((1, 1)), np.ones(1), smoothness=1.0)
    assert_array_equal(learner.minimise(np.ones(1)).alpha, [1.0])


def sigmoid(x):
    return 1.0 / (1.0 + math.exp(-x))


def test_eg_three_rounds_of_two_silos_by_hand():
    learner = solver_class("eg")(2, eta=0.1, gradient_bound=None)
    # 1, played at e₀: ∇ = (1, 0), r = 1/2, η = 2 √ln 2, α₀ : α₁ = exp(-2 √ln 2) : 1.
    learner.add(np.diag([0.5, 3.0]), np.array([1.0, 0.0]), smoothness=9.0)
    first = learner.minimise(np.array([1.0, 0.0])).alpha
    assert_allclose(first[0], sigmoid(-2 * math.sqrt(math.log(2))), rtol=1e-14)
    # 2, played at (1/2, 1/2): ∇ = (1, 4), Σ∇ = (2, 4), Σr² = 1/4 + 9/4 = 5/2.
    learner.add(np.diag([1.0, 4.0]), HALVES, smoothness=9.0)
    second = learner.minimise(HALVES).alpha
    assert_allclose(second[0], sigmoid(2 * math.sqrt(math.log(2) / 2.5)), rtol=1e-14)
    # 3, at (1/4, 3/4): ∇ = 2 (1/4 + 6/4, 2/4 + 12/4) = (7/2, 7), Σ∇ = (11/2, 11),
    #    r² = 49/16, Σr² = 89/16.
    learner.add(np.array([[1.0, 2.0], [2.0, 4.0]]), np.array([0.25, 0.75]), smoothness=9.0)
    third = learner.minimise(HALVES).alpha
    assert_allclose(third[0], sigmoid(5.5 * math.sqrt(math.log(2) * 16 / 89)), rtol=1e-14)


def test_eg_is_the_published_recursion_while_the_step_is_constant():
    """αₜ₊₁ ∝ αₜ exp(-η∇ₜ): after a first round with a large r the step hardly falls."""
    rng = np.random.default_rng(0)
    learner = ExponentiatedGradient(4)
    learner.add(np.diag([1e6, 0.0, 0.0, 0.0]), np.eye(4)[0])  # ∇ = (2e6, 0, 0, 0), r = 1e6
    alpha, eta = learner.minimise(None).alpha, math.sqrt(math.log(4)) / 1e6
    for _ in range(5):
        rows = 20 * rng.normal(size=(4, 3))
        H = rows @ rows.T  # η∇ is some 1e-4, and η falls by some 1e-8 of itself
        learner.add(H, alpha)
        expected = alpha * np.exp(-eta * 2 * H @ alpha)
        moved = learner.minimise(None).alpha
        assert_allclose(moved, expected / expected.sum(), rtol=1e-6)
        assert np.abs(moved / alpha - 1).max() > 2e-5
        alpha = moved


def test_eg_what_all_gradients_share_does_not_matter():
    """cᵀα with c = 5 for all is constant on the simplex: H + (5/2)(11ᵀ) adds 5 to ∇."""
    plain, shifted = ExponentiatedGradient(3), ExponentiatedGradient(3)
    for H in (np.diag([1.0, 2.0, 3.0]), np.diag([3.0, 1.0, 0.0])):
        plain.add(H, np.full(3, 1 / 3))
        shifted.add(H + 2.5, np.full(3, 1 / 3))
        assert_allclose(plain.minimise(None).alpha, shifted.minimise(None).alpha, rtol=1e-12)


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300])
def test_eg_units_do_not_matter_and_nothing_overflows(scale):
    learner, plain = ExponentiatedGradient(3), ExponentiatedGradient(3)
    for _ in range(4):
        with np.errstate(all="raise", under="ignore"):
            learner.add(scale * np.diag([1.0, 2.0, 3.0]), np.eye(3)[2])
            alpha = learner.minimise(None).alpha
        plain.add(np.diag([1.0, 2.0, 3.0]), np.eye(3)[2])
        assert_allclose(alpha, plain.minimise(None).alpha, rtol=1e-12)
        assert alpha[2] < alpha[0] == alpha[1]


def test_eg_without_any_difference_it_stays_uniform():
    learner, start = ExponentiatedGradient(4), np.eye(4)[0]
    assert_array_equal(learner.minimise(start).alpha, np.full(4, 0.25))
    learner.add(np.ones((4, 4)), start)
    assert_array_equal(learner.minimise(start).alpha, np.full(4, 0.25))
    single = ExponentiatedGradient(1)
    single.add(np.ones((1, 1)), np.ones(1))
    assert_array_equal(single.minimise(None).alpha, [1.0])


@pytest.mark.parametrize("name", ["ons", "eg"])
def test_no_cubic_term(name):
    with pytest.raises(ValueError, match="no cubic term"):
        solver_class(name)(2, 0.1, 1.0).minimise(None, cubic=1.0)


@pytest.mark.parametrize(("name", "bound", "state"), [("ons", 3.0, "metric"), ("eg", 1.0, "total")])
def test_a_block_is_one_round_with_the_summed_gradient(name, bound, state):
    """K = 3 rounds: of ONS, γ/K and KG make β/K, here that of a g_max larger by √3."""
    rows = np.random.default_rng(0).normal(size=(6, 3, 2))
    costs = rows @ rows.transpose(0, 2, 1)
    lazy, whole = (solver_class(name)(3, 0.1, math.sqrt(g)) for g in (1.0, bound))
    one = other = np.eye(3)[0]
    for block in (costs[:3], costs[3:]):
        for H in block:
            lazy.add(H, one, smoothness=2.0)
        whole.add(block.sum(axis=0), other, smoothness=2.0)
        one, other = lazy.minimise(one).alpha, whole.minimise(other).alpha
        assert_allclose(one, other, atol=1e-9)
    assert_allclose(getattr(lazy, state), getattr(whole, state), rtol=1e-12)
