"""Differential privacy of a peer's gradients: the silo clips them, then adds Gaussian noise.

Asked at a model w, with b samples in its mini-batch ξ, a private silo sends

    (1/b) Σ_{x ∈ ξ} clip(∇ℓ(w; x), C) + z Δ N(0, I),    Δ = 2C/b    privacy-clip = "sample"
    clip(∇ℓ(w; ξ), C)                 + z Δ N(0, I),    Δ = 2C      privacy-clip = "batch"

where C is ``max-norm``, z is ``privacy-noise``, and Δ bounds how far the clipped gradient moves
when one sample is replaced by any other (sizes n are public). One answer is a Gaussian mechanism of
noise multiplier z; :mod:`spcacw_flwr.silos.accounting` adds up many answers. Clipping each sample
follows M. Abadi et al., Deep Learning with Differential Privacy, CCS 2016.

The resulting ε holds for real numbers. There is no defence against the rounding of floats
(I. Mironov, On Significance of the Least Significant Bits for Differential Privacy, CCS 2012).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spcacw_flwr.alpha import norms_of
from spcacw_flwr.config.declare import SpcacwError, numbers_in
from spcacw_flwr.config.keys import PASS, SAMPLED
from spcacw_flwr.silos.batches import Batch
from spcacw_flwr.silos.gradients import SiloGradients
from spcacw_flwr.silos.streams import Chances, Randomness

if TYPE_CHECKING:
    from spcacw_flwr.config.config import Config

OWN_NOISE, OWN_BATCH = range(2)
"""The purposes of a private silo's own random numbers."""
ROOM = 1 << 26
"""Numbers of per-sample gradients in memory at once; more samples are split into groups."""
ANY = "any"
BATCHES = (PASS, SAMPLED, ANY)
"""Batches of a pass over the data, freshly sampled batches, and any (nothing is known)."""
TAIL = 1e-9
"""The largest chance that an honest answer exceeds :func:`norm_bound`."""


@dataclass(frozen=True)
class Mechanism:
    """What a private silo does to a gradient before it is sent."""

    noise: float
    """z, the standard deviation of the noise in units of Δ."""
    max_norm: float
    """C, the norm to which gradients are clipped."""
    delta: float
    """δ of the reported (ε, δ)."""
    per_sample: bool
    """Whether each sample's gradient is clipped, or only their mean."""
    batches: str
    """How batches are drawn: one of :data:`BATCHES`."""

    def deviation(self, samples: int) -> float:
        """Return z Δ, the standard deviation of each coordinate's noise, for b = ``samples``."""
        sensitivity = 2 * self.max_norm / (samples if self.per_sample else 1)
        return self.noise * sensitivity

    def norm_bound(self, dimension: int, samples: int) -> float:
        """Return a norm that an honest answer (d,) exceeds with a chance of at most 1e-9.

        ‖N(0, I_d)‖ is 1-Lipschitz in its argument with mean at most √d, so it exceeds
        √d + √(2 ln 1/p) with a chance of at most p.
        """
        tail = math.sqrt(dimension) + math.sqrt(2 * math.log(1 / TAIL))
        return self.max_norm + self.deviation(samples) * tail


def mechanisms(config: Config, num_silos: int) -> dict[int, Mechanism]:
    """Return the mechanism of each private silo; none when ``privacy-noise`` is 0.

    SpcacwError if the keys do not fit together, or if the package for the accounting of sampled
    batches is missing.
    """
    keys, training, target = config.privacy, config.training, config.run.target
    if keys.privacy_noise == 0:
        return {}
    if math.isinf(training.longest):
        raise SpcacwError(
            "privacy-noise needs gradients that silos clip: set clip = 'silo' and max-norm above 0."
        )
    if keys.privacy_batches == SAMPLED and find_spec("dp_accounting") is None:
        raise SpcacwError(
            "privacy-batches = 'sampled' needs the package dp-accounting to say what is spent: "
            "pip install 'spcacw-flwr[privacy]', or use privacy-batches = 'pass'."
        )
    named = numbers_in(keys.privacy_silos, num_silos)
    if named is None:
        raise SpcacwError(
            f"privacy-silos = '{keys.privacy_silos}' must list silo ids in 0…{num_silos - 1}."
        )
    silos = named or [i for i in range(num_silos) if i != target]
    if target in silos:
        raise SpcacwError(
            f"Silo {target} is private and cannot be the target: its losses, L and accuracy would "
            "tell of its data without noise; leave it out of privacy-silos, or (in a node config) "
            "set privacy-noise = 0."
        )
    per_sample = keys.privacy_clip == "sample"
    noise, norm, delta = keys.privacy_noise, training.max_norm, keys.privacy_delta
    return dict.fromkeys(silos, Mechanism(noise, norm, delta, per_sample, keys.privacy_batches))


def privatise(gradient: Tensor, samples: int, mechanism: Mechanism, chance: Randomness) -> None:
    """Clip a gradient (d,) of ``samples`` samples to C and add the noise, in place.

    A gradient that is not finite becomes 0 first, because this fact is private too.
    """
    norm = float(norms_of(gradient))
    if not math.isfinite(norm):
        gradient.zero_()
    elif norm > mechanism.max_norm:
        gradient.mul_(mechanism.max_norm / norm)
    noise = torch.from_numpy(chance.standard_normal(len(gradient))) * mechanism.deviation(samples)
    gradient.copy_(gradient.double() + noise.to(gradient.device))


def clipped_mean(
    compute: SiloGradients, vector: Tensor, x: Tensor, y: Tensor, max_norm: float, seed: int
) -> Tensor:
    """Return (1/b) Σ clip(∇ℓ(w; x), C), (d,), of a mini-batch x, y of b samples at w (d,).

    Each sample goes through the model as its own batch. So no sample can affect another's gradient,
    whatever the model does. A sample whose gradient is not finite counts as 0.
    """
    total, size = torch.zeros_like(vector), max(1, ROOM // len(vector))
    for start in range(0, len(x), size):
        one = slice(start, start + size)
        rows = vector.new_empty(len(x[one]), len(vector))
        seeds = partial(operator.add, seed + start + 1)
        compute(vector, x[one].unsqueeze(1), y[one].unsqueeze(1), rows, seeds)
        norms = norms_of(rows)
        factors, bad = (max_norm / norms).clamp_(max=1.0), ~norms.isfinite()
        if bool(bad.any()):
            rows[bad], factors[bad] = 0.0, 0.0
        total += factors @ rows
    return total / len(x)


class PrivateSilos:
    """Silos with a mechanism, and the source of their random numbers.

    SpcacwError if each sample's gradient is to be clipped and the model has BatchNorm, which mixes
    the samples of a batch.
    """

    def __init__(
        self, mechanisms: Mapping[int, Mechanism], chances: Chances, model: nn.Module
    ) -> None:
        self.mechanisms, self.chances = mechanisms, chances
        mixes = any(isinstance(module, _BatchNorm) for module in model.modules())
        if mixes and any(one.per_sample for one in mechanisms.values()):
            raise SpcacwError(
                "privacy-clip = 'sample' does not go with BatchNorm, under which a sample has no "
                "gradient of its own: use a model without it, or privacy-clip = 'batch'."
            )

    def among(self, silos: Sequence[int]) -> list[tuple[int, Mechanism]]:
        """Return the places of the private silos among ``silos``, and their mechanisms."""
        found = self.mechanisms
        return [(k, found[silo]) for k, silo in enumerate(silos) if silo in found]

    def refuse(self, silos: Iterable[int], what: str) -> None:
        """Raise SpcacwError if any of ``silos`` is private: ``what`` would carry no noise."""
        private = sorted(set(silos) & set(self.mechanisms))
        if private:
            raise SpcacwError(
                f"Silo {private[0]} keeps its data private (privacy-noise) and tells nobody its "
                f"{what}: use a method that asks peers for gradients only."
            )

    def drawn(
        self, silos: Sequence[int], sizes: Mapping[int, int], batch_size: int,
        place: tuple[int, int, int], samples: Sequence[int] | None,
    ) -> dict[int, NDArray[np.int64]]:  # fmt: skip
        """Return the samples for an answer of the silos that sample their batches privately.

        ``place`` is the round, the number of the question in the round, and the draw.
        """
        found = {}
        for k, mechanism in self.among(silos):
            if mechanism.batches == SAMPLED:
                silo, size = silos[k], sizes[silos[k]]
                count = min(batch_size, size, size if samples is None else samples[k])
                chance = self.chances(OWN_BATCH, silo, *place)
                found[silo] = chance.choice(size, count, replace=False)
        return found

    def clip_samples(
        self, compute: SiloGradients, points: Tensor, batch: Batch, silos: Sequence[int],
        into: Tensor,
    ) -> None:  # fmt: skip
        """Overwrite the rows of silos that clip each sample; ``points`` is (d,) or (k, d)."""
        for k, mechanism in self.among(silos):
            if mechanism.per_sample:
                one = points if points.ndim == 1 else points[k], batch.x[k], batch.y[k]
                into[k] = clipped_mean(compute, *one, mechanism.max_norm, batch.seed_of(k))

    def finish(
        self, rows: Tensor, losses: Tensor, norms: Tensor, silos: Sequence[int],
        lengths: Sequence[int], place: tuple[int, int, int],
    ) -> None:  # fmt: skip
        """Clip and noise the private rows, update their norms, and withhold their losses.

        Row k comes from a mini-batch of ``lengths[k]`` samples; ``place`` is as in :meth:`drawn`.
        """
        for k, mechanism in self.among(silos):
            privatise(rows[k], lengths[k], mechanism, self.chances(OWN_NOISE, silos[k], *place))
            losses[k], norms[k] = float("nan"), norms_of(rows[k])
