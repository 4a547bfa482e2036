"""The count sketch: linear, unbiased, within its stated error, and the α it leads to."""

import numpy as np
import pytest
import torch

from spcacw_flwr.alpha import CountSketch, cost, cost_matrix, grams, minimise


def test_by_hand():
    """d = 5 in blocks of k = 2: with signs s and shifts r, coordinate c lands in (c + r) mod 2."""
    sketch = CountSketch(5, 2, np.random.default_rng(0))
    sketch.signs = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0])
    sketch.shifts = [0, 1, 1]
    # Block 0: (1, −2) as it lies. Block 1: (3, 4) turned to (4, 3). Block 2: (−5) goes to place 1.
    row = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    assert sketch(row).tolist() == [1 + 4, -2 + 3 - 5]
    assert sketch(torch.stack([row, 2 * row])).tolist() == [[5, -4], [10, -8]]


@pytest.mark.parametrize(("dimension", "size"), [(50, 50), (50, 7), (64, 16), (9, 1)])
def test_linear_and_of_the_right_shape(dimension, size):
    sketch = CountSketch(dimension, size, np.random.default_rng(1))
    a, b = torch.randn(2, 3, dimension, generator=torch.Generator().manual_seed(0))
    assert sketch(a).shape == (3, size)
    torch.testing.assert_close(sketch(a - 2 * b), sketch(a) - 2 * sketch(b), atol=1e-5, rtol=1e-5)


def test_with_k_equal_to_d_inner_products_are_exact():
    sketch = CountSketch(40, 40, np.random.default_rng(2))
    a = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(grams(sketch(a))[0], grams(a)[0], rtol=1e-5, atol=1e-5)


def test_inner_products_are_unbiased_and_their_variance_is_below_the_bound():
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


def test_a_pure_function_of_its_generator():
    one, two = (CountSketch(100, 10, np.random.default_rng(7)) for _ in range(2))
    assert torch.equal(one(torch.ones(100)), two(torch.ones(100)))


def test_rejects():
    for size in (0, 11):
        with pytest.raises(ValueError, match="size must be in 1…10"):
            CountSketch(10, size, np.random.default_rng(0))
    with pytest.raises(ValueError, match="rows of length 10"):
        CountSketch(10, 2, np.random.default_rng(0))(torch.zeros(3, 9))
