"""Online learners of α by name, and what they have in common.

Paper, Algorithm 1, line 9. ``ftl`` is its practical objective, ``ftal`` the algorithm as published
(:mod:`spcacw_flwr.alpha.leaders`); beside them, for comparison, two standard methods of online
convex optimisation: ``ons`` (:mod:`spcacw_flwr.alpha.newton`), of the same paper and the same
order of regret as FTAL, and ``eg`` (:mod:`spcacw_flwr.alpha.exponentiated`).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.alpha.exponentiated import ExponentiatedGradient
from spcacw_flwr.alpha.leaders import FollowTheApproximateLeader, FollowTheLeader
from spcacw_flwr.alpha.newton import OnlineNewtonStep
from spcacw_flwr.alpha.solver import Solution

SOLVERS = ("ftl", "ftal", "ons", "eg")


class Learner(Protocol):
    """What all learners offer."""

    def add(
        self, H_t: NDArray[np.float64], alpha_played: NDArray[np.float64], *,
        smoothness: float, gradient_norm: float | None = None,
    ) -> None:  # fmt: skip
        """Fold in one round: its cost matrix (M, M) and the weights (M,) that were used in it."""

    def minimise(self, start: NDArray[np.float64] | None, cubic: float = 0.0) -> Solution:
        """Weights for the next round; λ_reg = ``cubic`` enters once, not once a round."""


def make_learner(
    solver: str,
    num_silos: int,
    eta: float,
    gradient_bound: float | None,
    retention: float = 1.0,
) -> Learner:
    """Return the learner of that name.

    Parameters
    ----------
    solver : str
        One of ``SOLVERS``.
    num_silos, eta, gradient_bound
        M, η and g_max (or None: as measured), as FTAL and ONS need them.
    retention : float
        ρ: what is left of the sums of ``ftl`` and ``ftal`` when a round is added.

    Raises
    ------
    ValueError
        For another name, a gradient bound or retention out of range, or ρ < 1 for ``ons`` or
        ``eg``, which have no sum of costs that could fade.
    """
    if solver == "ftl":
        return FollowTheLeader(num_silos, retention)
    if solver == "ftal":
        return FollowTheApproximateLeader(num_silos, eta, gradient_bound, retention)
    if solver not in SOLVERS:
        raise ValueError(f"The solver must be one of {', '.join(SOLVERS)}, not {solver!r}.")
    if retention != 1.0:
        raise ValueError(f"Only ftl and ftal forget: {solver} needs retention 1, not {retention}.")
    if solver == "ons":
        return OnlineNewtonStep(num_silos, eta, gradient_bound)
    return ExponentiatedGradient(num_silos)
