"""The function of α that the solver minimises, its gradient and its certificate of optimality.

Eq. (refined_objective), appendix "Practical Algorithmic Details", written with the summed M×M
matrix; the linear term serves the surrogates of appendix "The FTAL Algorithm".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Objective:
    """f(α) = αᵀHα + cᵀα + λ Σ αᵢ³ over the simplex; H symmetric, positive semi-definite, λ ≥ 0.

    ``quadratic`` is H of shape (M, M), ``linear`` is c of shape (M,), ``cubic`` is λ.
    """

    quadratic: NDArray[np.float64]
    linear: NDArray[np.float64]
    cubic: float

    def value(self, alpha: NDArray[np.float64]) -> float:
        """f(α)."""
        smooth = alpha @ (self.quadratic @ alpha) + self.linear @ alpha
        return float(smooth + self.cubic * np.sum(alpha**3))

    def gradient(self, alpha: NDArray[np.float64]) -> NDArray[np.float64]:
        """∇f(α) = 2Hα + c + 3λα², with the square taken entry by entry."""
        slope: NDArray[np.float64] = 2.0 * (self.quadratic @ alpha) + self.linear
        return slope + 3.0 * self.cubic * alpha**2 if self.cubic else slope

    def gap(self, alpha: NDArray[np.float64], gradient: NDArray[np.float64]) -> float:
        """Frank–Wolfe duality gap ⟨∇f(α), α⟩ − minᵢ ∇f(α)ᵢ ≥ f(α) − min f, for α in the simplex.

        Jaggi, Revisiting Frank–Wolfe, ICML 2013. Summed as Σ αᵢ (∇ᵢ − min ∇), whose terms are all
        non-negative, so that nothing cancels.
        """
        return float(alpha @ (gradient - gradient.min()))

    def rounding(self, alpha: NDArray[np.float64]) -> float:
        """Size of the rounding error of f and of the gap at α: M ε times f before cancellation.

        By Cauchy–Schwarz Σᵢⱼ αᵢ|Hᵢⱼ|αⱼ ≤ (Σ αᵢ √Hᵢᵢ)². It looks only at silos with weight: one
        silo with huge gradients does not spoil the accuracy of a solution that leaves it out.
        """
        spread = float(alpha @ np.sqrt(np.abs(self.quadratic.diagonal()))) ** 2
        terms = spread + float(alpha @ np.abs(self.linear)) + self.cubic * float(np.sum(alpha**3))
        return alpha.size * EPSILON * terms

    def is_optimal(
        self, alpha: NDArray[np.float64], gradient: NDArray[np.float64], tolerance: float
    ) -> bool:
        """Whether the gap is below ``tolerance`` times f's terms at α, or cannot be resolved."""
        linear = float(self.linear @ alpha)
        scale = self.value(alpha) - linear + abs(linear)
        return self.gap(alpha, gradient) <= max(tolerance * scale, self.rounding(alpha))
