"""Online learners of α: what is minimised over the rounds seen so far.

Paper, Algorithm 1, line 9. ``ftl`` minimises the practical objective, Eq. (refined_objective);
``ftal`` the surrogates of appendix "The FTAL Algorithm" (E. Hazan, A. Agarwal and S. Kale,
Logarithmic regret algorithms for online convex optimization, Machine Learning 69, 2007).
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.alpha.solver import Solution, minimise

SOLVERS = ("ftl", "ftal")


class Learner(Protocol):
    """What both learners offer."""

    def add(
        self,
        H_t: NDArray[np.float64],
        alpha_played: NDArray[np.float64],
        *,
        smoothness: float,
        gradient_norm: float | None = None,
    ) -> None:
        """Fold in one round: its cost matrix (M, M) and the weights (M,) that were used in it."""

    def minimise(self, start: NDArray[np.float64] | None, cubic: float = 0.0) -> Solution:
        """Weights for the next round; λ_reg = ``cubic`` enters once, not once a round."""


class FollowTheLeader:
    """α = argmin αᵀ(Σₜ Hₜ)α + λ Σ αᵢ³: Eq. (refined_objective), exactly.

    ``total`` is Σₜ Hₜ, (M, M): the whole history in M² numbers.
    """

    def __init__(self, num_silos: int) -> None:
        """Start with no rounds."""
        self.total = np.zeros((num_silos, num_silos))

    def add(
        self,
        H_t: NDArray[np.float64],
        alpha_played: NDArray[np.float64],
        *,
        smoothness: float = 0.0,
        gradient_norm: float | None = None,
    ) -> None:
        """Add Hₜ; all else is ignored, and there for the sake of a common call."""
        self.total += H_t

    def minimise(self, start: NDArray[np.float64] | None, cubic: float = 0.0) -> Solution:
        """Minimise, from ``start``; see :func:`spcacw_flwr.alpha.solver.minimise`."""
        return minimise(self.total, cubic=cubic, start=start)


class FollowTheApproximateLeader:
    """FTAL, version 1: minimise the sum of rank-one quadratic surrogates at the played points.

    f̃ₜ(x) = fₜ(xₜ) + ∇ₜᵀ(x − xₜ) + (β/2)(x − xₜ)ᵀ∇ₜ∇ₜᵀ(x − xₜ), with ∇ₜ = 2Hₜxₜ. Up to a
    constant their sum is xᵀAx + cᵀx, which is all that is kept: ``quadratic`` A (M, M) and
    ``linear`` c (M,).

    β = ½ min{1/(4GD), γ} (theorem of Hazan et al.) with D = √2, γ = 1/((8 + 2Lη) g_max²) and
    G = (8 + 2Lη) g_max². For the last the exp-concavity lemma prints 8 + 2Lη and the theorem
    "Convergence with Estimated Bias" 4 + 2Lη: we take the lemma's, which is what ‖bᵢ‖ ≤ 2 g_max
    gives, and the larger, so that β is on the safe side. (The lemma's proof uses
    λ_max(H) ≤ max αᵀHα, which fails for H = 11ᵀ, so ‖∇‖ may exceed G by up to √M. The surrogate
    needs only |∇ᵀ(x − y)|, which is at most 2G on the simplex, and stays a lower bound of fₜ for
    this β: −log(1 − z) ≥ z + z²/4 holds for |z| ≤ 2β · 2G = 1/(2√2).)

    Parameters
    ----------
    num_silos : int
        M.
    eta : float
        Step size η.
    gradient_bound : float or None
        g_max: the clipping norm where gradients are clipped. With None, the largest
        ``gradient_norm`` passed to :meth:`add` so far; earlier surrogates keep their β.
    """

    def __init__(self, num_silos: int, eta: float, gradient_bound: float | None) -> None:
        """Start with no rounds; ValueError for a bound that is not positive and finite."""
        if gradient_bound is not None and not 0.0 < gradient_bound < math.inf:
            raise ValueError(f"The gradient bound must be positive, not {gradient_bound}.")
        self.quadratic = np.zeros((num_silos, num_silos))
        self.linear = np.zeros(num_silos)
        self.eta = eta
        self.gradient_bound = gradient_bound
        self.largest_norm = 0.0

    def curvature(self, smoothness: float) -> float:
        """β of the surrogates, for the L of a round and the g_max known now."""
        largest = self.largest_norm if self.gradient_bound is None else self.gradient_bound
        bound = (8.0 + 2.0 * smoothness * self.eta) * largest**2  # G, and 1/γ
        return 0.5 * min(1.0 / (4.0 * bound * math.sqrt(2.0)), 1.0 / bound)

    def add(
        self,
        H_t: NDArray[np.float64],
        alpha_played: NDArray[np.float64],
        *,
        smoothness: float,
        gradient_norm: float | None = None,
    ) -> None:
        """Add f̃ₜ: A += (β/2) ∇∇ᵀ and c += ∇ − β ∇ (∇ᵀxₜ); ValueError if g_max is unknown."""
        if gradient_norm is not None:
            self.largest_norm = max(self.largest_norm, gradient_norm)
        slope = 2.0 * (H_t @ alpha_played)
        if not slope.any():
            return  # fₜ is at its minimum, 0, at the played point: the surrogate is constant
        if self.gradient_bound is None and self.largest_norm == 0.0:
            raise ValueError("Without a gradient bound, FTAL needs the round's gradient_norm.")
        beta = self.curvature(smoothness)
        self.quadratic += 0.5 * beta * np.outer(slope, slope)
        self.linear += (1.0 - beta * (slope @ alpha_played)) * slope

    def minimise(self, start: NDArray[np.float64] | None, cubic: float = 0.0) -> Solution:
        """Minimise, from ``start``; see :func:`spcacw_flwr.alpha.solver.minimise`."""
        return minimise(self.quadratic, linear=self.linear, cubic=cubic, start=start)


def make_learner(
    solver: str, num_silos: int, eta: float, gradient_bound: float | None
) -> FollowTheLeader | FollowTheApproximateLeader:
    """Return the learner named ``"ftl"`` or ``"ftal"``; ValueError for another name."""
    if solver == "ftl":
        return FollowTheLeader(num_silos)
    if solver == "ftal":
        return FollowTheApproximateLeader(num_silos, eta, gradient_bound)
    raise ValueError(f"The solver must be one of {', '.join(SOLVERS)}, not {solver!r}.")
