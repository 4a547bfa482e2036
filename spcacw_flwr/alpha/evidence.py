"""What the rounds say of each silo: its bias, its noise, and the weight both would earn.

The lemma "Optimal Weights" gives α in closed form from ‖bᵢ‖² and σᵢ²; here both are estimated
online, from the inner products that SP-CACW has at hand anyway (:mod:`spcacw_flwr.alpha.noise`).
"""

from __future__ import annotations

import numpy as np

from spcacw_flwr.alpha.closed_form import Vector, optimal_weights
from spcacw_flwr.alpha.noise import Matrix, NoiseTracker


def differences(products: Matrix, silos: tuple[int, ...], target: int, num_silos: int) -> Matrix:
    """Return the products of δᵢ = gᵢ − g₀, (M, M), from those of the gradients of ``silos`` (k, k).

    Rows and columns of silos that did not report are 0.
    """
    own = products[silos.index(target)]
    between = products - own - own[:, None] + own[silos.index(target)]
    if len(silos) == num_silos:
        return between
    found = np.zeros((num_silos, num_silos))
    found[np.ix_(silos, silos)] = between
    return found


class Evidence:
    """Running means over rounds of the products of the bᵢ, freed of noise, and of Σ.

    ``retention`` is ρ, the share of the old rounds' weight that is left after a round.
    """

    def __init__(self, num_silos: int, target: int, retention: float = 1.0) -> None:
        self.noise = NoiseTracker(num_silos, target)
        self.target, self.retention = target, retention
        self._products, self._covariance = np.zeros((2, num_silos, num_silos))
        self._rounds = 0.0

    def add(
        self, products: Matrix, differences: Matrix, betas: Vector, *, counts: bool = True
    ) -> Matrix:
        """Fold in one round, and return B̂B̂ᵀ without its noise, (M, M).

        The arrays are those of :meth:`NoiseTracker.update`. A round before T_start (``counts`` is
        false) teaches what the noise is, and nothing else.
        """
        self.noise.update(products, differences, betas)
        corrected = self.noise.corrected()
        if counts:
            self._products = self.retention * self._products + corrected
            self._covariance = self.retention * self._covariance + self.noise.covariance
            self._rounds = self.retention * self._rounds + 1.0
        return corrected

    @property
    def squared_biases(self) -> Vector:
        """‖bᵢ‖², (M,), ≥ 0; NaN for a silo that was not heard twice, 0 for the target."""
        return self._known(self._products.diagonal())

    @property
    def variances(self) -> Vector:
        """σᵢ², (M,); NaN for a silo that was not heard twice."""
        return self._known(self.noise.variances(self._covariance))

    def _known(self, total: Vector) -> Vector:
        known = self.noise.seen & (self._rounds > 0)
        mean: Vector = np.where(known, np.maximum(total, 0.0) / max(self._rounds, 1.0), np.nan)
        return mean

    def closed_form(self, eta: float, smoothness: float) -> Vector:
        """The lemma's α, (M,): 0 for silos that never reported, all to the target at first."""
        biases, variances = self.squared_biases, self.variances
        alpha = np.zeros(len(biases))
        if not (known := np.isfinite(biases)).any():
            alpha[self.target] = 1.0
            return alpha
        alpha[known] = optimal_weights(biases[known], variances[known], eta, smoothness).alpha
        return alpha

    def figures(self, eta: float, smoothness: float) -> dict[str, Vector]:
        """Return ‖bᵢ‖, σᵢ and the closed-form weight of each silo, (M,) each."""
        return {
            "bias": np.sqrt(self.squared_biases),
            "sigma": np.sqrt(self.variances),
            "closed_form": self.closed_form(eta, smoothness),
        }
