"""The lemma "Optimal Weights": by hand, a QP solver, KKT conditions, monotonicity, extremes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from qpsolvers import solve_qp

from spcacw_flwr.alpha import minimise, optimal_weights

# η = 1/2, L = 1: C1 = 2, C2 = 1/2, so that αᵢ = [(λ - 2 bᵢ) / σᵢ²]₊.
ETA, SMOOTHNESS = 0.5, 1.0


def weights(b, v, eta=ETA, smoothness=SMOOTHNESS):
    return optimal_weights(np.array(b, dtype=float), np.array(v, dtype=float), eta, smoothness)


@pytest.mark.parametrize(
    ("b", "v", "alpha", "level"),
    [
        # No peer: λ = σ₀² = 1 <= 2 b₁ = 2 b₂ = 1.
        ([0, 0.5, 0.5], [1, 1, 1], [1, 0, 0], 1.0),
        # One peer: λ + λ - 1/2 = 1, so λ = 3/4 < 2 b₂.
        ([0, 0.25, 1], [1, 1, 1], [0.75, 0.25, 0], 0.75),
        # All: λ + (λ - 1/4)/2 + (λ - 1/2) = 1: 5λ/2 = 13/8.
        ([0, 0.125, 0.25], [1, 2, 1], [0.65, 0.2, 0.15], 0.65),
        # All biased, the target not the least: 2λ - 2 - 4 = 1.
        ([2, 1], [1, 1], [0, 1], 3.0),
        ([1.25, 1], [1, 1], [0.25, 0.75], 2.75),
        # One silo: λ = 2 * 3 + 4.
        ([3], [4], [1], 10.0),
        # The noiseless silo takes what the less biased leave: λ = 2 * 1/4, α₀ = λ/1.
        ([0, 0.25, 0.375], [1, 0, 1], [0.5, 0.5, 0], 0.5),
        # Two of the same bias share; the third, noiseless but worse, and its noisy twin get none.
        ([0, 0.25, 0.25, 0.5, 0.25], [1, 0, 0, 0, 7], [0.5, 0.25, 0.25, 0, 0], 0.5),
        # Out of reach: λ = 1 is met before 2 * 2.
        ([0, 2], [1, 0], [1, 0], 1.0),
        # Exactly in reach: at λ = 2 * 1/2 nothing is left.
        ([0, 0.5], [1, 0], [1, 0], 1.0),
        # All noiseless: the least biased; the lemma's λ > 0 fails where its bias is 0.
        ([0, 1, 0], [0, 0, 0], [0.5, 0, 0.5], 0.0),
        ([3, 1, 2], [0, 0, 0], [0, 1, 0], 2.0),
        ([3], [0], [1], 6.0),
    ],
)
def test_by_hand(b, v, alpha, level):
    found = weights(b, v)
    assert_allclose(found.alpha, alpha, rtol=1e-15)
    assert found.level == pytest.approx(level, rel=1e-15)
    if 0 in v:  # no rounding there
        assert (found.alpha.tolist(), found.level) == (alpha, level)
    order = np.arange(len(b))[::-1]
    assert_allclose(weights(np.array(b)[order], np.array(v)[order]).alpha[order], alpha, rtol=1e-15)


def test_equal_shares_are_the_limit_of_vanishing_noise():
    b, alpha = [0, 0.25, 0.25], weights([0, 0.25, 0.25], [1, 0, 0]).alpha
    assert_allclose(weights(b, [1, 1e-12, 1e-12]).alpha, alpha, atol=1e-12)


@pytest.mark.parametrize(("eta", "smoothness"), [(0.0, 3.0), (0.1, 0.0)])
def test_without_a_variance_term_the_least_biased_share(eta, smoothness):
    found = weights([1, 3, 1], [5, 0, 9], eta, smoothness)
    assert_array_equal(found.alpha, [0.5, 0.0, 0.5])
    assert found.level == 1.0


def test_huge_equal_offsets_do_not_cancel():
    """Biases of 1e16 that differ by 2, and weights that a sum of λ's terms would lose."""
    # With μ = λ - 2e16: μ/8 + (μ - 4)/8 = 1, μ = 6; with σ₀² = 1, μ = 1 leaves silo 1 out.
    assert_allclose(weights([1e16, 1e16 + 2], [8, 8]).alpha, [0.75, 0.25], rtol=1e-15)
    assert_array_equal(weights([1e16, 1e16 + 2], [1, 8]).alpha, [1, 0])
    # α₀ = λ/1e30, α₁ = λ - 5e29: λ = 5e29 + 1/2 up to 1e-30.
    found = weights([0, 2.5e29], [1e30, 1])
    assert_allclose(found.alpha, [0.5, 0.5], rtol=1e-15)


def test_ranges_beyond_those_of_a_float_do_not_overflow():
    with np.errstate(all="raise", under="ignore"):
        found = weights([0, 1e308, 1e-308], [1e308, 1e-308, 1e-308])
    assert_allclose(found.alpha, [0, 0, 1], atol=1e-15)
    assert_allclose(weights([0, 0], [5e-324, 5e-324]).alpha, [0.5, 0.5])
    assert_allclose(weights([0, 0], [1, 1], 5e-324).alpha, [0.5, 0.5])


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_any_magnitude_is_feasible_and_stationary(data):
    """‖b‖², σ² from 1e-100 to 1e100 or 0; the conditions in units that cannot cancel."""
    size = data.draw(st.integers(1, 6))
    numbers = st.one_of(
        st.just(0.0), st.builds(lambda e, m: m * 10.0**e, st.integers(-100, 100), st.floats(1, 5))
    )
    b, v = (np.array(data.draw(st.lists(numbers, min_size=size, max_size=size))) for _ in "bv")
    eta = data.draw(st.sampled_from([1e-30, 1e-3, 1.0, 1e10]))
    with np.errstate(all="raise", under="ignore"):
        found = optimal_weights(b, v, eta, 1.0)
    assert (found.alpha >= 0).all()
    assert abs(found.alpha.sum() - 1) < 1e-14
    # ∂/∂αᵢ less ∂/∂αⱼ = C1 (bᵢ - bⱼ) + 2 C2 (αᵢσᵢ² - αⱼσⱼ²) >= 0 whenever j has weight.
    c1, c2 = 1 + 2 * eta, eta
    noise = 2 * c2 * (found.alpha * v)
    for j in np.flatnonzero(found.alpha):
        excess = c1 * (b - b[j]) + (noise - noise[j])
        assert (excess >= -1e-13 * (c1 * np.abs(b - b[j]) + noise + noise[j])).all()
    assert_allclose(found.level, (c1 * b + noise)[found.alpha > 0].max(), rtol=1e-13)


def problems(noise=0.05):
    sizes = st.integers(1, 12)
    return st.builds(
        lambda size, seed, scale: (
            np.random.default_rng(seed).exponential(size=size) * scale,
            np.random.default_rng(seed + 1).exponential(size=size) + noise,
        ),
        sizes, st.integers(0, 2**31), st.sampled_from([0.0, 0.01, 0.1, 1.0]),
    )  # fmt: skip


@given(problems(), st.sampled_from([(0.1, 1.0), (0.5, 4.0), (1e-3, 2.0)]))
@settings(deadline=None)
def test_agrees_with_a_qp_solver_and_is_stationary_at_the_level(problem, step):
    """KKT: C1 b + 2 C2 σ² α = λ on the support, C1 b >= λ off it."""
    (b, v), (eta, smoothness) = problem, step
    found = optimal_weights(b, v, eta, smoothness)
    c1, c2, size = 1 + 2 * eta * smoothness, eta * smoothness, len(b)
    other = solve_qp(
        2 * c2 * np.diag(v), c1 * b, A=np.ones((1, size)), b=np.ones(1), lb=np.zeros(size),
        solver="daqp", primal_tol=1e-12, dual_tol=1e-12,
    )  # fmt: skip
    assert_allclose(found.alpha, other, atol=1e-9)
    slope, active = c1 * b + 2 * c2 * v * found.alpha, found.alpha > 0
    assert_allclose(slope[active], found.level, rtol=1e-12)
    assert (slope[~active] >= found.level * (1 - 1e-12)).all()
    ours = minimise(c2 * np.diag(v), linear=c1 * b).alpha
    best, own = (c1 * b @ alpha + c2 * alpha @ (v * alpha) for alpha in (found.alpha, ours))
    assert best == pytest.approx(own, rel=1e-9)


@given(problems(), st.integers(0, 100), st.floats(1e-6, 3.0))
@settings(deadline=None)
def test_more_bias_less_weight(problem, which, more):
    """One silo's weight falls with its bias, everybody else's rises."""
    b, v = problem
    which %= len(b)
    before = weights(b, v).alpha
    b[which] += more
    change = weights(b, v).alpha - before
    assert change[which] <= 1e-13
    assert (np.delete(change, which) >= -1e-13).all()


@given(problems(noise=0.0), st.integers(-60, 60), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_units_and_order_do_not_matter(problem, exponent, random):
    b, v = problem
    found = weights(b, v)
    scaled = weights(np.ldexp(b, exponent), np.ldexp(v, exponent))
    assert_array_equal(scaled.alpha, found.alpha)
    assert scaled.level == np.ldexp(found.level, exponent)
    shifted = weights(b + 1.0, v)  # a bias common to all leaves the weights alone
    assert_allclose(shifted.alpha, found.alpha, atol=1e-11)
    order = random.sample(range(len(b)), len(b))
    assert_allclose(weights(b[order], v[order]).alpha, found.alpha[order], atol=1e-13)


@pytest.mark.parametrize(
    ("b", "v", "eta", "message"),
    [
        ([0, -1], [1, 1], 0.1, ">= 0"),
        ([0, 1], [1, -1], 0.1, ">= 0"),
        ([0, 1], [1, np.nan], 0.1, "finite"),
        ([0, np.inf], [1, 1], 0.1, "finite"),
        ([0, 1], [1, 1], -0.1, ">= 0"),
        ([0, 1], [1, 1], np.inf, "finite"),
        ([0, 1], [1], 0.1, "a silo"),
        ([], [], 0.1, "a silo"),
    ],
)
def test_rejects(b, v, eta, message):
    with pytest.raises(ValueError, match=message):
        weights(b, v, eta)
