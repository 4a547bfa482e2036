"""What the rounds say of each silo: its bias, its noise, and the weight both would earn.

The lemma "Optimal Weights" gives α in closed form from ‖bᵢ‖² and σᵢ²; here both are estimated
online, from the inner products that SP-CACW has at hand anyway (:mod:`spcacw_flwr.alpha.noise`).
"""

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
    """Means over rounds of ‖bᵢ‖² and σᵢ²; of a silo, over those since it was known."""

    def __init__(self, num_silos: int, target: int) -> None:
        self.noise = NoiseTracker(num_silos, target)
        self._rounds, self._squares, self._noise, self._sampling = np.zeros((4, num_silos))

    def add(self, sampling: Vector) -> None:
        """Count the round that ``noise`` heard last; ``sampling`` is (1/p − 1)‖gᵢ‖², (M,)."""
        known = self.noise.known
        self._rounds += known
        self._squares += known * self.noise.biases().diagonal()
        self._noise += known * self.noise.variances()
        self._sampling += known * sampling

    def _mean(self, total: Vector) -> Vector:
        none = np.full(len(total), np.nan)
        return np.divide(total.clip(0.0), self._rounds, out=none, where=self._rounds > 0)

    @property
    def squared_biases(self) -> Vector:
        """‖bᵢ‖², (M,), ≥ 0; NaN for a silo that was not heard twice, 0 for the target."""
        return self._mean(self._squares)

    @property
    def variances(self) -> Vector:
        """σᵢ², (M,); NaN for a silo that was not heard twice."""
        return self._mean(self._noise)

    def closed_form(self, eta: float, smoothness: float) -> Vector:
        """The lemma's α, (M,): 0 for silos not heard twice, all to the target at first.

        σᵢ² is that of g̃ᵢ: to the noise of a peer's gradient comes what sampling adds.
        """
        biases, variances = self.squared_biases, self.variances + self._mean(self._sampling)
        known = np.isfinite(biases)
        alpha = np.zeros(len(biases))
        if known.sum() < 2:
            alpha[self.noise.target] = 1.0
        else:
            alpha[known] = optimal_weights(biases[known], variances[known], eta, smoothness).alpha
        return alpha

    def figures(self, eta: float, smoothness: float) -> dict[str, Vector]:
        """Return ‖bᵢ‖, σᵢ and the closed-form weight of each silo, (M,) each."""
        return {
            "bias": np.sqrt(self.squared_biases),
            "sigma": np.sqrt(self.variances),
            "closed_form": self.closed_form(eta, smoothness),
        }
