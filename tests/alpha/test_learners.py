"""Follow the leader and its approximate form: surrogates by hand, bounds, equal answers."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from spcacw_flwr.alpha import cost, minimise
from spcacw_flwr.alpha.learners import ftal_beta
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.registry import solver_class

TARGET_ALONE = np.array([1.0, 0.0])
HALVES = np.array([0.5, 0.5])
FIRST = np.array([[2.0, 1.0], [1.0, 4.0]])
SECOND = np.array([[1.0, 0.0], [0.0, 3.0]])


def surrogate(beta, H, played, x):
    slope = 2.0 * H @ played
    ahead = slope @ (x - played)
    return played @ H @ played + ahead + 0.5 * beta * ahead**2


def test_ftal_two_surrogates_by_hand():
    learner = solver_class("ftal")(2, eta=0.5, gradient_bound=1.0)
    # L = 4: G = 1/γ = 8 + 2 * 4 * 0.5 = 12; β = min(1 / (4 * 12 √2), 1/12) / 2 = 1 / (96 √2).
    beta = 1.0 / (96.0 * math.sqrt(2.0))
    learner.add(FIRST, TARGET_ALONE, smoothness=4.0)
    # ∇ = 2 (2, 1) = (4, 2), ∇ᵀx = 4: A = β/2 [[16, 8], [8, 4]], c = (1 - 4β) (4, 2).
    assert_allclose(learner.quadratic, beta * np.array([[8.0, 4.0], [4.0, 2.0]]), rtol=1e-15)
    assert_allclose(learner.linear, (1 - 4 * beta) * np.array([4.0, 2.0]), rtol=1e-15)
    # (4a + 2(1-a)) falls with a: the linear term wins, all weight on silo 1.
    assert learner.minimise(TARGET_ALONE).alpha.tolist() == [0.0, 1.0]
    learner.add(SECOND, HALVES, smoothness=4.0)
    # ∇ = (1, 3), ∇ᵀx = 2: A += β/2 [[1, 3], [3, 9]], c += (1 - 2β) (1, 3).
    assert_allclose(learner.quadratic, beta * np.array([[8.5, 5.5], [5.5, 6.5]]), rtol=1e-15)
    expected = (1 - 4 * beta) * np.array([4.0, 2.0]) + (1 - 2 * beta) * np.array([1.0, 3.0])
    assert_allclose(learner.linear, expected, rtol=1e-15)


@pytest.mark.parametrize("seed", range(20))
def test_ftal_surrogate_lies_below_the_cost_and_touches_it(seed):
    """With ‖b‖ <= 2 g_max, ‖g‖ <= g_max, even at the extreme H = c 11ᵀ, whatever M."""
    rng = np.random.default_rng(seed)
    bias = rng.normal(size=(6, 5)) * rng.random((6, 1))
    gradients = rng.normal(size=(6, 5))
    if seed % 2:
        bias[:], gradients[:] = bias[0], gradients[0]
        bias[1] *= -1.0
    bias *= 2.0 / np.linalg.norm(bias, axis=1).max()
    gradients /= np.linalg.norm(gradients, axis=1).max()
    H = bias @ bias.T + 0.3 * gradients @ gradients.T
    beta = ftal_beta(0.1, 3.0, 1.0)
    played = np.eye(6)[rng.integers(6)] if seed % 3 else rng.dirichlet(np.ones(6))
    assert surrogate(beta, H, played, played) == pytest.approx(cost(played, H), rel=1e-14)
    for x in [*np.eye(6), *rng.dirichlet(np.ones(6), size=50)]:
        assert surrogate(beta, H, played, x) <= cost(x, H) + 1e-12


UNIT = math.sqrt(1.0 / (64.0 * math.sqrt(2.0)))
"""The g_max at which, with L = 0, G = 8 g_max² = 1/(8 √2) and so β = 1/(8 √2 G) = 1."""


def ftal_plays(rounds, start):
    """Weights after each round, with β = 1; then the learner."""
    learner = solver_class("ftal")(len(start), eta=0.1, gradient_bound=UNIT)
    played = [np.array(start)]
    for H in rounds:
        learner.add(np.array(H), played[-1], smoothness=0.0)
        played.append(learner.minimise(played[-1]).alpha)
    return played[1:]


def test_ftal_three_rounds_of_two_silos_by_hand():
    plays = ftal_plays(
        [[[1 / 2, 0], [0, 1 / 2]], [[1 / 2, 0], [0, 1]], [[5 / 2, 0], [0, 5 / 6]]], [1.0, 0.0]
    )
    # x = (a, 1-a), each f̃ up to a constant.
    # 1: x = (1, 0), ∇ = (1, 0): (a-1) + (a-1)²/2 = a²/2. Least at a = 0.
    # 2: x = (0, 1), ∇ = (0, 2): -2a + 2a². Sum 5a²/2 - 2a, least at a = 2/5.
    # 3: x = (2/5, 3/5), ∇ = (2, 1): ∇ᵀ(x' - x) = a - 2/5. 5a - 2 + 1 + (a - 2/5) = 0: a = 7/30.
    assert_allclose(plays, [[0, 1], [2 / 5, 3 / 5], [7 / 30, 23 / 30]], atol=1e-12)


def test_ftal_three_rounds_of_three_silos_by_hand():
    first = [[1 / 2, 1 / 4, 0], [1 / 4, 1, 0], [0, 0, 1]]
    plays = ftal_plays([first, np.diag([0, 0, 1.0]), np.diag([0, 17 / 16, 0])], [1.0, 0.0, 0.0])
    # x = (a, b, 1-s), s = a + b, each f̃ up to a constant.
    # 1: ∇ = (1, 1/2, 0), ∇ᵀx₁ = 1: (a + b/2)²/2, least, 0, at s = 0 only.
    # 2: ∇ = (0, 0, 2): -2s + 2s². For a given s, a = 0 is best: s²/8 + 2s² - 2s, s = 8/17.
    # 3: ∇ = (0, 1, 0): (b - 8/17) + (b - 8/17)²/2. With b = 0: a²/2 + 2a² - 2a is least at
    #    a = 2/5, where ∂/∂b = 1/5 - 2 + 8/5 + 1 - 8/17 = 28/85 > 0, so that b stays 0.
    assert_allclose(plays, [[0, 0, 1], [0, 8 / 17, 9 / 17], [2 / 5, 0, 3 / 5]], atol=1e-12)


def test_ftal_tracks_the_largest_gradient():
    learner = solver_class("ftal")(2, eta=0.5, gradient_bound=None)
    with pytest.raises(ValueError, match="gradient_norm"):
        learner.add(FIRST, TARGET_ALONE, smoothness=0.0)
    learner.add(FIRST, TARGET_ALONE, smoothness=0.0, gradient_norm=3.0)
    learner.add(FIRST, TARGET_ALONE, smoothness=0.0, gradient_norm=2.0)
    # G = 8 * 3² = 72, β = 1 / (8 √2 * 72), in both rounds.
    beta = 1.0 / (576.0 * math.sqrt(2.0))
    assert_allclose(learner.quadratic, beta * np.array([[16.0, 8.0], [8.0, 4.0]]), rtol=1e-15)


def test_ftal_round_at_its_minimum_adds_nothing():
    learner = solver_class("ftal")(2, eta=0.5, gradient_bound=None)
    learner.add(np.zeros((2, 2)), TARGET_ALONE, smoothness=1.0, gradient_norm=0.0)
    assert not learner.quadratic.any()
    assert_array_equal(learner.minimise(HALVES).alpha, HALVES)


def test_ftl_sums_the_rounds():
    learner = solver_class("ftl")(2, eta=0.5, gradient_bound=None)
    learner.add(FIRST, TARGET_ALONE, smoothness=4.0, gradient_norm=1.0)
    learner.add(SECOND, TARGET_ALONE)
    # [[3, 1], [1, 7]]: f = 3a² + 2a(1-a) + 7(1-a)² = 8a² - 12a + 7, least at a = 3/4.
    assert_array_equal(learner.total, [[3.0, 1.0], [1.0, 7.0]])
    assert_allclose(learner.minimise(TARGET_ALONE).alpha, [0.75, 0.25], atol=1e-14)


@pytest.mark.parametrize("solver", ["ftl", "ftal"])
def test_cubic_enters_once(solver):
    learner = solver_class(solver)(2, eta=0.5, gradient_bound=2.0)
    for _ in range(5):
        learner.add(FIRST, HALVES, smoothness=1.0)
    H = learner.total if solver == "ftl" else learner.quadratic
    linear = None if solver == "ftl" else learner.linear
    alpha = learner.minimise(HALVES, cubic=30.0).alpha
    expected = minimise(H, linear=linear, cubic=30.0).alpha
    assert_allclose(alpha, expected, atol=1e-10)
    assert abs(alpha[0] - learner.minimise(HALVES).alpha[0]) > 0.05


def test_an_unknown_name_is_told_the_known_ones():
    with pytest.raises(SpcacwError, match="one of ftl, ftal, ons, eg, or 'package"):
        solver_class("adam")
    with pytest.raises(SpcacwError, match="no solver: name a class that derives from Learner"):
        solver_class("numpy:ndarray")
