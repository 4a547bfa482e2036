"""Separate biases from the noise in their estimates, by M×M inner products alone.

This is ours, not the paper's. Eq. (alg_single_est) averages noisy differences δᵢ = gᵢ − g₀ into
b̂ᵢ = Σ_t w_t δᵢ,ₜ. Hence E⟨b̂ᵢ, b̂ⱼ⟩ = s²⟨bᵢ, bⱼ⟩ + c Σᵢⱼ with s = Σ w, c = Σ w². Σ is the
covariance of the differences: σᵢ² + σ₀² on the diagonal and σ₀² elsewhere, because all share −g₀.
An unbiased peer thus looks biased by β/(2 − β)(σᵢ² + σ₀²).

Let K = B̂B̂ᵀ, and D_t the products of a round's δ. Q = Σ_t w_t² D_t sums the products of each round
with itself, so K − Q has no noise of single rounds. U = (K − Q) / (s² − c) is unbiased for BBᵀ
with any noise, if rounds are independent. The mean of D minus U is Σ.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.alpha.closed_form import optimal_weights
from spcacw_flwr.alpha.solver import Matrix, Vector

LEAST = 1e-9  # a smaller sum of weights counts as no observation


def differences(products: Matrix, silos: Sequence[int], target: int) -> Matrix:
    """Return the products of δᵢ = gᵢ − g₀ from those of the gradients, both (M, M).

    ``silos`` are the silos that reported. Rows and columns of all other silos are 0.
    """
    own, heard = products[target], np.isin(np.arange(len(products)), silos)
    between = products - own - own[:, None] + own[target]
    return np.where(np.outer(heard, heard), between, 0.0)


class NoiseTracker:
    """Running estimates of the products of biases, and of the noise of a round's gradients.

    ``sums`` (M,) is s of each silo. ``pairs`` (M, M) is s² − c: above 0 once two different
    rounds had reports of a pair. Σ is a mean that forgets as b̂ does, because noise changes.
    """

    def __init__(self, num_silos: int, target: int) -> None:
        self.peers = np.arange(num_silos) != target
        self.target = target
        self._own, self._cross, self._spread, self._seen, self._products = np.zeros(
            (5, num_silos, num_silos)
        )  # Q, c, mean of D, its total weight, K
        self.sums: Vector = np.zeros(num_silos)
        self._biases: Matrix | None = None  # kept until the next round
        self._variances: Vector | None = None

    def update(self, products: Matrix, differences: Matrix, betas: Vector) -> None:
        """Add a round: K after it, and D and βᵢ, which are 0 for silos that did not report.

        The target reports in every round and has its own β; its rows of K and D are 0.
        """
        self._biases = self._variances = None
        keep = 1.0 - betas
        kept, new = np.outer(keep, keep), np.outer(betas, betas)
        self._products = products
        self._own = kept * self._own + new * differences
        self._cross = kept * self._cross + new
        self.sums = keep * self.sums + betas
        rate = np.sqrt(new)
        self._spread += rate * (differences - self._spread)
        self._seen += rate * (1.0 - self._seen)

    @property
    def pairs(self) -> Matrix:
        """s² − c (M, M), the weight of pairs of different rounds."""
        return np.outer(self.sums, self.sums) - self._cross

    @property
    def own_pairs(self) -> Vector:
        """The diagonal of :attr:`pairs`, (M,)."""
        return self.sums**2 - self._cross.diagonal()

    @property
    def lengths(self) -> Vector:
        """‖b̂ᵢ‖ (M,) after the last round."""
        return np.sqrt(self._products.diagonal().clip(0.0))

    @property
    def known(self) -> NDArray[np.bool_]:
        """(M,) which silos reported in at least two rounds."""
        return self.own_pairs > LEAST

    def biases(self) -> Matrix:
        """Return U (M, M), which may be indefinite; 0 for pairs that are not known."""
        if self._biases is None:
            pairs = self.pairs
            seen = np.outer(self.known, self.known) & (pairs > LEAST)
            none = np.zeros_like(pairs)
            self._biases = np.divide(self._products - self._own, pairs, out=none, where=seen)
        return self._biases

    def variances(self) -> Vector:
        """Return σᵢ² (M,) ≥ 0 of a round's gradients; 0 for silos that are not known.

        σ₀² is the mean of Σᵢⱼ over pairs of different peers. With one peer there is no pair, and
        each of the two silos gets half of the noise of their difference.
        """
        if self._variances is None:
            self._variances = self._found_variances()
        return self._variances

    def _found_variances(self) -> Vector:
        seen = self._seen > LEAST
        covariance = np.divide(self._spread, self._seen, out=np.zeros_like(self._seen), where=seen)
        covariance -= self.biases()
        peers = self.peers & self.known
        between = np.outer(peers, peers) & seen
        np.fill_diagonal(between, False)
        own = covariance.diagonal()
        shared = covariance[between].mean() if between.any() else 0.5 * own[peers].max(initial=0.0)
        variances = np.where(peers, np.maximum(own - shared, 0.0), 0.0)
        variances[self.target] = max(float(shared), 0.0)
        return variances


class Evidence:
    """Means over rounds of ‖bᵢ‖² and σᵢ², and the lemma's weights for these means.

    A silo's means cover the rounds since it became known.
    """

    def __init__(self, num_silos: int, target: int) -> None:
        self.noise = NoiseTracker(num_silos, target)
        self._rounds, self._squares, self._noise, self._sampling = np.zeros((4, num_silos))

    def add(self, sampling: Vector) -> None:
        """Add the last round that ``noise`` got; ``sampling`` is (1/p − 1)‖gᵢ‖², (M,)."""
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
        """‖bᵢ‖², (M,), ≥ 0; NaN for a silo that did not report twice, 0 for the target."""
        return self._mean(self._squares)

    @property
    def variances(self) -> Vector:
        """σᵢ², (M,); NaN for a silo that did not report twice."""
        return self._mean(self._noise)

    def closed_form(self, eta: float, smoothness: float) -> Vector:
        """Return the lemma's α, (M,): at first e_0; 0 for silos that did not report twice.

        σᵢ² is the variance of g̃ᵢ: the noise of a peer's gradient plus what sampling adds.
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
