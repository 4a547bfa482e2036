"""The α solver: closed forms, independent solvers, certificates, invariances; the projection."""

import doctest

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose, assert_array_equal
from qpsolvers import solve_qp
from scipy.optimize import minimize as scipy_minimize

from spcacw_flwr.alpha import cost, minimise, project_simplex, solver
from spcacw_flwr.alpha.solver import Objective

SIZES = (2, 3, 7, 20, 89)


def gram(silos, seed, dimension=None):
    """Noise around a common gradient, as in a federation of similar silos."""
    rng = np.random.default_rng(seed)
    dimension = dimension or 2 * silos
    rows = rng.normal(size=(silos, dimension)) + rng.normal(size=dimension)
    return rows @ rows.T


def ill_conditioned(silos, seed, dimension=None):
    """Clusters of three near-identical silos; norms from 1e-4 to 1e2."""
    rng = np.random.default_rng(seed)
    dimension = dimension or 2 * silos
    centres = np.repeat(rng.normal(size=(silos, dimension)), 3, axis=0)[:silos]
    rows = centres + 1e-5 * rng.normal(size=(silos, dimension))
    rows *= rng.permutation(np.logspace(-4, 2, silos))[:, None]
    return rows @ rows.T


def check(solution, H, *, linear=None, cubic=0.0, relative=1e-9):
    """Feasible, and the gap, recomputed here from scratch, is as small as claimed and wanted."""
    alpha = solution.alpha
    assert (alpha >= 0.0).all()
    assert abs(alpha.sum() - 1.0) < 1e-12
    linear = np.zeros(len(H)) if linear is None else linear
    gradient = 2 * H @ alpha + linear + 3 * cubic * alpha**2
    gap = gradient @ alpha - gradient.min()
    scale = cost(alpha, H, cubic) + abs(linear @ alpha)
    # The gap has the largest rounding error of any coordinate of Hα, on the support or off it.
    rounding = 1e-15 * len(H) * (np.abs(H) @ alpha).max()
    assert gap <= relative * scale + rounding
    assert solution.gap <= relative * scale + rounding


@pytest.mark.parametrize(
    ("H", "terms", "alpha"),
    [
        # f(a, 1-a) = 4a² + 2a(1-a) + 2(1-a)² = 4a² - 2a + 2; f' = 8a - 2 = 0 at a = 1/4.
        ([[4, 1], [1, 2]], {}, [0.25, 0.75]),
        # With c = (3, 0): 8a - 2 + 3 > 0 for a >= 0, so a = 0 exactly.
        ([[4, 1], [1, 2]], {"linear": [3, 0]}, [0, 1]),
        # H = diag(1, 0), λ = 1: 2a + 3a² - 3(1-a)² = 0, so 8a = 3.
        ([[1, 0], [0, 0]], {"cubic": 1.0}, [3 / 8, 5 / 8]),
        # Without silo 2: (1/2, 1/2, 0) has gradient 2H α = (1, 1, 4): silo 2 stays out. Its partial
        # derivative, 4, is above the common value 1 of the others.
        ([[1, 0, 2], [0, 1, 2], [2, 2, 9]], {}, [0.5, 0.5, 0]),
        # Inverse variance weighting: 1/v over their sum 2.
        (np.diag([1, 2, 4, 4]), {}, [0.5, 0.25, 0.125, 0.125]),
        # Opposite biases cancel: f* = 0, where only rounding can end the search.
        (np.outer([1, -3], [1, -3]), {}, [0.75, 0.25]),
        # The cheapest.
        (np.zeros((4, 4)), {"linear": [3, 1, 1 + 1e-6, 2]}, [0, 1, 0, 0]),
        ([[3]], {}, [1]),
        ([[0]], {"cubic": 1.0}, [1]),
    ],
)
def test_by_hand(H, terms, alpha):
    found = minimise(np.array(H, dtype=float), **terms).alpha
    assert_allclose(found, alpha, atol=1e-14)
    assert_array_equal(found == 0.0, np.array(alpha) == 0)


@pytest.mark.parametrize("silos", SIZES)
@pytest.mark.parametrize("seed", range(4))
def test_agrees_with_an_exact_solver(silos, seed):
    H = gram(silos, seed)
    solution = minimise(H)
    check(solution, H)
    other = daqp(H)
    assert cost(solution.alpha, H) == pytest.approx(cost(other, H), rel=1e-9)
    assert_allclose(solution.alpha, other, atol=1e-8)


@pytest.mark.parametrize("silos", SIZES)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rank", ["full", "deficient"])
def test_ill_conditioned(silos, seed, rank):
    """The certificate holds, and the exact solver, where it succeeds, finds nothing better."""
    H = ill_conditioned(silos, seed, None if rank == "full" else max(1, silos // 2))
    solution = minimise(H)
    check(solution, H)
    assert solution.steps <= 1000
    other = daqp(H)
    if other is not None:
        assert cost(solution.alpha, H) <= cost(other, H) * (1 + 1e-9)


@pytest.mark.parametrize("silos", [7, 20, 89])
@pytest.mark.parametrize("seed", range(4))
def test_ill_conditioned_with_a_linear_term(silos, seed):
    """A slope that all silos share does not cost the silos of small norm their digits."""
    H = ill_conditioned(silos, seed)
    size = 10.0 * np.sqrt(H.diagonal().min() * np.median(H.diagonal()))
    c = np.random.default_rng(seed).normal(size=silos) * size
    solution = minimise(H, linear=c)
    assert solution.gap <= 100 * Objective(H, c, 0.0).rounding(solution.alpha)


def daqp(H):
    size = len(H)
    ones, zeros = np.ones((1, size)), np.zeros(size)
    answer = solve_qp(2 * H, zeros, A=ones, b=np.ones(1), lb=zeros, solver="daqp")
    return None if answer is None else np.maximum(answer, 0.0) / np.maximum(answer, 0.0).sum()


def test_ill_conditioned_agrees_where_the_other_solver_is_given_the_small_silos():
    """The silos of large norm are out; daqp on the rest, rescaled, finds the same optimum."""
    H = ill_conditioned(20, 0)
    solution = minimise(H)
    keep = np.flatnonzero(solution.alpha)
    small = H[np.ix_(keep, keep)] / H[keep, keep].max()
    best = cost(daqp(small), small) * H[keep, keep].max()
    assert cost(solution.alpha, H) == pytest.approx(best, rel=1e-9)


def slsqp(f, slope, size, ftol=1e-15):
    """Where f is least on the simplex, by another solver."""
    return scipy_minimize(
        f, np.full(size, 1.0 / size), jac=slope, bounds=[(0.0, 1.0)] * size, method="SLSQP",
        constraints={"type": "eq", "fun": lambda a: a.sum() - 1.0, "jac": np.ones_like},
        options={"ftol": ftol, "maxiter": 1000},
    ).x  # fmt: skip


@pytest.mark.parametrize("silos", [2, 3, 7, 20])
@pytest.mark.parametrize("weight", [1e-2, 1.0, 100.0])
@pytest.mark.parametrize("linear", [False, True])
def test_cubic_and_linear_agree_with_scipy(silos, weight, linear):
    H = gram(silos, silos) / silos
    c = np.random.default_rng(silos).normal(size=silos) if linear else np.zeros(silos)
    solution = minimise(H, linear=c, cubic=weight)
    check(solution, H, linear=c, cubic=weight)
    f = Objective(H, c, weight)
    other = slsqp(f.value, f.gradient, silos)
    assert f.value(solution.alpha) <= f.value(other) + 1e-9 * (1.0 + weight)
    assert_allclose(solution.alpha, other, atol=1e-5)


@pytest.mark.parametrize("make", [gram, ill_conditioned])
@pytest.mark.parametrize("cubic", [1e-8, 1e-2, 1e4])
def test_cubic_on_89_silos(make, cubic):
    H = make(89, 3)
    check(minimise(H, cubic=cubic), H, cubic=cubic)


def test_cubic_alone_is_uniform():
    solution = minimise(np.zeros((5, 5)), cubic=2.0, start=np.eye(5)[0])
    assert_allclose(solution.alpha, 0.2, atol=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_gradient_by_finite_differences(seed):
    rng = np.random.default_rng(seed)
    H, alpha, c, step = gram(6, seed), rng.dirichlet(np.ones(6)), rng.normal(size=6), 1e-6

    def f(a):
        return cost(a, H, cubic=3.0) + c @ a

    numeric = [(f(alpha + e) - f(alpha - e)) / (2 * step) for e in step * np.eye(6)]
    objective = Objective(H, c, 3.0)
    assert_allclose(objective.gradient(alpha), numeric, rtol=1e-7, atol=1e-7)
    assert objective.value(alpha) == pytest.approx(f(alpha), rel=1e-14)


def test_everything_optimal_returns_the_start():
    start = np.array([0.5, 0.125, 0.375])
    solution = minimise(np.zeros((3, 3)), start=start)
    assert_array_equal(solution.alpha, start)
    assert (solution.gap, solution.steps) == (0.0, 0)
    assert_array_equal(minimise(np.ones((3, 3)), start=start).alpha, start)


def test_identical_silos_share_evenly():
    """Two exact duplicates: from the uniform start neither is preferred."""
    H = gram(4, 0)
    index = [0, 1, 2, 3, 1]
    alpha = minimise(H[np.ix_(index, index)]).alpha
    assert alpha[1] == pytest.approx(alpha[4], abs=1e-6)
    assert cost(alpha, H[np.ix_(index, index)]) == pytest.approx(cost(minimise(H).alpha, H))


@pytest.mark.parametrize("seed", range(5))
def test_float32_gram_with_duplicates_is_not_quite_semi_definite(seed):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(30, 400)).astype(np.float32)
    H = (rows @ rows.T).astype(np.float64)[:, np.repeat(np.arange(30), 2)]
    H = H[np.repeat(np.arange(30), 2)] + 1e-5 * rng.normal(size=(60, 60))
    H = 0.5 * (H + H.T)
    assert np.linalg.eigvalsh(H).min() < 0.0
    check(minimise(H), H, relative=1e-8)


def test_warm_start_needs_no_iterations():
    H = gram(20, 1)
    first = minimise(H)
    again = minimise(H, start=first.alpha.astype(np.float32).astype(np.float64))
    assert_allclose(again.alpha, first.alpha, atol=1e-10)
    assert minimise(H, start=first.alpha).steps == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"H": np.array([[np.nan]])}, "must be finite"),
        ({"H": np.eye(2), "linear": np.array([0.0, np.inf])}, "must be finite"),
        ({"H": np.eye(2), "linear": np.zeros(3)}, "linear term must have shape"),
        ({"H": np.ones((2, 3))}, "square"),
        ({"H": np.ones((0, 0))}, "square"),
        ({"H": np.eye(2), "cubic": -1.0}, "cubic"),
        ({"H": np.eye(2), "cubic": np.nan}, "cubic"),
        ({"H": np.eye(2), "start": np.array([0.5, 0.6])}, "start must be"),
        ({"H": np.eye(2), "start": np.array([1.5, -0.5])}, "start must be"),
        ({"H": np.eye(2), "start": np.array([1.0])}, "start must be"),
        ({"H": np.eye(2), "start": np.array([np.nan, 1.0])}, "start must be"),
    ],
)
def test_rejects(arguments, message):
    with pytest.raises(ValueError, match=message):
        minimise(arguments.pop("H"), **arguments)


problems = st.tuples(st.integers(1, 12), st.integers(0, 2**31), st.integers(1, 30))


@given(problems, st.sampled_from([0.0, 0.1, 10.0]))
@example((8, 1490, 1), 0.0)  # a minimum of 0, so that all of the gap is rounding
@settings(deadline=None)
def test_feasible_and_certified(problem, cubic):
    silos, seed, dimension = problem
    H = gram(silos, seed, dimension)
    check(minimise(H, cubic=cubic), H, cubic=cubic)


@given(problems, st.integers(-200, 200), st.floats(1e-3, 1e3), st.booleans())
@settings(deadline=None)
def test_common_scale(problem, exponent, factor, with_terms):
    """All gradients times s: H times s². Powers of two change no bit of α."""
    silos, seed, _ = problem
    H = gram(silos, seed)
    c = np.random.default_rng(seed).normal(size=silos) if with_terms else np.zeros(silos)
    cubic = 1.0 if with_terms else 0.0
    base = minimise(H, linear=c, cubic=cubic)
    s = 2.0**exponent
    doubled = minimise(s * s * H, linear=s * s * c, cubic=s * s * cubic)
    assert_array_equal(doubled.alpha, base.alpha)
    assert doubled.gap == s * s * base.gap
    scaled = minimise(factor**2 * H, linear=factor**2 * c, cubic=factor**2 * cubic)
    assert_allclose(scaled.alpha, base.alpha, atol=1e-6)


@given(st.integers(2, 10), st.integers(0, 2**31))
@settings(deadline=None)
def test_a_peer_whose_bias_grows_is_left_out_for_good(silos, seed):
    """Biases that point the same way; opposite ones would cancel and earn a small weight."""
    rng = np.random.default_rng(seed)
    bias = 0.5 * np.abs(rng.normal(size=(silos + 1, 40)))
    bias[0] = 0.0
    gradients = rng.normal(size=(silos + 1, 40))
    weights = []
    for growth in [0.0, *np.logspace(0, 5, 11)]:
        grown = bias.copy()
        grown[-1] *= growth
        weights.append(minimise(grown @ grown.T + gradients @ gradients.T).alpha[-1])
    assert weights[-1] == 0.0
    assert not any(weights[weights.index(0.0) :])
    assert weights[0] == max(weights)


vectors = hnp.arrays(np.float64, st.integers(1, 12), elements=st.floats(-1e3, 1e3))


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
def test_projection_by_hand(v, expected):
    projected = project_simplex(np.array(v))
    assert_allclose(projected, expected, atol=1e-15)
    assert_array_equal(projected == 0.0, np.array(expected) == 0.0)


@pytest.mark.parametrize("size", [1e-300, 1e-12, 1e8, 1e300])
@pytest.mark.parametrize("offset", [0.0, 1.0, -1e12])
def test_projection_sums_to_one_at_any_magnitude(size, offset):
    v = offset + size * np.random.default_rng(0).normal(size=50)
    assert abs(project_simplex(v).sum() - 1.0) < 1e-14


@pytest.mark.parametrize(
    "v", [[], [[1.0, 0.0]], 1.0, [np.nan, 1.0], [np.inf, 1.0], [-np.inf, -np.inf], [np.inf, np.nan]]
)
def test_projection_rejects(v):
    with pytest.raises(ValueError, match="project_simplex needs"):
        project_simplex(np.array(v))


def test_docstring_example():
    assert doctest.testmod(solver).failed == 0
    assert doctest.testmod(solver).attempted > 0


@given(vectors)
def test_projection_is_feasible_idempotent_optimal(v):
    p = project_simplex(v)
    assert (p >= 0.0).all()
    assert abs(p.sum() - 1.0) < 1e-12
    assert_allclose(project_simplex(p), p, atol=1e-12)
    # Variational inequality <v - p, x - p> <= 0 for all x in the simplex; vertices suffice.
    assert ((v - p) - (v - p) @ p).max() <= 1e-9


@given(vectors, st.randoms(use_true_random=False), st.floats(-1e3, 1e3))
def test_projection_permuted_and_shifted(v, random, shift):
    order = np.array(random.sample(range(v.size), v.size))
    assert_array_equal(project_simplex(v[order]), project_simplex(v)[order])
    assert_allclose(project_simplex(v + shift), project_simplex(v), atol=1e-11)
