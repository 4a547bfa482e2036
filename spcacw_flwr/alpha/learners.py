"""The online learners of α (paper, Algorithm 1, line 9), and the constants of their theory.

``ftl`` minimises the practical objective, Eq. (refined_objective); ``ftal``, the algorithm as
published, minimises the surrogates of appendix "The FTAL Algorithm" (E. Hazan, A. Agarwal and
S. Kale, Logarithmic regret algorithms for online convex optimization, Machine Learning 69, 2007).

For comparison there are ``ons`` and ``eg`` (:mod:`spcacw_flwr.alpha.online`). The key ``solver``
names one of the four, or a class of the user's own.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from spcacw_flwr.alpha.solver import Matrix, Solution, Vector, minimise

DIAMETER = math.sqrt(2.0)
"""D, the diameter of the simplex: the distance between two of its corners."""


def gradient_bound(eta: float, smoothness: float, g_max: float) -> float:
    """Return G = (8 + 2Lη) g_max², for ‖gᵢ‖ ≤ g_max and hence ‖b̂ᵢ‖ ≤ 2 g_max.

    The lemma prints 8 + 2Lη; the theorem "Convergence with Estimated Bias" prints 4 + 2Lη. We use
    the lemma's value: it follows from ‖b̂ᵢ‖ ≤ 2 g_max and is larger, so β is on the safe side.
    (The lemma's proof uses λ_max(H) ≤ max αᵀHα, which fails for H = 11ᵀ. G bounds every entry of
    ∇ = 2Hα, but ‖∇‖ only up to √M. Learners need a bound on |∇ᵀ(x − y)|, and this is at most 2G on
    the simplex. For our β, the surrogate of FTAL and ONS thus stays a lower bound of the cost,
    because −log(1 − z) ≥ z + z²/4 holds for |z| ≤ 2β · 2G = 1/(2√2).)
    """
    return (8.0 + 2.0 * smoothness * eta) * g_max**2


def exp_concavity(eta: float, smoothness: float, g_max: float) -> float:
    """Return γ = 1 / ((8 + 2Lη) g_max²): exp(−γ L̂ₜ) is concave on the simplex (paper: convex)."""
    return 1.0 / gradient_bound(eta, smoothness, g_max)


def ftal_beta(eta: float, smoothness: float, g_max: float) -> float:
    """Return β = ½ min{1/(4GD), γ}, the curvature of the surrogates of FTAL and ONS."""
    bound = gradient_bound(eta, smoothness, g_max)
    return 0.5 * min(1.0 / (4.0 * bound * DIAMETER), exp_concavity(eta, smoothness, g_max))


@dataclass
class LargestGradient:
    """g_max: ``bound`` if it is given, else the ``largest`` norm so far.

    ValueError for a bound that is not positive and finite.
    """

    bound: float | None
    largest: float = 0.0

    def __post_init__(self) -> None:
        """Check the bound."""
        if self.bound is not None and not 0.0 < self.bound < math.inf:
            raise ValueError(f"The gradient bound must be positive, not {self.bound}.")

    def see(self, norm: float | None) -> None:
        """Note the largest gradient norm of a round, if it is known."""
        if norm is not None:
            self.largest = max(self.largest, norm)

    @property
    def value(self) -> float:
        """g_max; ValueError if no bound was given and all norms so far are 0."""
        if self.bound is not None:
            return self.bound
        if self.largest == 0.0:
            raise ValueError("Without a gradient bound, a round's gradient_norm is needed.")
        return self.largest


class Learner(ABC):
    """A learner of M weights on the simplex, with step size η = ``eta``.

    ``gradient_bound`` is g_max, the clipping norm if gradients are clipped; None is the largest
    ``gradient_norm`` passed to :meth:`add` so far. ValueError for a bound that is not positive and
    finite.
    """

    exact: ClassVar[bool] = False
    """Whether the learner minimises a sum of costs. Only then can λ_reg enter."""

    def __init__(
        self, num_silos: int, eta: float = 0.0, gradient_bound: float | None = None
    ) -> None:
        self.eta = eta
        self.gradients = LargestGradient(gradient_bound)
        self.begin(num_silos)

    def begin(self, num_silos: int) -> None:  # noqa: B027
        """Create the learner's sums for M silos, before any round; a hook, empty here."""

    @abstractmethod
    def add(
        self, H_t: Matrix, alpha_played: Vector, *,
        smoothness: float, gradient_norm: float | None = None,
    ) -> None:  # fmt: skip
        """Add one round: its cost matrix (M, M) and the weights (M,) that were used in it."""

    @abstractmethod
    def minimise(self, start: Vector | None, cubic: float = 0.0) -> Solution:
        """Return weights for the next round; λ_reg = ``cubic`` enters once, not in every round."""


class FollowTheLeader(Learner):
    """α = argmin αᵀ(Σₜ Hₜ)α + λ Σ αᵢ³: Eq. (refined_objective), exactly.

    ``total`` is Σₜ Hₜ, (M, M): the whole history in M² numbers.
    """

    exact = True

    def begin(self, num_silos: int) -> None:
        """Start at Σ H = 0."""
        self.total = np.zeros((num_silos, num_silos))

    def add(
        self, H_t: Matrix, alpha_played: Vector, *,
        smoothness: float = 0.0, gradient_norm: float | None = None,
    ) -> None:  # fmt: skip
        """Add Hₜ; the other arguments are ignored, and exist because all learners share a call."""
        self.total += H_t

    def minimise(self, start: Vector | None, cubic: float = 0.0) -> Solution:
        """Minimise from ``start``; see :func:`spcacw_flwr.alpha.solver.minimise`."""
        return minimise(self.total, cubic=cubic, start=start)


class FollowTheApproximateLeader(Learner):
    """FTAL, version 1: minimise the sum of rank-one quadratic surrogates at the played points.

    f̃ₜ(x) = fₜ(xₜ) + ∇ₜᵀ(x − xₜ) + (β/2)(x − xₜ)ᵀ∇ₜ∇ₜᵀ(x − xₜ), with ∇ₜ = 2Hₜxₜ. Up to a
    constant, their sum is xᵀAx + cᵀx. Only ``quadratic`` A (M, M) and ``linear`` c (M,) are kept.
    β is :func:`ftal_beta`.

    With new weights every K rounds, the K surrogates of a block touch at one point. Each is still
    a lower bound of its own cost, so nothing changes here. If g_max is measured, earlier
    surrogates keep their β.
    """

    exact = True

    def begin(self, num_silos: int) -> None:
        """Start without a surrogate."""
        self.quadratic = np.zeros((num_silos, num_silos))
        self.linear = np.zeros(num_silos)

    def add(
        self, H_t: Matrix, alpha_played: Vector, *,
        smoothness: float, gradient_norm: float | None = None,
    ) -> None:  # fmt: skip
        """Add f̃ₜ: A += (β/2) ∇∇ᵀ and c += ∇ − β ∇ (∇ᵀxₜ); ValueError if g_max is unknown."""
        self.gradients.see(gradient_norm)
        slope = 2.0 * (H_t @ alpha_played)
        if not slope.any():
            return  # fₜ is at its minimum, 0, at the played point: the surrogate is constant
        beta = ftal_beta(self.eta, smoothness, self.gradients.value)
        self.quadratic += 0.5 * beta * np.outer(slope, slope)
        self.linear += (1.0 - beta * (slope @ alpha_played)) * slope

    def minimise(self, start: Vector | None, cubic: float = 0.0) -> Solution:
        """Minimise from ``start``; see :func:`spcacw_flwr.alpha.solver.minimise`."""
        return minimise(self.quadratic, linear=self.linear, cubic=cubic, start=start)
