"""The round's cost matrix and the variance of the target's gradient."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from spcacw_flwr.alpha import RunningVariance, cost, cost_matrix, grams


def test_gram_by_hand():
    bias = torch.tensor([[0.0, 0.0], [1.0, 2.0]])
    gradients = torch.tensor([[1.0, 1.0], [3.0, -1.0]])
    # B̂B̂ᵀ = [[0, 0], [0, 5]]; GGᵀ = [[2, 2], [2, 10]]; ηL = 0.5 * 4 = 2.
    H = cost_matrix(*grams(bias, gradients), eta=0.5, smoothness=4.0)
    assert_array_equal(H, [[4.0, 4.0], [4.0, 25.0]])
    assert H.dtype == np.float64
    # (4 + 4 + 4 + 25) / 4 = 9.25, and 8 (1/8 + 1/8) = 2 more with the cubic term.
    assert cost(np.array([0.5, 0.5]), H) == 9.25
    assert cost(np.array([0.5, 0.5]), H, cubic=8.0) == 11.25


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**31), st.floats(0.0, 10.0))
def test_equals_the_formula_in_d_dimensions(silos, dimension, seed, weight):
    """Eq. (CostDef): ‖Σ α b̂‖² + ηL ‖Σ α g‖²; up to 40 silos, so that both products are tried."""
    rng = np.random.default_rng(seed)
    bias, gradients = rng.normal(size=(2, silos, dimension)).astype(np.float32)
    alpha = rng.dirichlet(np.ones(silos))
    products = grams(torch.from_numpy(bias), torch.from_numpy(gradients))
    H = cost_matrix(*products, 0.1, 10.0 * weight)
    direct = ((alpha @ bias) ** 2).sum() + weight * ((alpha @ gradients) ** 2).sum()
    largest = (1.0 + weight) * dimension * 20.0
    assert_allclose(cost(alpha, H), direct, rtol=1e-5, atol=1e-7 * largest)
    assert_array_equal(H, H.T)
    assert np.linalg.eigvalsh(H).min() >= -1e-6 * largest


def test_cost_matrix_rejects():
    one = np.zeros((2, 2))
    with pytest.raises(ValueError, match="one shape"):
        cost_matrix(one, np.zeros((3, 3)), 0.1, 1.0)
    with pytest.raises(ValueError, match="matrix of rows"):
        grams(torch.zeros(3))
    for smoothness in (-1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="finite and >= 0"):
            cost_matrix(one, one, 0.1, smoothness)


def test_variance_by_hand():
    variance = RunningVariance()
    assert variance.squared_norm() == 0.0
    variance.add(torch.tensor([1.0, 5.0]))
    assert variance.squared_norm() == 0.0
    variance.add(torch.tensor([3.0, 5.0]))
    # Coordinate 0: mean 2, (1 + 1) / (2 - 1) = 2; coordinate 1 is constant: ‖(2, 0)‖² = 4.
    assert variance.squared_norm() == 4.0
    assert variance.count == 2
    with pytest.raises(ValueError, match="shape"):
        variance.add(torch.zeros(3))
    variance.reset()
    assert variance.count == 0
    assert variance.squared_norm() == 0.0


def test_variance_equals_numpy_after_a_reset_and_far_from_zero():
    rng = np.random.default_rng(0)
    samples = (1e4 + rng.normal(size=(40, 17))).astype(np.float32)
    variance = RunningVariance()
    variance.add(torch.zeros(5))
    variance.reset()
    for row in samples:
        variance.add(torch.from_numpy(row))
    expected = (samples.astype(np.float64).var(axis=0, ddof=1) ** 2).sum()
    assert_allclose(variance.squared_norm(), expected, rtol=1e-10)


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("rows", [3, 40])
def test_products_do_not_depend_on_how_they_are_taken(threads, rows):
    """Few and many rows, on one core, on two and on more; of two matrices or of one."""
    rng = np.random.default_rng(0)
    one, two = rng.normal(size=(2, rows, 500)).astype(np.float32)
    torch.set_num_threads(threads)
    found = grams(torch.from_numpy(one), torch.from_numpy(two))
    for array, product in zip((one, two), found, strict=True):
        assert product.dtype == np.float64
        assert_allclose(product, array.astype(float) @ array.T.astype(float), atol=1e-3)
        assert_array_equal(product, product.T)
    assert_array_equal(grams(torch.from_numpy(one))[0], found[0])
