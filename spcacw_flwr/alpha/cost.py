"""The convergence-induced cost of a weight vector, as an M×M quadratic form, and its regret.

Paper, Eq. (CostDef) with estimated biases (section "Estimating the Biases"). The proof of the
exp-concavity lemma has the matrix form Hₜ. Regularisation is in appendix "Practical Algorithmic
Details", items "Cubic Regularization" and "Dynamic Regularization". Section "Overcoming Uncertainty
via Regret Minimization" has R_T = Σ L̂ₜ(αₜ) − min_α Σ L̂ₜ(α) and the theorem on FTAL,
R_T ≤ 64 (1/γ + GD) M (1 + log T).
"""

import math

import numpy as np
import torch
from torch import Tensor

from spcacw_flwr.alpha.learners import DIAMETER, LargestGradient, exp_concavity, gradient_bound
from spcacw_flwr.alpha.solver import Matrix, Vector, minimise


def cost_matrix(biases: Matrix, gradients: Matrix, eta: float, smoothness: float) -> Matrix:
    """Return Hₜ = B̂ B̂ᵀ + ηL G Gᵀ; the round's cost is L̂ₜ(α) = αᵀ Hₜ α, Eq. (CostDef).

    Silos are rows here, and columns in the paper. The cost depends on α through these M² numbers
    only, so a solver needs no d-dimensional data. ``biases`` B̂ B̂ᵀ and ``gradients`` G Gᵀ, (M, M),
    come from :func:`~spcacw_flwr.alpha.products.grams`. ValueError if the shapes differ, or ηL is
    negative or not finite.
    """
    if biases.shape != gradients.shape:
        raise ValueError(
            f"The products of biases and gradients must have one shape, not {biases.shape} and "
            f"{gradients.shape}."
        )
    if not 0.0 <= eta * smoothness < np.inf:
        raise ValueError(f"eta and smoothness must be finite and >= 0, not {eta} and {smoothness}.")
    return biases + eta * smoothness * gradients


def cost(alpha: Vector, H: Matrix, cubic: float = 0.0) -> float:
    """Return αᵀHα + λ Σ αᵢ³: Eq. (CostDef) for one Hₜ, Eq. (refined_objective) for their sum."""
    quadratic = float(alpha @ H @ alpha)
    return quadratic + cubic * float(np.sum(alpha**3)) if cubic else quadratic


class RunningVariance:
    """Coordinate-wise sample variance of the target's gradient since the last reset.

    λ_reg = γ ‖var(g₀)‖², appendix item "Dynamic Regularization". The paper gives neither range nor
    normalisation: here the range is the rounds since :meth:`reset` (an epoch), the denominator
    n − 1. Welford's recurrence (Technometrics 4, 1962) in float64 needs O(d) memory. ``count``
    gradients were added since the last reset; the first one sets d and the device.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget every gradient."""
        self.count = 0
        self._mean = torch.zeros(0, dtype=torch.float64)
        self._squares = torch.zeros(0, dtype=torch.float64)

    def add(self, g: Tensor) -> None:
        """Add one gradient of shape (d,)."""
        if self.count == 0:
            self._mean = torch.zeros_like(g, dtype=torch.float64)
            self._squares = torch.zeros_like(self._mean)
        self.count += 1
        deviation = g.to(torch.float64) - self._mean
        self._mean.add_(deviation, alpha=1.0 / self.count)
        # deviation · (g − new mean) = deviation² · (count − 1) / count
        self._squares.addcmul_(deviation, deviation, value=(self.count - 1) / self.count)

    def squared_norm(self) -> float:
        """Return ‖var(g₀)‖², squared as in the paper; 0.0 with fewer than two gradients."""
        if self.count < 2:
            return 0.0
        return float((self._squares / (self.count - 1)).square().sum())


class _Sum:
    """A running sum, entry by entry, that also sums its rounding errors (Knuth's two-sum)."""

    def __init__(self, *shape: int) -> None:
        self.high = self.low = np.zeros(shape)

    def add(self, x: Matrix | float) -> None:
        total = self.high + x
        old = total - x
        self.low = self.low + ((self.high - old) + (x - (total - old)))
        self.high = total

    @property
    def value(self) -> Matrix:
        return self.high + self.low


class RegretMeter:
    """Measure R_T, from O(M²) numbers.

    Regret is a small difference of long sums. The sums keep their rounding errors, so the error of
    R_T is a few ε of the sums, not T ε.

    The theorem has one γ and one G. Here they change with L, and with g_max if it is measured, so
    the bound uses the largest 1/γ and G so far. The bound is that of FTAL with new weights in
    every round. With new weights every K = ``every`` rounds, it is applied to the T/K blocks. Each
    block has K times the G and 1/γ of a round.

    ``gradient_bound`` is g_max; None is the largest ``gradient_norm`` passed to :meth:`add` so far.
    ValueError for a bound that is not positive and finite.
    """

    def __init__(
        self, num_silos: int, eta: float, gradient_bound: float | None = None, every: int = 1
    ) -> None:
        self.eta, self.every = eta, every
        self.gradients = LargestGradient(gradient_bound)
        self.rounds = 0
        self._played, self._total = _Sum(), _Sum(num_silos, num_silos)
        self._constant = 0.0  # largest 1/γ + GD

    def add(
        self, H_t: Matrix, alpha_played: Vector, smoothness: float,
        gradient_norm: float | None = None,
    ) -> None:  # fmt: skip
        """Add one round, as a learner does; ValueError if it has a cost and g_max is unknown."""
        self.gradients.see(gradient_norm)
        self.rounds += 1
        if not H_t.any():
            return
        self._played.add(cost(alpha_played, H_t))
        self._total.add(H_t)
        known = self.eta, smoothness, self.gradients.value
        constant = 1.0 / exp_concavity(*known) + gradient_bound(*known) * DIAMETER
        self._constant = max(self._constant, constant)

    def report(self) -> dict[str, float]:
        """Return Σ L̂ₜ(αₜ), min_α Σ L̂ₜ(α), R_T and the theorem's bound for the rounds so far."""
        total, played = self._total.value, float(self._played.value)
        best = cost(minimise(total).alpha, total)
        blocks = math.ceil(self.rounds / self.every)
        growth = 1.0 + math.log(max(1, blocks))
        return {
            "cumulative_cost": played,
            "best_fixed_cost": best,
            "regret": played - best,
            "regret_bound": 64.0 * self.every * self._constant * len(total) * growth,
        }
