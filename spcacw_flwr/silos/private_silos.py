"""The private silos of a node: what :class:`~spcacw_flwr.silos.pool.SiloPool` does otherwise there.

This is the one place where our own silos add noise, under every engine; silos that speak our
records through a ClientApp of somebody else have :mod:`spcacw_flwr.flower.mods` for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.silos.gradients import SiloGradients
from spcacw_flwr.silos.privacy import SAMPLED, Mechanism, clipped_mean, privatise
from spcacw_flwr.silos.randomness import BATCH, NOISE, Chances
from spcacw_flwr.silos.stacked import Batch


class PrivateSilos:
    """Silos with a mechanism, and the chance that they draw on.

    Raises
    ------
    SpcacwError
        If the gradient of a sample is to be clipped, and the model has none: BatchNorm mixes the
        samples of a batch.
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
        """Return the places of the private ones of some silos, and their mechanisms."""
        found = self.mechanisms
        return [(k, found[silo]) for k, silo in enumerate(silos) if silo in found]

    def refuse(self, silos: Iterable[int], what: str) -> None:
        """Raise one sentence if any of ``silos`` is private: ``what`` would not be noised."""
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
        """Return the samples that silos with batches of their own chance use in an answer.

        ``place`` is the round, the number of the question in it, and the draw.
        """
        found = {}
        for k, mechanism in self.among(silos):
            if mechanism.batches == SAMPLED:
                size = sizes[silos[k]]
                count = min(batch_size, size, size if samples is None else samples[k])
                chance = self.chances(BATCH, silos[k], *place)
                found[silos[k]] = chance.subset(size, count)
        return found

    def clip_samples(
        self, compute: SiloGradients, points: Tensor, batch: Batch, silos: Sequence[int],
        into: Tensor, seed_of: Callable[[int], int],
    ) -> None:  # fmt: skip
        """Overwrite the rows of silos that clip each sample; ``points`` is (d,) or (k, d)."""
        for k, mechanism in self.among(silos):
            if mechanism.per_sample:
                point = points if points.ndim == 1 else points[k]
                one = point, batch.x[k], batch.y[k]
                into[k] = clipped_mean(compute, *one, mechanism.max_norm, seed_of(k))

    def finish(
        self, rows: Tensor, losses: Tensor, norms: Tensor, silos: Sequence[int],
        lengths: Sequence[int], place: tuple[int, int, int],
    ) -> None:  # fmt: skip
        """Clip and noise the private rows, note their norms, and withhold their losses.

        Behind row k is a mini-batch of ``lengths[k]`` samples; ``place`` is as in :meth:`drawn`.
        """
        for k, mechanism in self.among(silos):
            chance = self.chances(NOISE, silos[k], *place)
            privatise(rows[k], lengths[k], mechanism, chance)
            losses[k], norms[k] = float("nan"), torch.linalg.vector_norm(rows[k])
