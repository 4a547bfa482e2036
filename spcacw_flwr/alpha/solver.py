"""The α solver: projected gradient descent on the simplex, with an exact finish.

Paper, Algorithm 1, line 9 and appendix "Practical Algorithmic Details", item "Numerical Solver
(PGD)". The descent is in :mod:`spcacw_flwr.alpha.descent`, the finish, which is ours, in
:mod:`spcacw_flwr.alpha.polish`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.alpha.descent import descend
from spcacw_flwr.alpha.objective import Objective
from spcacw_flwr.alpha.polish import polish

_FIRST_LEG = 16  # gradient steps before the first finish; each further leg is twice as long
_SMALLEST_LIPSCHITZ = 1e-8  # of a problem scaled to 1: keeps the step finite where f is linear
_SIMPLEX_TOLERANCE = 1e-6  # for a start that has been through float32


@dataclass(frozen=True)
class Solution:
    """Weights ``alpha`` (M,), their duality ``gap`` ≥ f(α) − min f, gradient ``iterations``."""

    alpha: NDArray[np.float64]
    gap: float
    iterations: int


def minimise(
    H: NDArray[np.float64],
    *,
    linear: NDArray[np.float64] | None = None,
    cubic: float = 0.0,
    start: NDArray[np.float64] | None = None,
    tolerance: float = 1e-10,
    max_iterations: int = 100_000,
) -> Solution:
    """Minimise αᵀHα + cᵀα + λ Σ αᵢ³ over the simplex, Eq. (refined_objective).

    Legs of accelerated projected gradient descent with step 1 / (2 λ_max(H) + 6λ), each followed
    by :func:`~spcacw_flwr.alpha.polish.polish`, which is kept if it lowers the gap. Ends when the
    Frank–Wolfe gap is at most ``tolerance`` · (αᵀHα + |cᵀα| + λ Σα³), all at the α reached, or at
    the rounding error of these terms. The problem is first divided by the power of two next to its
    largest coefficient, so that the result does not change with a common factor on H, c and λ:
    not in one bit for powers of two.

    Parameters
    ----------
    H : (M, M) array
        Positive semi-definite up to rounding, of any rank; its symmetric part is used. Were it
        indefinite, the answer would be a stationary point, and the gap no bound.
    linear : (M,) array, optional
        c; zero by default.
    cubic : float
        λ ≥ 0.
    start : (M,) array, optional
        First point, uniform by default. Where several weights are optimal it decides which is
        returned: with H = c = λ = 0, the start itself.
    tolerance : float
        Relative gap.
    max_iterations : int
        Limit on gradient steps. If it is met first, the returned gap says so.

    Returns
    -------
    Solution
        Weights outside the support are exactly 0.0; the gap is in the units of H.

    Raises
    ------
    ValueError
        If H is not square, a coefficient is not finite or of the wrong shape, λ < 0, or the start
        is not on the simplex.
    """
    H = np.asarray(H, dtype=np.float64)
    if H.ndim != 2 or H.shape[0] != H.shape[1] or H.size == 0:
        raise ValueError(f"H must be a non-empty square matrix, not of shape {H.shape}.")
    c = np.zeros(len(H)) if linear is None else np.asarray(linear, dtype=np.float64)
    if c.shape != (len(H),):
        raise ValueError(f"The linear term must have shape {(len(H),)}, not {c.shape}.")
    if not (np.isfinite(H).all() and np.isfinite(c).all() and 0.0 <= cubic < math.inf):
        raise ValueError("H and the linear term must be finite, and cubic finite and >= 0.")
    exponent = math.frexp(max(np.abs(H).max(), np.abs(c).max(), cubic))[1]
    H, c, cubic = np.ldexp(H, -exponent), np.ldexp(c, -exponent), math.ldexp(cubic, -exponent)
    objective = Objective(0.5 * (H + H.T), c, cubic)
    alpha = _first_point(start, len(H))
    curvature = float(np.abs(np.linalg.eigvalsh(objective.quadratic)).max())
    lipschitz = max(2.0 * curvature + 6.0 * cubic, _SMALLEST_LIPSCHITZ)
    iterations, leg = 0, _FIRST_LEG
    while True:
        leg = min(leg, max_iterations - iterations)
        alpha, used = descend(objective, alpha, lipschitz, tolerance, leg)
        iterations += used
        alpha = _better(objective, alpha, polish(objective, alpha))
        gradient = objective.gradient(alpha)
        if objective.is_optimal(alpha, gradient, tolerance) or iterations >= max_iterations:
            gap = math.ldexp(objective.gap(alpha, gradient), exponent)
            return Solution(alpha, gap, iterations)
        leg *= 2


def _first_point(start: NDArray[np.float64] | None, size: int) -> NDArray[np.float64]:
    if start is None:
        return np.full(size, 1.0 / size)
    alpha = np.array(start, dtype=np.float64)
    on_simplex = alpha.shape == (size,) and (alpha >= 0.0).all()
    if not on_simplex or not abs(alpha.sum() - 1.0) <= _SIMPLEX_TOLERANCE:
        raise ValueError(f"The start must be {size} weights >= 0 that sum to 1.")
    return alpha / alpha.sum()


def _better(
    objective: Objective, one: NDArray[np.float64], other: NDArray[np.float64]
) -> NDArray[np.float64]:
    return min(other, one, key=lambda alpha: objective.gap(alpha, objective.gradient(alpha)))
