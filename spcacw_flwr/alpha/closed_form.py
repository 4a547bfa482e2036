"""Optimal weights in closed form, for known bias norms and variances.

Paper, section "Optimal Weighting and Potential Benefits", Lemma "Optimal Weights", and appendix
"Proof of Lemma Optimal Weights": the minimiser over the simplex of

    C₁ Σ αᵢ‖bᵢ‖² + C₂ Σ αᵢ²σᵢ²,   C₁ = 1 + 2ηL,   C₂ = ηL,

is αᵢ = [(λ − C₁‖bᵢ‖²) / (2C₂σᵢ²)]₊. The lemma leaves λ implicit. Σ αᵢ grows with λ and is piecewise
linear in it. A walk up the sorted breakpoints C₁‖bᵢ‖² therefore finds λ exactly, as in the search
for the continuous quadratic knapsack (K. C. Kiwiel, Breakpoint searching algorithms for the
continuous quadratic knapsack problem, Mathematical Programming 112, 2008). (The lemma says λ > 0;
λ is 0 if a silo has neither noise nor bias.)
"""

import math
from dataclasses import dataclass

import numpy as np

from spcacw_flwr.alpha.solver import Vector

_LARGEST = float(np.finfo(np.float64).max)


@dataclass(frozen=True)
class OptimalWeights:
    """Weights ``alpha`` (M,), exactly 0.0 where C₁‖bᵢ‖² ≥ λ, and ``level`` λ."""

    alpha: Vector
    level: float


def optimal_weights(
    squared_biases: Vector, variances: Vector, eta: float, smoothness: float
) -> OptimalWeights:
    """Minimise C₁ Σ αᵢ‖bᵢ‖² + C₂ Σ αᵢ²σᵢ² over the simplex, in O(M log M).

    Every step adds non-negative numbers, and biases enter as differences only. Hence no size of
    ‖b‖² or σ² costs accuracy. A silo without noise (C₂σᵢ² = 0) takes all weight that less biased
    silos leave, at λ = C₁‖bᵢ‖². If several such silos have the same bias, every split is optimal.
    They share equally: the solution of least norm, and the limit of equal variances that go to 0.
    If ηL = 0, the least biased silos of all share equally.

    ``squared_biases`` ‖bᵢ‖² and ``variances`` σᵢ² are (M,), ``eta`` is η, ``smoothness`` L.
    ValueError if the shapes differ or are empty, or a number is negative or not finite.

    Examples
    --------
    >>> optimal_weights(np.array([0.0, 0.0, 9.0]), np.array([1.0, 3.0, 1.0]), 0.5, 2.0)
    OptimalWeights(alpha=array([0.75, 0.25, 0.  ]), level=1.5)
    """
    b, v = np.asarray(squared_biases, np.float64), np.asarray(variances, np.float64)
    if b.shape != v.shape or b.ndim != 1 or b.size == 0:
        raise ValueError(f"Expected a bias and a variance a silo, not {b.shape} and {v.shape}.")
    c2 = eta * smoothness
    if not all(np.isfinite(x).all() and np.all(x >= 0.0) for x in (b, v, np.float64(c2))):
        raise ValueError("Squared biases, variances and eta times smoothness must be >= 0, finite.")
    c1, factor = 1.0 + 2.0 * c2, min(0.5 / c2 + 1.0, _LARGEST) if c2 else 1.0  # C₁ / 2C₂
    noiseless = (v == 0.0) | (c2 == 0.0)
    cap = float(b[noiseless].min(initial=math.inf))  # more biased silos get nothing
    order = np.argsort(b, kind="stable")
    order = order[~noiseless[order] & (b[order] < cap)]
    levels = np.append(b[order], cap)
    with np.errstate(over="ignore"):  # an infinite step exceeds 1 as a large one does
        # In units of (nearly) the least variance no inverse overflows, and none is 0.
        exponent = math.frexp(v[order].min(initial=math.inf))[1]
        inverses = 1.0 / np.minimum(np.ldexp(v[order], -exponent), _LARGEST)
        slopes = np.cumsum(inverses)
        steps = np.ldexp(np.diff(levels), -exponent) * factor * slopes
    last = int(np.count_nonzero(np.cumsum(steps) < 1.0))  # Σ αᵢ < 1 with λ at this breakpoint
    top, active, inverses = levels[last], order[: last + 1], inverses[: last + 1]
    alpha = np.zeros_like(b)
    alpha[active] = np.ldexp(top - b[active], -exponent) * factor * inverses
    rest = max(0.0, 1.0 - float(alpha.sum()))
    if last == len(order):
        takers = noiseless & (b == cap)
        alpha[takers] = rest / np.count_nonzero(takers)
        return OptimalWeights(alpha, c1 * cap)
    alpha[active] += rest * (inverses / slopes[last])
    return OptimalWeights(
        alpha, c1 * float(top) + float(np.ldexp(2.0 * c2 * rest / slopes[last], exponent))
    )
