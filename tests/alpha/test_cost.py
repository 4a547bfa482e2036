"""Inner products, exact and sketched, the round's cost matrix, and the variance of a gradient."""

from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from spcacw_flwr.alpha import (
    CountSketch,
    RunningVariance,
    cost,
    cost_matrix,
    grams,
    minimise,
    norms_of,
    products,
)


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


@given(st.integers(1, 70), st.integers(1, 40), st.integers(0, 2**31), st.floats(0.0, 10.0))
def test_equals_the_formula_in_d_dimensions(silos, dimension, seed, weight):
    """Eq. (CostDef): ‖Σ α b̂‖² + ηL ‖Σ α g‖²; up to 70 silos, so that each way is tried."""
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
    variance.reset()
    assert (variance.count, variance.squared_norm()) == (0, 0.0)


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


@pytest.mark.parametrize("silos", [1, 3, 16, 70])
def test_inner_products_are_symmetric_and_the_same_in_any_company(silos):
    rng = np.random.default_rng(silos)
    a, b = (rng.standard_normal((n, 123)).astype(np.float32) for n in (silos, 2 * silos + 3))
    for found, rows in zip(grams(torch.from_numpy(a), torch.from_numpy(b)), (a, b), strict=True):
        assert found.dtype == np.float64
        assert_allclose(found, rows.astype(float) @ rows.T.astype(float), atol=1e-4)
        assert_array_equal(found, found.T)
        assert_array_equal(found, grams(torch.from_numpy(rows))[0])


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_norms_by_hand(extra, monkeypatch):
    """Blocks of three: rows of all but none, of two, and of two and a bit."""
    monkeypatch.setattr(products, "BLOCK", 3)
    for d in (1, 3 + extra, 6 + extra):
        rows = torch.arange(2.0 * d).view(2, d)
        expected = np.sqrt((np.arange(2.0 * d).reshape(2, d) ** 2).sum(1))
        assert_allclose(norms_of(rows), expected, rtol=1e-6)
        assert_allclose(norms_of(rows[1]), expected[1], rtol=1e-6)


def test_norms_of_a_large_model_are_exact():
    """The squares of 12 million numbers, added up one by one in float32, are off by 1e-3."""
    row = torch.rand(1, 12_000_000, generator=torch.Generator().manual_seed(0))
    exact = torch.linalg.vector_norm(row, dim=1, dtype=torch.float64)
    assert float((norms_of(row) / exact - 1.0).abs()) < 2e-6


@pytest.mark.parametrize(("silos", "low"), [(16, False), (17, True), (70, True)])
def test_inner_products_of_low_precision_are_near_and_without_bias(silos, low, monkeypatch):
    """A CPU that has no matrix unit for bfloat16 (AMX) takes them in float32."""
    rows = torch.randn(silos, 4000, generator=torch.Generator().manual_seed(silos))
    (exact,), asked, real = grams(rows), [], products.low_precision
    monkeypatch.setattr(products, "low_precision", lambda on: asked.append(on) or real(on))
    (found,) = grams(rows, low=True)
    assert asked == [low]
    assert abs(found - exact).max() < (5e-4 if low else 1e-6) * exact.max()
    assert_array_equal(found, found.T)
    assert found.trace() == pytest.approx(exact.trace(), rel=5e-4)


def test_low_precision_ends_with_its_block():
    kinds = torch.backends.mkldnn.matmul, torch.backends.cuda.matmul
    before = [kind.fp32_precision for kind in kinds]
    inside = []
    with suppress(ZeroDivisionError), products.low_precision():
        inside = [kind.fp32_precision for kind in kinds]
        _ = 1 / 0
    assert inside == ["bf16", "tf32"]
    assert not set(inside) & set(before)  # nor has an earlier block left it on
    assert [kind.fp32_precision for kind in kinds] == before
    with products.low_precision(False):
        assert [kind.fp32_precision for kind in kinds] == before


def test_a_sketch_by_hand():
    """d = 5 in blocks of k = 2: with signs s and shifts r, coordinate c lands in (c + r) mod 2."""
    sketch = CountSketch(5, 2, np.random.default_rng(0))
    sketch.signs = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0])
    sketch.shifts = [0, 1, 1]
    # Block 0: (1, −2) as it lies. Block 1: (3, 4) turned to (4, 3). Block 2: (−5) goes to place 1.
    row = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    assert sketch(row).tolist() == [1 + 4, -2 + 3 - 5]
    assert sketch(torch.stack([row, 2 * row])).tolist() == [[5, -4], [10, -8]]


@pytest.mark.parametrize(("dimension", "size"), [(50, 50), (50, 7), (64, 16), (9, 1)])
def test_a_sketch_is_linear_and_of_the_right_shape(dimension, size):
    sketch = CountSketch(dimension, size, np.random.default_rng(1))
    a, b = torch.randn(2, 3, dimension, generator=torch.Generator().manual_seed(0))
    assert sketch(a).shape == (3, size)
    torch.testing.assert_close(sketch(a - 2 * b), sketch(a) - 2 * sketch(b), atol=1e-5, rtol=1e-5)


def test_a_sketch_with_k_equal_to_d_inner_products_are_exact():
    sketch = CountSketch(40, 40, np.random.default_rng(2))
    a = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    assert_allclose(grams(sketch(a))[0], grams(a)[0], rtol=1e-5, atol=1e-5)


def test_sketched_inner_products_are_unbiased_and_their_variance_is_below_the_bound():
    """Over 2,000 sketches; the bound (⟨a,b⟩² + ‖a‖²‖b‖²)/k is met and not far off."""
    rng = np.random.default_rng(3)
    a, b = torch.from_numpy(rng.normal(size=(2, 200))).float()
    b += 0.5 * a
    exact, size = float(a @ b), 16
    found = []
    for _ in range(2000):
        sketch = CountSketch(200, size, rng)
        found.append(float(sketch(a) @ sketch(b)))
    bound = (exact**2 + float(a @ a) * float(b @ b)) / size
    assert np.mean(found) == pytest.approx(exact, abs=4 * np.sqrt(bound / 2000))
    assert 0.7 * bound < np.var(found) < 1.1 * bound


def test_alpha_from_a_sketch_costs_little_more_than_the_best():
    """M = 20, d = 20,000, k = 4,096: norms within ε ≈ √(20/k) = 7 %, so the excess is below
    (1 + ε)/(1 − ε) − 1 = 15 %; and no weight moves by more than .1."""
    generator = torch.Generator().manual_seed(4)
    gradients = torch.randn(20, 20_000, generator=generator)
    bias = torch.randn(20, 20_000, generator=generator) * torch.linspace(0, 1, 20)[:, None]
    bias[0] = 0
    sketch = CountSketch(20_000, 4096, np.random.default_rng(5))
    exact = cost_matrix(*grams(bias, gradients), 0.1, 2.0)
    small = cost_matrix(*grams(sketch(bias), sketch(gradients)), 0.1, 2.0)
    best, found = minimise(exact).alpha, minimise(small).alpha
    assert cost(best, exact) <= cost(found, exact) < 1.15 * cost(best, exact)
    assert np.abs(best - found).max() < 0.1


def test_a_sketch_is_a_pure_function_of_its_generator():
    one, two = (CountSketch(100, 10, np.random.default_rng(7)) for _ in range(2))
    assert torch.equal(one(torch.ones(100)), two(torch.ones(100)))


def test_a_sketch_rejects():
    for size in (0, 11):
        with pytest.raises(ValueError, match="size must be in 1…10"):
            CountSketch(10, size, np.random.default_rng(0))
    with pytest.raises(ValueError, match="rows of length 10"):
        CountSketch(10, 2, np.random.default_rng(0))(torch.zeros(3, 9))
