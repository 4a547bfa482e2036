"""The leaders: learners that minimise a sum over the rounds seen so far, exactly or nearly.

``ftl`` minimises the practical objective, Eq. (refined_objective); ``ftal`` the surrogates of
appendix "The FTAL Algorithm" (E. Hazan, A. Agarwal and S. Kale, Logarithmic regret algorithms for
online convex optimization, Machine Learning 69, 2007).

Both can forget, which is ours: with ``retention`` ρ < 1 a round counts ρⁿ once n more have been
added, so that its share halves every ln 2 / −ln ρ rounds. The regret bounds are those of ρ = 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.alpha.constants import LargestGradient, ftal_beta
from spcacw_flwr.alpha.learners import Learner
from spcacw_flwr.alpha.solver import Solution, minimise


class FollowTheLeader(Learner):
    """α = argmin αᵀ(Σₜ Hₜ)α + λ Σ αᵢ³: Eq. (refined_objective), exactly.

    ``total`` is Σₜ Hₜ, (M, M): the whole history in M² numbers; Σₜ ρᵀ⁻ᵗ Hₜ with retention ρ.
    """

    exact = True

    def __init__(
        self, num_silos: int, eta: float = 0.0, gradient_bound: float | None = None,
        retention: float = 1.0,
    ) -> None:  # fmt: skip
        super().__init__(num_silos, eta, gradient_bound, retention)
        self.total = np.zeros((num_silos, num_silos))

    def add(
        self, H_t: NDArray[np.float64], alpha_played: NDArray[np.float64], *,
        smoothness: float = 0.0, gradient_norm: float | None = None,
    ) -> None:  # fmt: skip
        """Add Hₜ; all else is ignored, and there for the sake of a common call."""
        if self.retention < 1.0:
            self.total *= self.retention
        self.total += H_t

    def minimise(self, start: NDArray[np.float64] | None, cubic: float = 0.0) -> Solution:
        """Minimise, from ``start``; see :func:`spcacw_flwr.alpha.solver.minimise`."""
        return minimise(self.total, cubic=cubic, start=start)


class FollowTheApproximateLeader(Learner):
    """FTAL, version 1: minimise the sum of rank-one quadratic surrogates at the played points.

    f̃ₜ(x) = fₜ(xₜ) + ∇ₜᵀ(x − xₜ) + (β/2)(x − xₜ)ᵀ∇ₜ∇ₜᵀ(x − xₜ), with ∇ₜ = 2Hₜxₜ. Up to a
    constant their sum is xᵀAx + cᵀx, which is all that is kept: ``quadratic`` A (M, M) and
    ``linear`` c (M,). β is :func:`~spcacw_flwr.alpha.constants.ftal_beta`.

    With new weights every K rounds, the K surrogates of a block touch at one point; each is still
    a lower bound of its own cost, so nothing changes here. Where g_max is measured, earlier
    surrogates keep their β. ValueError for a bound that is not positive and finite.
    """

    exact = True

    def __init__(
        self, num_silos: int, eta: float = 0.0, gradient_bound: float | None = None,
        retention: float = 1.0,
    ) -> None:  # fmt: skip
        super().__init__(num_silos, eta, gradient_bound, retention)
        self.quadratic = np.zeros((num_silos, num_silos))
        self.linear = np.zeros(num_silos)
        self.eta = eta
        self.gradients = LargestGradient(gradient_bound)

    def curvature(self, smoothness: float) -> float:
        """β of the surrogates, for the L of a round and the g_max known now."""
        return ftal_beta(self.eta, smoothness, self.gradients.value)

    def add(
        self, H_t: NDArray[np.float64], alpha_played: NDArray[np.float64], *,
        smoothness: float, gradient_norm: float | None = None,
    ) -> None:  # fmt: skip
        """Add f̃ₜ: A += (β/2) ∇∇ᵀ and c += ∇ − β ∇ (∇ᵀxₜ); ValueError if g_max is unknown."""
        if self.retention < 1.0:
            self.quadratic *= self.retention
            self.linear *= self.retention
        self.gradients.see(gradient_norm)
        slope = 2.0 * (H_t @ alpha_played)
        if not slope.any():
            return  # fₜ is at its minimum, 0, at the played point: the surrogate is constant
        beta = self.curvature(smoothness)
        self.quadratic += 0.5 * beta * np.outer(slope, slope)
        self.linear += (1.0 - beta * (slope @ alpha_played)) * slope

    def minimise(self, start: NDArray[np.float64] | None, cubic: float = 0.0) -> Solution:
        """Minimise, from ``start``; see :func:`spcacw_flwr.alpha.solver.minimise`."""
        return minimise(self.quadratic, linear=self.linear, cubic=cubic, start=start)
