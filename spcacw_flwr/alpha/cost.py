"""The convergence-induced cost of a weight vector, as an M×M quadratic form.

Paper, Eq. (CostDef) with estimated biases (section "Estimating the Biases"); the matrix form Hₜ is
that of the exp-concavity lemma's proof; regularisation from appendix "Practical Algorithmic
Details", items "Cubic Regularization" and "Dynamic Regularization".
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def cost_matrix(
    biases: NDArray[np.float64], gradients: NDArray[np.float64], eta: float, smoothness: float
) -> NDArray[np.float64]:
    """Hₜ = B̂ B̂ᵀ + ηL G Gᵀ, so that the round's cost is L̂ₜ(α) = αᵀ Hₜ α, Eq. (CostDef).

    Rows are silos here, where the paper has columns. The cost depends on α through these M²
    numbers only, so a solver need not touch d-dimensional data again.

    Parameters
    ----------
    biases, gradients : (M, M) float64 arrays
        B̂ B̂ᵀ and G Gᵀ of the round, from :func:`~spcacw_flwr.alpha.products.grams`.
    eta, smoothness : float
        Step size η and smoothness L, whose product weighs the variance proxy.

    Raises
    ------
    ValueError
        If the shapes differ, or ηL is negative or not finite.
    """
    if biases.shape != gradients.shape:
        raise ValueError(
            f"The products of biases and gradients must have one shape, not {biases.shape} and "
            f"{gradients.shape}."
        )
    if not 0.0 <= eta * smoothness < np.inf:
        raise ValueError(f"eta and smoothness must be finite and >= 0, not {eta} and {smoothness}.")
    return biases + eta * smoothness * gradients


def cost(alpha: NDArray[np.float64], H: NDArray[np.float64], cubic: float = 0.0) -> float:
    """αᵀHα + λ Σ αᵢ³: Eq. (CostDef) for one Hₜ, Eq. (refined_objective) for their sum.

    Parameters
    ----------
    alpha : (M,) array
        Weights.
    H : (M, M) array
        From :func:`cost_matrix`, of one round or summed over rounds.
    cubic : float
        λ_reg.
    """
    quadratic = float(alpha @ H @ alpha)
    return quadratic + cubic * float(np.sum(alpha**3)) if cubic else quadratic


class RunningVariance:
    """Coordinate-wise sample variance of the target's gradient since the last reset.

    λ_reg = γ ‖var(g₀)‖², appendix item "Dynamic Regularization". The paper does not say what the
    variance runs over or its normalisation: here over the rounds since :meth:`reset` (an epoch),
    with denominator n − 1. Welford's recurrence (Technometrics 4, 1962) in float64, O(d) memory.

    Attributes
    ----------
    count : int
        Gradients added since the last reset.
    """

    def __init__(self) -> None:
        """Start empty; the first gradient sets d and the device."""
        self.reset()

    def reset(self) -> None:
        """Forget every gradient."""
        self.count = 0
        self._mean = torch.zeros(0, dtype=torch.float64)
        self._squares = torch.zeros(0, dtype=torch.float64)

    def add(self, g: Tensor) -> None:
        """Fold in one gradient of shape (d,); ValueError if d changes before a reset."""
        if self.count == 0:
            self._mean = torch.zeros_like(g, dtype=torch.float64)
            self._squares = torch.zeros_like(self._mean)
        if g.shape != self._mean.shape:
            raise ValueError(f"Expected shape {tuple(self._mean.shape)}, not {tuple(g.shape)}.")
        self.count += 1
        deviation = g.to(torch.float64) - self._mean
        self._mean.add_(deviation, alpha=1.0 / self.count)
        # deviation · (g − new mean) = deviation² · (count − 1) / count
        self._squares.addcmul_(deviation, deviation, value=(self.count - 1) / self.count)

    def squared_norm(self) -> float:
        """‖var(g₀)‖², squared as the paper prints it; 0.0 with fewer than two gradients."""
        if self.count < 2:
            return 0.0
        return float((self._squares / (self.count - 1)).square().sum())
