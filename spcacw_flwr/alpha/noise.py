"""The noise in the bias estimates, from M×M inner products alone, and its removal.

Ours, not the paper's. Eq. (alg_single_est) averages noisy differences δᵢ = gᵢ − g₀, so that
E⟨b̂ᵢ, b̂ⱼ⟩ = ⟨bᵢ, bⱼ⟩ + cᵢⱼ Σᵢⱼ, where Σ is the covariance of the differences, σᵢ² + σ₀² on the
diagonal and σ₀² elsewhere, as all share −g₀, and c is what the average leaves of it: β/(2 − β) in
the long run, 1/t under the harmonic schedule. An unbiased peer thus looks biased by
β/(2 − β)(σᵢ² + σ₀²), and a cost that believes it keeps weight at the target.

Σ is seen in the innovations eᵢ = δᵢ − b̂ᵢ (b̂ before the round). While the bias stands still,
E⟨eᵢ, eⱼ⟩ = (1 + cᵢⱼ) Σᵢⱼ + rᵢⱼ⟨bᵢ, bⱼ⟩, where r is what is left in b̂ of its start at 0, and so
E(⟨eᵢ, eⱼ⟩ − rᵢⱼ⟨δᵢ, δⱼ⟩) = (1 + cᵢⱼ − rᵢⱼ) Σᵢⱼ: the ratio of running means of both sides is Σ.
No d-dimensional work is needed for it: with the products K of the b̂ before and K' after the round,
D of the δ, and b̂' = (1 − β) b̂ + β δ,

    ⟨b̂ᵢ, δⱼ⟩ + ⟨δᵢ, b̂ⱼ⟩ = (K' − (1 − β)² K − β² D) / (β (1 − β)),    ⟨eᵢ, eⱼ⟩ = D + K − that.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.alpha.population import positive_part

Matrix = NDArray[np.float64]
_LEAST = 1e-12  # of a weight: below it, what was summed up is rounding


class NoiseTracker:
    """Running estimates of Σ and of the noise in the products of the bias estimates.

    A pair of silos is seen when both reported with one β. The estimate of Σ forgets at the rate at
    which b̂ does, since the noise changes as training goes on. Row ``target`` of all products is 0.

    ``products`` (M, M) is K of the last :meth:`update`. ``factor`` (M, M) is c: exact for any
    participation, by cᵢⱼ ← (1 − βᵢ)(1 − βⱼ) cᵢⱼ + βᵢ βⱼ, where βᵢ = 0 for a silo that did not
    report. ``covariance`` (M, M) is Σ, as estimated; 0 for pairs that were never seen.
    """

    def __init__(self, num_silos: int, target: int) -> None:
        self.target = target
        self.products, self.factor, self.covariance = np.zeros((3, num_silos, num_silos))
        self._sum, self._weight = np.zeros((2, num_silos, num_silos))
        self._start: NDArray[np.float64] = np.ones(num_silos)
        self._prepare(np.zeros(num_silos))

    def update(self, products: Matrix, differences: Matrix, betas: NDArray[np.float64]) -> None:
        """Fold in one round: B̂B̂ᵀ after it and D, of δᵢ = gᵢ − g₀, both (M, M), and its βᵢ, (M,).

        βᵢ is in (0, 1], or 0 for the target and for silos that did not report, whose entries of D
        are not used.
        """
        if not np.array_equal(betas, self._betas):
            self._prepare(betas)
        keep, kept, new, inverse, rate = self._rates
        cross = (products - kept * self.products - new * differences) * inverse
        left = np.outer(self._start, self._start)
        excess = (1.0 - left) * differences + self.products - cross
        self._sum += rate * (excess - self._sum)
        self._weight += rate * (1.0 + self.factor - left - self._weight)
        self._start = self._start * keep
        self.factor = kept * self.factor + new
        self.products = products
        known = self._weight > _LEAST
        self.covariance = np.divide(
            self._sum, self._weight, out=np.zeros_like(self._sum), where=known
        )

    def _prepare(self, betas: NDArray[np.float64]) -> None:
        """Keep what follows from β alone: it is the same in most rounds."""
        keep = 1.0 - betas
        kept, new = np.outer(keep, keep), np.outer(betas, betas)
        # at β = 1 nothing of b̂ is left to learn from
        used = (new > 0) & np.equal.outer(betas, betas) & (betas < 1.0)
        inverse = np.divide(1.0, betas * keep, out=np.zeros_like(new), where=used)
        self._betas, self._rates = betas.copy(), (keep, kept, new, inverse, betas * used)

    @property
    def known(self) -> NDArray[np.bool_]:
        """(M, M) of which pairs Σ is known."""
        return self._weight > _LEAST

    @property
    def seen(self) -> NDArray[np.bool_]:
        """(M,) which silos' noise is known: of the target, once that of any peer is."""
        seen: NDArray[np.bool_] = self._weight.diagonal() > _LEAST
        seen[self.target] = seen.any()
        return seen

    def corrected(self) -> Matrix:
        """Return K − c ∘ Σ, (M, M): unbiased for the products of the biases; may be indefinite."""
        return self.products - self.factor * self.covariance

    def variances(self, covariance: Matrix | None = None) -> NDArray[np.float64]:
        """Return σᵢ², (M,), each ≥ 0, of the Σ of now or of another, such as a mean over rounds.

        σ₀² is the mean of Σᵢⱼ over pairs of different peers; with a single peer there is none, and
        the noise of its difference is put down to both silos in equal parts.
        """
        covariance = self.covariance if covariance is None else covariance
        peers = np.arange(len(covariance)) != self.target
        pairs = np.outer(peers, peers) & (self._weight > _LEAST)
        np.fill_diagonal(pairs, False)
        own = covariance.diagonal()
        if pairs.any():
            shared = float(covariance[pairs].mean())
        else:
            shared = 0.5 * float(own[peers].max(initial=0.0))
        variances = np.maximum(own - shared, 0.0)
        variances[self.target] = max(shared, 0.0)
        return variances


class PositivePart:
    """Summands whose running sum is the positive semi-definite part of that of their arguments.

    Corrected products of one round are indefinite, and their positive part alone would bring back
    the noise: it is the sum over rounds in which the noise averages out. With X₁, X₂, … put in,
    ``add`` returns P_t − P_{t−1}, where P_t is the matrix without negative eigenvalues that is
    nearest to X₁ + … + X_t in Frobenius norm (N. J. Higham, Computing a nearest symmetric
    positive semidefinite matrix, Linear Algebra and its Applications 103, 1988).
    """

    def __init__(self, size: int) -> None:
        self._sum: Matrix = np.zeros((size, size))
        self._part: Matrix = np.zeros((size, size))

    def add(self, summand: Matrix) -> Matrix:
        """Return the (M, M) summand to use in place of this one."""
        self._sum += summand
        before, self._part = self._part, positive_part(self._sum)
        return self._part - before
