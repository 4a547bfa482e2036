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

    Those of a silo, or a pair, are of the rounds since it was first heard.
    """

    def __init__(self, num_silos: int, target: int) -> None:
        self.noise = NoiseTracker(num_silos, target)
        self.target = target
        self._covariance, self._rounds = np.zeros((2, num_silos, num_silos))
        self._squares, self._sampling = np.zeros((2, num_silos))
        self._total = 0.0

    def add(
        self, products: Matrix, differences: Matrix, betas: Vector, *, counts: bool = True,
        sampling: Vector | float = 0.0, level: Vector | float = 1.0,
    ) -> Matrix:  # fmt: skip
        """Fold in one round, and return B̂B̂ᵀ without its noise, (M, M).

        The arrays are those of :meth:`NoiseTracker.update`; ``sampling`` is (1/p − 1)‖gᵢ‖², (M,),
        the variance that sampling adds to g̃ᵢ, ``level`` that of the :class:`BiasTracker`. A round
        before T_start (``counts`` is false) teaches what the noise is, and nothing else.
        """
        self.noise.update(products, differences, betas)
        corrected = self.noise.corrected()
        if counts:
            heard = betas > 0
            heard[self.target] = True
            news = self.noise.known | np.outer(heard, heard)
            own = news.diagonal()
            self._covariance += np.where(news, self.noise.covariance, 0.0)
            self._rounds += news
            self._squares += own * corrected.diagonal() * np.square(level)
            self._sampling += own * sampling
            self._total += 1.0
        return corrected

    @property
    def squared_biases(self) -> Vector:
        """‖bᵢ‖², (M,), ≥ 0; NaN for a silo that was not heard twice, 0 for the target."""
        return self._known(self._squares * self._scale.diagonal())

    @property
    def variances(self) -> Vector:
        """σᵢ², (M,); NaN for a silo that was not heard twice."""
        return self._known(self.noise.variances(self._covariance * self._scale))

    @property
    def _scale(self) -> Matrix:
        """What makes sums those of all rounds: more than 1 for who was not heard from the first."""
        none = np.zeros_like(self._rounds)
        return np.divide(self._total, self._rounds, out=none, where=self._rounds > 0)

    def _known(self, total: Vector) -> Vector:
        known = self.noise.seen & (self._rounds.diagonal() > 0)
        mean: Vector = np.where(known, np.maximum(total, 0.0) / max(self._total, 1.0), np.nan)
        return mean

    def closed_form(self, eta: float, smoothness: float) -> Vector:
        """The lemma's α, (M,): 0 for silos not heard twice, all to the target at first.

        σᵢ² is that of g̃ᵢ: to the noise of a peer's gradient comes what sampling adds.
        """
        biases, variances = self.squared_biases, self.variances
        alpha = np.zeros(len(biases))
        if not (known := np.isfinite(biases)).any():
            alpha[self.target] = 1.0
            return alpha
        variances += self._known(self._sampling * self._scale.diagonal())
        alpha[known] = optimal_weights(biases[known], variances[known], eta, smoothness).alpha
        return alpha

    def figures(self, eta: float, smoothness: float) -> dict[str, Vector]:
        """Return ‖bᵢ‖, σᵢ and the closed-form weight of each silo, (M,) each."""
        return {
            "bias": np.sqrt(self.squared_biases),
            "sigma": np.sqrt(self.variances),
            "closed_form": self.closed_form(eta, smoothness),
        }
