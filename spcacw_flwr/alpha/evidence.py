"""What the rounds say of each silo: its bias, its noise, and the weight both would earn.

The lemma "Optimal Weights" gives α in closed form from ‖bᵢ‖² and σᵢ²; here both are estimated
online, from the inner products that SP-CACW has at hand anyway (:mod:`spcacw_flwr.alpha.noise`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.alpha.closed_form import optimal_weights
from spcacw_flwr.alpha.noise import Matrix, NoiseTracker

Vector = NDArray[np.float64]


def differences(products: Matrix, silos: tuple[int, ...], target: int, num_silos: int) -> Matrix:
    """Return the products of δᵢ = gᵢ − g₀, (M, M), from those of the gradients of ``silos`` (k, k).

    Rows and columns of silos that did not report are 0.
    """
    own = products[silos.index(target)]
    found = np.zeros((num_silos, num_silos))
    found[np.ix_(silos, silos)] = products - own - own[:, None] + own[silos.index(target)]
    return found


class Evidence:
    """Running means over rounds of ‖bᵢ‖², freed of its noise, and of σᵢ².

    Parameters
    ----------
    num_silos, target : int
        M, and the target's number.
    retention : float
        ρ, the share of the old rounds' weight that is left after a round; 1 forgets nothing.
    """

    def __init__(self, num_silos: int, target: int, retention: float = 1.0) -> None:
        self.noise = NoiseTracker(num_silos, target)
        self.target, self.retention = target, retention
        self._biases, self._variances = np.zeros(num_silos), np.zeros(num_silos)
        self._rounds = np.zeros(num_silos)

    def add(
        self, products: Matrix, differences: Matrix, betas: Vector, *, counts: bool = True
    ) -> None:
        """Fold in one round; the arrays are those of :meth:`NoiseTracker.update`.

        A round before T_start (``counts`` is false) teaches what the noise is, and nothing else.
        """
        self.noise.update(products, differences, betas)
        if not counts:
            return
        seen = self.noise.seen
        for total, value in (
            (self._biases, self.noise.corrected().diagonal()),
            (self._variances, self.noise.variances()),
            (self._rounds, 1.0),
        ):
            total *= self.retention
            total += np.where(seen, value, 0.0)

    @property
    def squared_biases(self) -> Vector:
        """‖bᵢ‖², (M,), ≥ 0; NaN for a silo that never reported, 0 for the target."""
        return np.maximum(self._mean(self._biases), 0.0)

    @property
    def variances(self) -> Vector:
        """σᵢ², (M,); NaN for a silo that never reported."""
        return self._mean(self._variances)

    def _mean(self, total: Vector) -> Vector:
        unknown = np.full_like(total, np.nan)
        mean: Vector = np.divide(total, self._rounds, out=unknown, where=self._rounds > 0)
        return mean

    def closed_form(self, eta: float, smoothness: float) -> Vector:
        """Return the lemma's α, (M,); silos that never reported get 0, all to the target at first.

        Parameters
        ----------
        eta, smoothness : float
            η and L, in C₁ = 1 + 2ηL and C₂ = ηL.
        """
        alpha = np.zeros(len(self._rounds))
        if not (known := self._rounds > 0).any():
            alpha[self.target] = 1.0
            return alpha
        found = optimal_weights(self.squared_biases[known], self.variances[known], eta, smoothness)
        alpha[known] = found.alpha
        return alpha

    def figures(self, eta: float, smoothness: float) -> dict[str, Vector]:
        """Return ‖bᵢ‖, σᵢ and the closed-form weight of each silo, (M,) each."""
        return {
            "bias": np.sqrt(self.squared_biases),
            "sigma": np.sqrt(self.variances),
            "closed_form": self.closed_form(eta, smoothness),
        }
