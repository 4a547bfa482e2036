"""How far a weighted sum of gradients is from the target's *population* gradient.

Ours, not the paper's; docs/plus.md derives it. Silo i's whole gradient is ∇fᵢ + eᵢ, off that of its
population by the error eᵢ of its nᵢ samples, the same in every round, E‖eᵢ‖² = Fᵢ. The differences
b̂ᵢ of whole gradients are bᵢ + eᵢ − e₀, so that for weights α on the simplex

    E‖Σ αᵢ(∇fᵢ + eᵢ) − ∇f₀‖² = ‖Σ αᵢ bᵢ‖² + Σ αᵢ² Fᵢ,    E⟨b̂ᵢ, b̂ⱼ⟩ = ⟨bᵢ, bⱼ⟩ + F₀ + [i = j] Fᵢ.

Everything is estimated from the M × M products that SP-CACW has at hand: K = B̂B̂ᵀ of the running
means b̂ᵢ = Σ_t w_t δᵢ,ₜ of δᵢ = gᵢ − g₀, and D, the products of a round's δ.

* Without the products of a round with itself, Q = Σ_t w_t² D_t, what is left of K has no noise
  of single rounds: U = (K − Q) / (s² − c), s = Σ w, c = Σ w², is unbiased for ⟨b̂ᵢ, b̂ⱼ⟩ whatever the
  noise, if rounds are independent. Within a pass they are not: drawn without replacement,
  deviations cancel, and U has only 1 − ρ of the F in it, ρ being the share of pairs of rounds of
  one pass.
* The mean of D less U is the covariance of the δ, σᵢ² + σ₀² on its diagonal and σ₀² elsewhere.
* The mean of the R batches of a pass has the variance Fᵢ = σᵢ² / (Rᵢ − 1 + ρᵢ).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.alpha.solver import minimise

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]
_LEAST = 1e-9  # of a sum of weights: below it, nothing was seen
SHRINKAGE = 0.5
"""Of the target's error, for the weights are chosen by biases that have the same error in them.

With one peer the step has α = 1 − cF₀/‖b̂‖², which is James and Stein's estimator: for c = ½ it is
better than the target alone, whatever the bias, if tr Σ ≥ (8/3) λ_max(Σ) for the covariance Σ of
the target's error (W. James and C. Stein, Estimation with quadratic loss, 1961; docs/plus.md).
"""


def positive_part(matrix: Matrix, scales: Vector | float = 1.0) -> Matrix:
    """Return the nearest positive semi-definite matrix (N. J. Higham, 1988), symmetric (M, M).

    Near is meant in units of ``scales`` (M,), the standard errors of rows and columns: else the
    luck of one noisy row would change all others.
    """
    units = np.outer(scales, scales) * np.ones_like(matrix)
    values, vectors = np.linalg.eigh(matrix / units)
    part: Matrix = (vectors * np.maximum(values, 0.0)) @ vectors.T * units
    return part


class Population:
    """Biases between populations, noise, and errors of finite samples, and the weights they earn.

    ``passes`` (M,) are the rounds Rᵢ of a pass of each silo over its data, ``sizes`` (M,) its nᵢ,
    ``told`` (M,) the variance of noise that silos add on purpose, which is no error of their data.
    """

    def __init__(self, target: int, passes: Vector, sizes: Vector, told: Vector) -> None:
        self.target, self.passes, self.sizes, self.told = target, passes, sizes, told
        M = len(passes)
        self._own, self._cross, self._spread, self._seen = np.zeros((4, M, M))  # Q, c, D, its share
        self._sum, self._pass, self._same = np.zeros((3, M))  # s; of the pass; pairs of one pass
        self._norm = 0.0
        self._biases, self._weight, self._gradients = np.zeros((3, M, M))
        self._errors, self._left = np.zeros((2, M))
        self._total = 0.0

    def update(
        self, K: Matrix, D: Matrix, betas: Vector, round_: int, squared_norm: float
    ) -> None:  # fmt: skip
        """Fold in round t: K after it, D (0 for who did not report), βᵢ (0 for who did not), ‖g₀‖².

        The target reports in every round; its rows of K and D are 0.
        """
        keep = 1.0 - betas
        kept, new = np.outer(keep, keep), np.outer(betas, betas)
        self.products = K
        self._own = kept * self._own + new * D
        self._cross = kept * self._cross + new
        self._sum = keep * self._sum + betas
        self._pass[(round_ - 1) % self.passes == 0] = 0.0
        self._same = keep * (keep * self._same + 2.0 * betas * self._pass)
        self._pass = keep * self._pass + betas
        rate = np.sqrt(new)
        self._spread += rate * (D - self._spread)
        self._seen += rate * (1.0 - self._seen)
        self._norm += betas[self.target] * (squared_norm - self._norm)

    @property
    def known(self) -> NDArray[np.bool_]:
        """(M,) who was heard in two rounds at least."""
        known: NDArray[np.bool_] = self._sum**2 - self._cross.diagonal() > _LEAST
        return known

    def biases(self) -> Matrix:
        """Return U (M, M), which may be indefinite; 0 for pairs that are not known."""
        pairs = np.outer(self._sum, self._sum) - self._cross
        seen = np.outer(self.known, self.known) & (pairs > _LEAST)
        return np.divide(self.products - self._own, pairs, out=np.zeros_like(pairs), where=seen)

    def variances(self) -> Vector:
        """Return σᵢ² (M,) ≥ 0 of a round's gradients; 0 for who is not known."""
        peers = self._peers() & self.known
        none = np.zeros_like(self._spread)
        covariance = np.divide(self._spread, self._seen, out=none, where=self._seen > _LEAST)
        covariance -= self.biases()
        pairs = np.outer(peers, peers) & (self._seen > _LEAST)
        np.fill_diagonal(pairs, False)
        own = covariance.diagonal()
        # With one peer, the noise of its difference is put down to both silos in equal parts.
        shared = covariance[pairs].mean() if pairs.any() else 0.5 * own[peers].max(initial=0.0)
        variances = np.where(peers, np.maximum(own - shared, 0.0), 0.0)
        variances[self.target] = max(float(shared), 0.0)
        return variances

    def repeats(self) -> Vector:
        """Return ρ (M,), the share of pairs of rounds in which a silo was within one pass."""
        pairs = self._sum**2 - self._cross.diagonal()
        return np.divide(self._same, pairs, out=np.zeros_like(pairs), where=pairs > _LEAST)

    def errors(self) -> Vector:
        """Return F (M,), the squared error of each silo's whole gradient.

        Of a silo whose batch is all that it has no noise is seen; and the target's seems gone once
        w has fitted its samples. The former has the least error of a sample among the other peers,
        the latter no less than that.
        """
        several = self.passes > 1
        noise = np.maximum(self.variances() - self.told, 0.0)
        rounds = np.where(several, self.passes - 1.0 + self.repeats(), 1.0)
        errors = np.where(several, noise / rounds, 0.0)
        others = several & self._peers() & self.known
        least = (errors * self.sizes)[others].min(initial=np.inf)
        least = np.where(np.isfinite(least), least, 0.0) / self.sizes
        errors = np.where(several, errors, least)
        errors[self.target] = max(errors[self.target], least[self.target])
        return errors

    def add(self, gradients: Matrix) -> None:
        """Add a round to what weights are learned from; ``gradients`` is ηκ E G̃G̃ᵀ (M, M).

        The round counts in units of the running mean of ‖g₀‖²: early gradients are long, and would
        outweigh late ones.
        """
        norm = self._norm / self._sum[self.target]
        if norm <= 0.0:
            return
        share, errors = 1.0 / norm, self.errors()
        self._biases += share * self.biases()
        self._weight += share * np.outer(self.known, self.known)
        self._gradients += share * gradients
        self._errors += share * errors
        self._left += share * (1.0 - self.repeats()) * errors
        self._total += share

    def weights(self) -> Vector:
        """Return the α (M,) of least risk; 0 for silos not heard twice, all to the target at first.

        The target's error counts by :data:`SHRINKAGE`. A peer whose bias is more than the whole of
        it, alone worse than the target, cannot mend it: their errors count as one.
        """
        known = self._weight.diagonal() > 0.0
        peers = np.flatnonzero(self._peers() & known)
        alpha = np.zeros(len(known))
        alpha[self.target] = 1.0
        if not len(peers):
            return alpha
        biases = self._biases_among(peers)
        errors = self._errors / np.where(known, self._weight.diagonal(), self._total)
        far = peers[biases.diagonal() > errors[self.target]]
        shared = SHRINKAGE * errors[self.target]
        errors[self.target] = 0.0
        risk = self._gradients / self._total + np.diag(errors)
        risk[np.ix_(peers, peers)] += biases
        with_target = np.append(far, self.target)
        risk[np.ix_(with_target, with_target)] += shared
        some = np.append(peers, self.target)
        alpha[some] = minimise(risk[np.ix_(some, some)]).alpha
        return alpha

    def _biases_among(self, peers: NDArray[np.int64]) -> Matrix:
        """Return the mean products of the bᵢ of ``peers``, positive semi-definite.

        Where the found ones are not, it is luck, and no silo is paid for luck. For the same reason
        the target's error in them is no more than what the best mixture of peers leaves.
        """
        weight = self._weight[np.ix_(peers, peers)]
        none = np.zeros_like(weight)
        found = np.divide(self._biases[np.ix_(peers, peers)], weight, out=none, where=weight > 0.0)
        found -= np.diag(self._left[peers] / weight.diagonal())
        variances = self.variances()
        scales = np.sqrt(variances[peers] + variances[self.target])
        scales = np.where(scales > 0.0, scales, scales.max(initial=0.0) or 1.0)
        part = positive_part(found, scales)
        best = minimise(part).alpha
        luck = SHRINKAGE * self._left[self.target] / self._total
        return positive_part(found - min(luck, float(best @ part @ best)), scales)

    def _peers(self) -> NDArray[np.bool_]:
        return np.arange(len(self.passes)) != self.target
