"""What a private silo has revealed so far: ε at a given δ, of all its answers together.

Neighbours are two data sets of one silo, as its model gets them, that differ in one sample. Sizes
are public, and so is the scale of features.

*pass* (batches that the target can predict): an answer depends on a sample only if it uses the
sample. The batches of a pass are disjoint, so at most one answer of a pass uses a given sample. Let
E be the number of answers that use the most used sample. They are E adaptive Gaussian mechanisms
of noise multiplier z, together exactly one of multiplier z/√E (J. Dong, A. Roth and W. J. Su,
Gaussian Differential Privacy, JRSS B 2022), and, with μ = √E/z (B. Balle and Y.-X. Wang, Improving
the Gaussian Mechanism for Differential Privacy, ICML 2018, theorem 8),

    δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ).

*sampled* (batches drawn afresh without replacement, with random numbers that the target does not
know): every answer is a Gaussian mechanism on b of n samples, and Rényi divergences add up (Y.-X.
Wang, B. Balle and S. P. Kasiviswanathan, Subsampled Rényi Differential Privacy and Analytical
Moments Accountant, AISTATS 2019; the package dp-accounting computes them). Sampled answers never
reveal more than the same answers on all data. So the formula above, with E the number of answers,
holds as well, and the smaller ε is reported.

*any* (nothing is known of the batches, for example those of someone else's ClientApp): the
formula above, with E the number of answers.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.silos.batches import batch_indices
from spcacw_flwr.silos.privacy import ANY, PASS, Mechanism
from spcacw_flwr.silos.protocol import GRADIENTS, Request

if TYPE_CHECKING:
    from spcacw_flwr.config.config import Config
    from spcacw_flwr.silos.protocol import Federation

ORDERS = (*(1 + k / 10 for k in range(1, 10)), *range(2, 65), 80, 96, 128, 192, 256)
"""Rényi orders; the best of them is used. Any set of orders gives a valid bound."""


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Return δ(ε) of a Gaussian mechanism whose sensitivity is μ standard deviations."""
    from scipy.special import log_ndtr  # imported here for the reason given below

    first = float(log_ndtr(mu / 2 - epsilon / mu))
    second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    return math.exp(first) * -math.expm1(min(second - first, 0.0))


@lru_cache(maxsize=1 << 12)
def gaussian_epsilon(uses: int, noise: float, delta: float) -> float:
    """Return ε at δ of E = ``uses`` Gaussian mechanisms of noise multiplier z, composed."""
    from scipy.optimize import brentq  # here: the import takes 0.5 s, and few runs need it

    mu = math.sqrt(uses) / noise
    if mu == 0 or gaussian_delta(0.0, mu) <= delta:
        return 0.0
    high = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))  # from ρ-zCDP with ρ = μ²/2
    return float(brentq(lambda epsilon: gaussian_delta(epsilon, mu) - delta, 0.0, high))


@lru_cache
def _sampled_divergences(batch: int, samples: int, noise: float) -> NDArray[np.float64]:
    """Return the Rényi divergences, at :data:`ORDERS`, of one answer on a batch drawn afresh."""
    import dp_accounting as dp  # the extra 'privacy'
    from dp_accounting.rdp import RdpAccountant

    event = dp.SampledWithoutReplacementDpEvent(samples, batch, dp.GaussianDpEvent(noise))
    return np.array(RdpAccountant(ORDERS, dp.NeighboringRelation.REPLACE_ONE).compose(event).rdp)


@lru_cache(maxsize=1 << 12)
def sampled_epsilon(answers: int, batch: int, samples: int, noise: float, delta: float) -> float:
    """Return ε at δ of ``answers`` answers, each on ``batch`` of ``samples`` samples drawn afresh.

    If dp-accounting is missing here (the silos may have it), sampling does not lower ε.
    """
    whole = gaussian_epsilon(answers, noise, delta)
    if answers == 0 or batch >= samples or find_spec("dp_accounting") is None:
        return whole
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

    divergences = answers * _sampled_divergences(batch, samples, noise)
    return min(whole, float(compute_epsilon(ORDERS, divergences, delta)[0]))


class Ledger:
    """What the private silos have revealed since training began.

    The target keeps one ledger of all silos. There every question counts as answered, because a
    late or dropped reply reveals as much. A real silo keeps its own ledger.

    ``answers`` counts the mini-batch gradients that each private silo was asked for. ``uses``
    (n,) counts, for each silo with predictable batches, the answers that use each sample.
    """

    def __init__(self, config: Config, federation: Federation) -> None:
        self.config, self.federation = config, federation
        self.answers = dict.fromkeys(self.mechanisms, 0)
        sizes = self.sizes
        self.uses: dict[int, NDArray[np.int64]] = {
            silo: np.zeros(sizes[silo], dtype=np.int64)
            for silo, one in self.mechanisms.items()
            if one.batches == PASS
        }

    @property
    def mechanisms(self) -> dict[int, Mechanism]:
        """The mechanism of each private silo."""
        return {one.silo: one.privacy for one in self.federation.silos if one.privacy is not None}

    @property
    def sizes(self) -> dict[int, int]:
        """The samples of each silo."""
        return {one.silo: one.size for one in self.federation.silos}

    def note(self, request: Request, silos: Sequence[int]) -> None:
        """Count the answers of ``silos`` to a request.

        With ``local-batches`` an answer is a mean of that many gradients, each with its own noise.
        """
        if request.want != GRADIENTS:
            return  # a private silo answers only questions for gradients
        batches = self.config.transport.local_batches
        for silo in silos:
            if silo in self.answers:
                self.answers[silo] += batches
            for k in range(batches) if silo in self.uses else ():
                self.uses[silo][self._rows(silo, request, k)] += 1

    def _rows(self, silo: int, request: Request, k: int) -> NDArray[np.int64]:
        """Return the samples of the k-th mini-batch of a silo with predictable batches."""
        seed, size = self.config.run.seed, self.config.training.batch_size
        draw = self.config.transport.local_batches * request.draw + k
        rows = batch_indices(seed, silo, request.round, len(self.uses[silo]), size, draw)
        return rows[: _part(request, silo)]

    def bounds(self, request: Request) -> dict[int, float]:
        """Return, for each private silo of a request, a norm that honest answers hardly exceed.

        The gate drops longer answers. See :meth:`~spcacw_flwr.silos.privacy.Mechanism.norm_bound`.
        """
        found, dimension, sizes = {}, request.points.shape[-1], self.sizes
        for silo, one in self.mechanisms.items():
            if silo in request.silos:
                batch = self.config.training.batch_size, sizes[silo], _part(request, silo)
                samples = len(self._rows(silo, request, 0)) if silo in self.uses else min(batch)
                found[silo] = one.norm_bound(dimension, max(1, samples))
        return found

    def epsilon(self, silo: int) -> float:
        """Return ε of a silo so far, at its δ; infinite if the silo is not private."""
        one = self.mechanisms.get(silo)
        if one is None:
            return math.inf
        if silo in self.uses:
            return gaussian_epsilon(int(self.uses[silo].max(initial=0)), one.noise, one.delta)
        if one.batches == ANY:
            return gaussian_epsilon(self.answers[silo], one.noise, one.delta)
        samples = self.config.training.batch_size, self.sizes[silo]
        return sampled_epsilon(self.answers[silo], *samples, one.noise, one.delta)

    def state(self) -> dict[str, list[int]]:
        """Return the counts of each private silo, its answers first, for :meth:`restore`."""
        return {
            str(silo): [count, *self.uses.get(silo, np.empty(0, dtype=np.int64)).tolist()]
            for silo, count in self.answers.items()
        }

    def restore(self, silo: int, counts: Sequence[int] | NDArray[np.int64]) -> None:
        """Continue from the counts of a silo that :meth:`state` returned."""
        self.answers[silo] = int(counts[0])
        if silo in self.uses:
            uses, size = np.array(counts[1:], dtype=np.int64), len(self.uses[silo])
            # The owner changed the data or how batches are drawn: assume the most uses possible.
            self.uses[silo] = uses if len(uses) == size else np.full(size, counts[0])

    def figures(self) -> dict[str, NDArray[np.float64]]:
        """Return ε of each silo (M,), NaN for silos that are not private; empty if none is."""
        if not self.answers:
            return {}
        silos = range(self.federation.num_silos)
        spent = [self.epsilon(i) if i in self.answers else math.nan for i in silos]
        return {"epsilon": np.array(spent)}

    def summary(self) -> dict[str, dict[str, float | int | str]]:
        """Return the mechanism, the answers and ε of each private silo, for the summary."""
        return {
            str(silo): {
                "epsilon": self.epsilon(silo), "delta": one.delta, "noise": one.noise,
                "max_norm": one.max_norm, "clip": "sample" if one.per_sample else "batch",
                "batches": one.batches, "answers": self.answers[silo],
            } for silo, one in self.mechanisms.items()
        }  # fmt: skip


def _part(request: Request, silo: int) -> int:
    """Return how many samples of its mini-batch a silo may use at most."""
    if request.samples is None:
        return sys.maxsize
    return request.samples[request.silos.index(silo)]
