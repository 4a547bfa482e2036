"""Curvature and gradient bounds of the cost, and what online learners make of them.

Paper, appendix "Proof of Exp-Concavity Property" (γ and G) and the theorem of section "Overcoming
Uncertainty via Regret Minimization" (β), which is Theorem 6 of E. Hazan, A. Agarwal and S. Kale,
Logarithmic regret algorithms for online convex optimization, Machine Learning 69, 2007.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

DIAMETER = math.sqrt(2.0)
"""D of the simplex: the distance of two of its corners."""


def gradient_bound(eta: float, smoothness: float, g_max: float) -> float:
    """G = (8 + 2Lη) g_max², for ‖gᵢ‖ ≤ g_max and hence ‖b̂ᵢ‖ ≤ 2 g_max.

    The lemma prints 8 + 2Lη, the theorem "Convergence with Estimated Bias" 4 + 2Lη: we take the
    lemma's, which is what ‖b̂ᵢ‖ ≤ 2 g_max gives, and the larger, so that β is on the safe side.
    (The lemma's proof uses λ_max(H) ≤ max αᵀHα, which fails for H = 11ᵀ: G bounds every entry of
    ∇ = 2Hα, but ‖∇‖ only up to √M. What learners need is a bound on |∇ᵀ(x − y)|, which is at most
    2G on the simplex: the surrogate of FTAL and ONS stays a lower bound of the cost for our β,
    since −log(1 − z) ≥ z + z²/4 holds for |z| ≤ 2β · 2G = 1/(2√2).)
    """
    return (8.0 + 2.0 * smoothness * eta) * g_max**2


def exp_concavity(eta: float, smoothness: float, g_max: float) -> float:
    """γ = 1 / ((8 + 2Lη) g_max²): exp(−γ L̂ₜ) is concave on the simplex (printed: convex)."""
    return 1.0 / gradient_bound(eta, smoothness, g_max)


def ftal_beta(eta: float, smoothness: float, g_max: float) -> float:
    """β = ½ min{1/(4GD), γ}, the curvature of the surrogates of FTAL and ONS."""
    bound = gradient_bound(eta, smoothness, g_max)
    return 0.5 * min(1.0 / (4.0 * bound * DIAMETER), exp_concavity(eta, smoothness, g_max))


@dataclass
class LargestGradient:
    """g_max: ``bound`` where it is given, else the ``largest`` norm seen so far.

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
        """g_max; ValueError if no bound was given and no norm but 0 seen."""
        if self.bound is not None:
            return self.bound
        if self.largest == 0.0:
            raise ValueError("Without a gradient bound, a round's gradient_norm is needed.")
        return self.largest
