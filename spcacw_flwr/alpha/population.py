"""Estimate how far a weighted sum of gradients is from the target's *population* gradient.

This is ours, not the paper's; docs/plus.md derives it. Silo i's whole gradient is ∇fᵢ + eᵢ. The
error eᵢ comes from its nᵢ samples and is the same in every round, with E‖eᵢ‖² = Fᵢ. The differences
of whole gradients are b̂ᵢ = bᵢ + eᵢ − e₀. For weights α on the simplex,

    E‖Σ αᵢ(∇fᵢ + eᵢ) − ∇f₀‖² = ‖Σ αᵢ bᵢ‖² + Σ αᵢ² Fᵢ,    E⟨b̂ᵢ, b̂ⱼ⟩ = ⟨bᵢ, bⱼ⟩ + F₀ + [i = j] Fᵢ.

All is estimated from M × M products that SP-CACW has anyway: K = B̂B̂ᵀ of the running means of
gᵢ − g₀, and D, the products of one round's gᵢ − g₀.

* U holds the products of b̂ without noise (:mod:`spcacw_flwr.alpha.noise`). If rounds are
  independent, U is unbiased for whole gradients. Rounds of one pass are not independent: samples
  are drawn without replacement, deviations cancel, and U holds only 1 − ρ of the F. Here ρ is the
  share of pairs of rounds that belong to one pass.
* A mini-batch of b of the n samples, each of variance S², has the noise S²(1/b − 1/n), and F is
  S²/n. So Fᵢ = σᵢ² / (rᵢ − 1 + ρᵢ), where r is the mean of n/b over rounds, because the last batch
  of a pass is shorter. If an answer is the mean of l independent mini-batches, F is l times that,
  and U holds 1 − ρ/l of it. If only n′ of the n samples are independent, F is a = n/n′ times that,
  and U holds 1 − ρ/(al) of it.
"""

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.alpha.noise import LEAST, NoiseTracker
from spcacw_flwr.alpha.solver import Matrix, Vector, minimise

RATIO, ADDED, PRODUCT, BIAS, PEER = range(5)
"""Averaged with b̂'s weights: n/b, noise added on purpose, ⟨gᵢ, g₀⟩, g₀ along b̂ᵢ and along gᵢ."""
FLATTEST = 0.01
"""Lower limit of κᵢ/κ, the curvature along a bias relative to that along noise."""


def positive_part(matrix: Matrix, scales: Vector) -> Matrix:
    """Return the nearest positive semi-definite matrix (N. J. Higham, 1988), symmetric (M, M).

    Distance is measured in units of ``scales`` (M,), the standard errors of rows and columns.
    Otherwise the noise of one row would change all others.
    """
    units = np.outer(scales, scales)
    values, vectors = np.linalg.eigh(matrix / units)
    return (vectors * np.maximum(values, 0.0)) @ vectors.T * units


def left_of_noise(step: float, passes: Vector) -> Vector:
    """Return the share (M,) of the variance of mini-batch noise that is left in w after a pass.

    Samples are drawn without replacement, so the deviations of a pass's r rounds sum to 0. The
    effect of a round on w is multiplied by q = 1 − ``step`` each round, 0 < step < 1. Of what r
    independent rounds leave, (1 − (1 − qʳ)(1 + q) / (r (1 − q)(1 + qʳ))) r/(r − 1) is left.
    """
    rounds, keep = np.maximum(passes, 2.0), 1.0 - step
    power = keep**rounds
    cancelled = (1.0 - power) * (1.0 + keep) / (rounds * step * (1.0 + power))
    return (1.0 - cancelled) * rounds / (rounds - 1.0)


class Population:
    """Biases between populations, noise, errors of finite samples, and the resulting weights.

    The caller updates its ``noise`` first. ``passes`` (M,) is the number of rounds in each silo's
    pass over its data. ``sizes`` (M,) is nᵢ, of which ``independent`` (M,) are independent. An
    answer is the mean of ``draws`` mini-batches.
    """

    def __init__(
        self, noise: NoiseTracker, passes: Vector, sizes: Vector, independent: Vector,
        draws: int = 1,
    ) -> None:  # fmt: skip
        self.noise, self.passes, self.sizes = noise, passes, sizes
        self.independent, self.draws = independent, draws
        self.alike = sizes / independent
        self.target, M = noise.target, len(passes)
        self._means, self._squares, self._heard = np.zeros((3, 5, M))
        self._pass, self._same = np.zeros((2, M))  # s of the pass; pairs of rounds of one pass
        self._biases, self._weight = np.zeros((2, M, M))
        self._errors, self._left, self._noise, self._bias, self._peer = np.zeros((5, M))
        self._total = 0.0

    def update(
        self, betas: Vector, round_: int, products: Matrix, along: Vector, batches: Vector,
        added: Vector,
    ) -> None:  # fmt: skip
        """Add round t, after ``noise``: βᵢ (0 for silos that did not report) and GGᵀ (M, M).

        ``along`` (M,) is g₀ along each b̂ᵢ before the round; for the target, along a difference of
        two of its earlier gradients; NaN if that has length 0. ``batches`` (M,) is the number b of
        samples in a silo's mini-batch. ``added`` (M,) is the variance of noise that silos add on
        purpose; it is no error of their data.
        """
        keep = 1.0 - betas
        ratios = np.divide(self.sizes, batches, out=np.zeros_like(betas), where=betas > 0.0)
        own, lengths = products[self.target], np.sqrt(products.diagonal())
        peer = np.divide(own, lengths, out=np.full_like(own, np.nan), where=lengths > 0.0)
        values = np.stack([ratios, added, own, along, peer])
        weights = np.where(np.isfinite(values), betas, 0.0)
        values = np.where(np.isfinite(values), values, 0.0)
        self._heard += weights * (1.0 - self._heard)
        self._means += weights * (values - self._means)
        self._squares += weights * (values**2 - self._squares)
        self._pass[(round_ - 1) % self.passes == 0] = 0.0
        self._same = keep * (keep * self._same + 2.0 * betas * self._pass)
        self._pass = keep * self._pass + betas

    def _mean(self, what: int) -> Vector:
        return self._means[what] / np.maximum(self._heard[what], LEAST)

    def _spread(self, what: int) -> Vector:
        """Return the variance over rounds, (M,)."""
        squares = self._squares[what] / np.maximum(self._heard[what], LEAST)
        return np.maximum(squares - self._mean(what) ** 2, 0.0)

    def variances(self) -> Vector:
        """Return σ² (M,) of a round's gradients; the target's is at most its mean ‖g₀‖².

        It is estimated from what the differences of peers share, and attackers can inflate that.
        """
        variances = self.noise.variances().copy()
        variances[self.target] = min(variances[self.target], self._mean(PRODUCT)[self.target])
        return variances

    def _drawn(self) -> Vector:
        """Return the variances (M,) of mini-batches, without noise added on purpose."""
        return np.maximum(self.variances() - self._mean(ADDED), 0.0)

    def opposed(self) -> NDArray[np.bool_]:
        """Return (M,) which silos' gradients go against the target's in the mean of rounds.

        Between like silos that have fitted their samples, E⟨gᵢ, g₀⟩ falls to −½F₀. A silo that is
        below −½F₀ by more than a standard error is opposed.
        """
        known, pairs, sums = self.noise.known, self.noise.own_pairs, self.noise.sums
        few = np.divide(sums**2, pairs, out=np.ones_like(pairs), where=known) - 1.0  # 1/(T − 1)
        most = self._mean(PRODUCT) + np.sqrt(few * self._spread(PRODUCT))
        return known & (most < -0.5 * self.errors()[self.target])

    def repeats(self) -> Vector:
        """Return ρ (M,), the share of pairs of rounds that belong to one pass of a silo."""
        pairs = self.noise.own_pairs
        return np.divide(self._same, pairs, out=np.zeros_like(pairs), where=pairs > LEAST)

    def errors(self) -> Vector:
        """Return F (M,), the squared error of each silo's whole gradient.

        A silo whose batch is all of its data shows no noise: it gets the least error per sample of
        the other peers. The target's noise seems to vanish once w has fitted its samples: its
        error per sample is no smaller than that one.
        """
        several = self.passes > 1
        rounds = np.maximum(self._mean(RATIO) - 1.0 + self.repeats(), LEAST)
        errors = np.where(several, self.alike * self.draws * self._drawn() / rounds, 0.0)
        others = several & self.noise.peers & self.noise.known
        least = (errors * self.independent)[others].min(initial=np.inf)
        least = np.where(np.isfinite(least), least, 0.0) / self.independent
        errors = np.where(several, errors, least)
        errors[self.target] = max(errors[self.target], least[self.target])
        return errors

    def add(self, step: float, sampling: Vector) -> None:
        """Add a round to the sums from which weights are learned.

        ``step`` is ηκ/(1 − μ) < 1, the weight of noise; of mini-batch noise :func:`left_of_noise`
        counts. ``sampling`` (M,) is (1/p − 1)‖gᵢ‖², which sampling adds to noise. A round is
        divided by the running mean of ‖g₀‖²: early gradients are long and would outweigh late ones.
        """
        norm = self._mean(PRODUCT)[self.target]
        if norm <= 0.0:
            return
        share, known = 1.0 / norm, self.noise.known
        errors = np.where(known, self.errors(), 0.0)
        self._biases += share * self.noise.biases()
        self._weight += share * np.outer(known, known)
        if step > 0.0:
            gone = (1.0 - left_of_noise(step, self.passes)) * self._drawn()
            noise = self.variances() - gone + sampling
            self._noise += share * step * np.where(known, noise, 0.0)
        self._errors += share * errors
        self._left += share * (1.0 - self.repeats() / (self.alike * self.draws)) * errors
        self._bias += share * known * self._spread(BIAS)
        self._peer += share * known * self._spread(PEER)
        self._total += share

    def weights(self, gone: NDArray[np.bool_] | bool = False) -> Vector:
        """Return the α (M,) of least risk; at first the target has all weight.

        Silos that did not report twice, and silos that are opposed or ``gone`` (M,) now, get 0. A
        peer whose bias exceeds the target's error is worse alone than the target, and does not
        reduce that error. As the bias grows from ½ to 3/2 of the error, a growing part of the error
        counts as common to both silos. A far bias counts more if the loss is flat along it.
        """
        known = self._weight.diagonal() > 0.0
        peers = np.flatnonzero(self.noise.peers & known & ~(self.opposed() | gone))
        alpha = np.zeros(len(known))
        alpha[self.target] = 1.0
        if not len(peers):
            return alpha
        biases = self._biases_among(peers)
        rounds = np.where(known, self._weight.diagonal(), self._total)
        errors, noise = self._errors / rounds, self._noise / rounds
        own, errors[self.target] = errors[self.target], 0.0
        shared = np.zeros(len(known))  # part of the target's error
        shared[peers] = (biases.diagonal() - 0.5 * own).clip(0.0, own) / (own or 1.0)
        units = 1.0 + (self._flatness()[peers] - 1.0) * shared[peers]
        biases *= np.outer(units, units)
        shared[self.target] = 1.0
        risk = np.diag(errors + noise) + own * np.outer(shared, shared)
        risk[np.ix_(peers, peers)] += biases
        some = np.append(peers, self.target)
        alpha[some] = minimise(risk[np.ix_(some, some)]).alpha
        return alpha

    def _flatness(self) -> Vector:
        """Return √(κ/κᵢ) ≥ 1 (M,): the variation of g₀ along noise, divided by that along b̂ᵢ.

        The noise of b̂ᵢ is half the target's and half the peer's. The result is 1 if the target's
        batch is all of its data, because it then shows no noise.
        """
        rounds = self._weight.diagonal()
        own = self._bias[self.target] * rounds / rounds[self.target]
        noise, seen = 0.5 * (own + self._peer), (own > 0.0) & (self.passes[self.target] > 1)
        shares = np.divide(self._bias, noise, out=np.ones_like(noise), where=seen)
        return shares.clip(FLATTEST, 1.0) ** -0.5

    def _biases_among(self, peers: NDArray[np.int64]) -> Matrix:
        """Return the mean products of the bᵢ of ``peers``, made positive semi-definite.

        If the estimate is not, this is luck, and no silo gains weight by luck. For the same reason
        the subtracted error of the target is at most what the best mixture of peers leaves.
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
        luck = self._left[self.target] / self._total
        return positive_part(found - min(luck, float(best @ part @ best)), scales)
