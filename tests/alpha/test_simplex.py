"""Projection onto the simplex: hand-worked answers, its defining properties, its Jacobian."""

import doctest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose, assert_array_equal

from spcacw_flwr.alpha import project_simplex, solver

numbers = st.floats(-1e3, 1e3)
vectors = hnp.arrays(np.float64, st.integers(1, 12), elements=numbers)


@st.composite
def pairs(draw):
    size = draw(st.integers(1, 12))
    return tuple(draw(hnp.arrays(np.float64, size, elements=numbers)) for _ in range(2))


@pytest.mark.parametrize(
    ("v", "expected"),
    [
        # On the simplex already.
        ([0.25, 0.75], [0.25, 0.75]),
        # Sum 1.6, support of both: each gives up (1.6 - 1) / 2 = 0.3.
        ([1.0, 0.6], [0.7, 0.3]),
        # All three would give up (2 + 0.5 - 1 - 1) / 3 = 1/6, below 0 for the last; of two,
        # (2.5 - 1) / 2 = 0.75 > 0.5; so the first alone: 2 - 1 = 1.
        ([2.0, 0.5, -1.0], [1.0, 0.0, 0.0]),
        # Two of four: (0.9 + 0.7 - 1) / 2 = 0.3; 0.2 and -5 lie below 0.3.
        ([0.2, 0.9, -5.0, 0.7], [0.0, 0.6, 0.0, 0.4]),
        # Inside the simplex's cone: sum 0, each gains 1/2.
        ([0.0, 0.0], [0.5, 0.5]),
        ([-7.0], [1.0]),
        ([1.0, -np.inf, 1.0], [0.5, 0.0, 0.5]),
        # Overflow of a difference is as good as -inf.
        ([1.7e308, -1.7e308], [1.0, 0.0]),
    ],
)
def test_hand_worked(v, expected):
    projected = project_simplex(np.array(v))
    assert_allclose(projected, expected, atol=1e-15)
    assert_array_equal(projected == 0.0, np.array(expected) == 0.0)


@pytest.mark.parametrize("size", [1e-300, 1e-12, 1e8, 1e300])
@pytest.mark.parametrize("offset", [0.0, 1.0, -1e12])
def test_sums_to_one_at_any_magnitude(size, offset):
    v = offset + size * np.random.default_rng(0).normal(size=50)
    assert abs(project_simplex(v).sum() - 1.0) < 1e-14


@pytest.mark.parametrize(
    "v",
    [[], [[1.0, 0.0]], 1.0, [np.nan, 1.0], [np.inf, 1.0], [-np.inf, -np.inf], [np.inf, np.nan]],
)
def test_rejects(v):
    with pytest.raises(ValueError, match="project_simplex needs"):
        project_simplex(np.array(v))


def test_docstring_example():
    assert doctest.testmod(solver).failed == 0
    assert doctest.testmod(solver).attempted > 0


@given(vectors)
def test_feasible_idempotent_optimal(v):
    p = project_simplex(v)
    assert (p >= 0.0).all()
    assert abs(p.sum() - 1.0) < 1e-12
    assert_allclose(project_simplex(p), p, atol=1e-12)
    # Variational inequality <v - p, x - p> <= 0 for all x in the simplex; vertices suffice.
    assert ((v - p) - (v - p) @ p).max() <= 1e-9


@given(vectors, st.randoms(use_true_random=False), st.floats(-1e3, 1e3))
def test_permutation_and_shift(v, random, shift):
    order = np.array(random.sample(range(v.size), v.size))
    assert_array_equal(project_simplex(v[order]), project_simplex(v)[order])
    assert_allclose(project_simplex(v + shift), project_simplex(v), atol=1e-11)


@given(pairs())
def test_non_expansive(pair):
    u, v = pair
    moved = np.linalg.norm(project_simplex(u) - project_simplex(v))
    assert moved <= np.linalg.norm(u - v) + 1e-11


@pytest.mark.parametrize("seed", range(5))
def test_jacobian(seed):
    """On a support of k entries: I - 11ᵀ/k; nothing off it moves, or moves anything."""
    v = np.random.default_rng(seed).normal(size=8)
    support = project_simplex(v) > 0.0
    inside = support.astype(float)
    theory = np.diag(inside) - np.outer(inside, inside) / support.sum()
    step = 1e-6
    numeric = np.stack(
        [(project_simplex(v + e) - project_simplex(v - e)) / (2 * step) for e in step * np.eye(8)]
    )
    assert_allclose(numeric, theory, atol=1e-8)
