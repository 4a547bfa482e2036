"""Exact finish of the α problem, from the support that projected gradient descent has found.

A first-order method is slow when the silos' gradient norms differ by orders of magnitude: its step
obeys the largest norm, the solution lives among the smallest. On a fixed support the problem is a
small linear system, so a primal active-set method ends the search: J. Nocedal and S. J. Wright,
Numerical Optimization, 2006, section 16.5, with Newton's steps for the cubic term.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.alpha.objective import Objective

_PROXIMAL_WEIGHTS = (1e-10, 1e-8, 1e-6)
_SMALLEST_SCALE = 1e-12


def polish(objective: Objective, alpha: NDArray[np.float64]) -> NDArray[np.float64]:
    """Walk from face to face of the simplex, downhill, until no silo wants to join the support.

    Every point on the way is feasible and f does not rise beyond rounding. Ends after a number of
    steps proportional to M in any case; the caller judges the result by its gap.

    Parameters
    ----------
    objective : Objective
        Scaled so that its largest coefficient is about 1.
    alpha : (M,) array
        A point of the simplex; its support is the first face.

    Returns
    -------
    (M,) float64 array
        A point of the simplex.
    """
    active = alpha > 0.0
    for _ in range(10 * alpha.size + 10):
        gradient = objective.gradient(alpha)
        direction = _newton_direction(objective, alpha, gradient, active)
        decrement = float(-gradient @ direction)
        settled = decrement <= objective.rounding(alpha)
        moved = _advance(objective, alpha, direction, compare=not settled)
        if moved is None:
            return alpha
        blocked = np.count_nonzero(moved) < np.count_nonzero(active)
        alpha, active = moved, moved > 0.0
        if settled and not blocked:
            gradient = objective.gradient(alpha)
            entering = int(np.argmin(gradient))
            if active[entering] or objective.gap(alpha, gradient) <= objective.rounding(alpha):
                return alpha
            active[entering] = True
    return alpha


def _newton_direction(
    objective: Objective,
    alpha: NDArray[np.float64],
    gradient: NDArray[np.float64],
    active: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Newton's direction on a face: minimise the quadratic model over Σδ = 0, δ = 0 off the face.

    The system is brought to unit diagonal, so that silos of very different gradient norms can
    share a face, and gets a small proximal weight, which makes the answer unique (and the
    shortest) when silos are duplicates of one another or M > d. The weight is raised where float32
    rounding in H has left the face's matrix indefinite.
    """
    face = np.flatnonzero(active)
    hessian = 2.0 * objective.quadratic[np.ix_(face, face)]
    hessian[np.diag_indices_from(hessian)] += 6.0 * objective.cubic * alpha[face]
    scale = np.sqrt(np.abs(hessian.diagonal()))
    scale = np.maximum(scale, _SMALLEST_SCALE * (scale.max() or 1.0 / _SMALLEST_SCALE))
    hessian /= np.outer(scale, scale)
    direction = np.zeros_like(alpha)
    for weight in _PROXIMAL_WEIGHTS:
        regular = hessian + weight * np.eye(face.size)
        try:
            np.linalg.cholesky(regular)  # raises unless positive definite
        except np.linalg.LinAlgError:
            continue
        sides = np.stack((gradient[face] / scale, 1.0 / scale), axis=1)
        slope, normal = np.linalg.solve(regular, sides).T
        multiplier = (slope / scale).sum() / (normal / scale).sum()
        direction[face] = (multiplier * normal - slope) / scale
        break
    return direction


def _advance(
    objective: Objective,
    alpha: NDArray[np.float64],
    direction: NDArray[np.float64],
    compare: bool,
) -> NDArray[np.float64] | None:
    """Step along ``direction`` up to the border of the simplex; None if that leads nowhere.

    With ``compare`` the step is halved until f falls; without, the fall is below rounding.
    """
    falling = direction < 0.0
    limits = np.divide(-alpha, direction, out=np.full_like(alpha, np.inf), where=falling)
    step = min(1.0, float(limits.min()))
    value = objective.value(alpha)
    for _ in range(30):
        moved = alpha + step * direction
        moved[(limits <= step) | (moved < 0.0)] = 0.0
        moved /= moved.sum()
        if step > 0.0 and (not compare or objective.value(moved) < value):
            return moved
        step *= 0.5
    return None
