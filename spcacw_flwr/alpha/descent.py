"""Accelerated projected gradient descent on the simplex.

Paper, appendix "Practical Algorithmic Details", item "Numerical Solver (PGD)", which leaves open
the step and the stopping rule. Acceleration with adaptive restart: B. O'Donoghue and E. Candès,
Adaptive restart for accelerated gradient schemes, Foundations of Computational Mathematics 15,
2015.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.alpha.objective import Objective
from spcacw_flwr.alpha.simplex import project_simplex


def descend(
    objective: Objective,
    alpha: NDArray[np.float64],
    lipschitz: float,
    tolerance: float,
    steps: int,
) -> tuple[NDArray[np.float64], int]:
    """Nesterov's method; momentum is dropped when it points uphill or f rises beyond rounding.

    The second rule also covers extrapolated points outside the simplex, where the bound on the
    cubic term's curvature need not hold: such a step is discarded and a plain one taken.

    Parameters
    ----------
    objective : Objective
        f.
    alpha : (M,) array
        First point, in the simplex.
    lipschitz : float
        Lipschitz constant of ∇f on the simplex; the step is its inverse.
    tolerance : float
        Ends when :meth:`Objective.is_optimal` says so.
    steps : int
        Ends after so many steps in any case.

    Returns
    -------
    (M,) float64 array, int
        The last point, in the simplex, and the number of steps taken.
    """
    momentum, ahead, value = 1.0, alpha, objective.value(alpha)
    for step in range(steps):
        if objective.is_optimal(alpha, objective.gradient(alpha), tolerance):
            return alpha, step
        moved = project_simplex(ahead - objective.gradient(ahead) / lipschitz)
        moved_value = objective.value(moved)
        if moved_value > value + objective.rounding(alpha) and momentum > 1.0:
            momentum, ahead = 1.0, alpha
            continue
        if (ahead - moved) @ (moved - alpha) > 0.0:
            momentum = 1.0
        following = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * momentum * momentum))
        ahead = moved + (momentum - 1.0) / following * (moved - alpha)
        alpha, value, momentum = moved, moved_value, following
    return alpha, steps
