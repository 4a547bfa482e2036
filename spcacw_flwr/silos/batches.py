"""Which samples a silo uses at round t: a pure function of (seed, silo, t).

Silos hold no sampling state, so a run can be resumed at any round, and every engine (Ray, real
silos, in process) draws the same batches. A silo passes over its data in a new order each time. A
pass has ⌈n/b⌉ batches, the last one shorter (READING.md 17: the target's pass is the epoch). If
one sample were left for the last batch, that batch takes a second one from the batch before it,
because BatchNorm has no statistics of a single sample.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.silos.setting import Setting, data_of
from spcacw_flwr.silos.streams import AUGMENTATION, BATCHES, FOLDS, MODEL_NOISE, STATISTICS, stream

WHOLE = 1 << 24
"""The first of the draws that are whole batches in any round; successive ones make up a pass."""


def rounds_per_pass(samples: int, batch_size: int) -> int:
    """Return ⌈n/b⌉, the rounds in which a silo sees each of its samples once."""
    return -(-samples // batch_size)


@lru_cache(maxsize=1 << 14)  # one order for each silo of a large simulation
def _order(seed: int, silo: int, epoch: int, samples: int, *draw: int) -> NDArray[np.int64]:
    return stream(seed, BATCHES, silo, epoch, *draw).permutation(samples)


def _span(round_: int, samples: int, batch_size: int) -> tuple[int, int, int]:
    """Return the pass of round t, and where in its order the mini-batch starts and ends."""
    rounds = rounds_per_pass(samples, batch_size)
    epoch, step = divmod(round_ - 1, rounds)
    start, stop = step * batch_size, min((step + 1) * batch_size, samples)
    if samples % batch_size == 1 and rounds > 1 and batch_size > 2:
        start -= step == rounds - 1
        stop -= step == rounds - 2
    return epoch, start, stop


def batch_length(round_: int, samples: int, batch_size: int) -> int:
    """Return how many indices :func:`batch_indices` returns."""
    _, start, stop = _span(round_, samples, batch_size)
    return stop - start


def batch_indices(
    seed: int, silo: int, round_: int, samples: int, batch_size: int, draw: int = 0
) -> NDArray[np.int64]:
    """Return the indices of the samples that ``silo`` uses at round t = ``round_`` ≥ 1.

    A method that needs several independent mini-batches in a round numbers them by ``draw``. Each
    draw has its own sequence of passes, whose last batch is short. Draws from :data:`WHOLE` on are
    not short: they form passes within the round, which leave out the samples that remain.
    """
    if draw >= WHOLE:
        turn, step = divmod(draw - WHOLE, max(1, samples // batch_size))
        order = _order(seed, silo, round_, samples, WHOLE + turn)
        return order[step * batch_size : (step + 1) * batch_size]
    epoch, start, stop = _span(round_, samples, batch_size)
    more = (draw,) if draw else ()
    return _order(seed, silo, epoch, samples, *more)[start:stop]


@dataclass(frozen=True)
class Fold:
    """The part of its data that a silo uses: one of ``of`` folds, or all data except that fold."""

    index: int
    of: int
    within: bool = False
    """Whether the part is the fold itself, and not the rest."""

    def rows(self, seed: int, silo: int, samples: int) -> NDArray[np.int64]:
        """Return the part's samples, a pure function of (seed, silo); fold sizes differ by ≤ 1."""
        order = stream(seed, FOLDS, silo).permutation(samples)
        folds = np.array_split(order, self.of)
        rest = folds[: self.index] + folds[self.index + 1 :]
        return np.sort(folds[self.index] if self.within else np.concatenate(rest))


@dataclass(frozen=True)
class Batch:
    """The mini-batches of k silos, all of the same length."""

    at: list[int]
    """The places of the k silos among the silos that were asked."""
    x: Tensor
    """(k, b, …)"""
    y: Tensor
    """(k, b, …)"""
    seed_of: Callable[[int], int]
    """The seed of the model's random numbers (dropout) on the k-th mini-batch."""


def _model_seed(seed: int, silos: Sequence[int], key: tuple[int, ...], k: int) -> int:
    return int(stream(seed, MODEL_NOISE, silos[k], *key).integers(2**62))


class Stacked:
    """The training data of several silos, one after another in two tensors on one device."""

    def __init__(
        self, config: Config, setting: Setting, silos: Sequence[int], device: torch.device
    ) -> None:
        self.seed, self.target = config.run.seed, config.run.target
        self.batch_size = config.training.batch_size
        data = [data_of(setting, "train", silo) for silo in silos]
        lengths = [len(one.y) for one in data]
        self.augment = setting.augment if setting.augments else None
        self.sizes = dict(zip(silos, lengths, strict=True))
        self.starts = dict(zip(silos, accumulate([0, *lengths]), strict=False))
        whole = data[0] if len(data) == 1 else None  # one silo needs no copy of its data
        self.x = (whole.x if whole else torch.cat([one.x for one in data])).to(device)
        self.y = (whole.y if whole else torch.cat([one.y for one in data])).to(device)

    def batches(
        self, round_: int, silos: Sequence[int], draw: int = 0,
        samples: Sequence[int] | None = None, fold: Fold | None = None,
        drawn: Mapping[int, NDArray[np.int64]] | None = None,
    ) -> Iterator[Batch]:  # fmt: skip
        """Yield the mini-batches ξ_t of ``silos``, those of equal length together.

        The setting's ``augment`` changes the samples for this silo and round. A short last batch is
        never padded, so models with batch statistics see real samples only. ``samples`` limits how
        many samples of its batch each silo uses. ``fold`` limits the target to that part of its
        data. A silo in ``drawn`` uses the samples listed there.
        """
        rows = []
        for silo in silos:
            if drawn and silo in drawn:
                row = drawn[silo]
            elif fold and silo == self.target:
                part = fold.rows(self.seed, silo, self.sizes[silo])
                row = part[self._indices(silo, round_, len(part), draw)]
            else:
                row = self._indices(silo, round_, self.sizes[silo], draw)
            rows.append(row + self.starts[silo])
        if samples is not None:
            rows = [row[:n] for row, n in zip(rows, samples, strict=True)]
        lengths = [len(row) for row in rows]
        key = (round_, draw) if draw else (round_,)
        for length in sorted(set(lengths)):
            at = [k for k, n in enumerate(lengths) if n == length]
            these = [silos[k] for k in at]
            index = torch.from_numpy(np.concatenate([rows[k] for k in at])).to(self.x.device)
            shape = len(at), length
            x = self.x.index_select(0, index).view(shape + self.x.shape[1:])
            if self.augment is not None:
                draws = (stream(self.seed, AUGMENTATION, silo, *key) for silo in these)
                x = torch.stack([self.augment(*one) for one in zip(x, draws, strict=True)])
            y = self.y.index_select(0, index).view(shape + self.y.shape[1:])
            yield Batch(at, x, y, partial(_model_seed, self.seed, these, key))

    def shortest(self) -> tuple[int, Batch]:
        """Return the silo with the shortest mini-batch, and that mini-batch."""
        last = {i: rounds_per_pass(size, self.batch_size) for i, size in self.sizes.items()}
        silo = min(last, key=lambda i: len(self._indices(i, last[i], self.sizes[i], 0)))
        (batch,) = self.batches(last[silo], [silo])
        return silo, batch

    def _indices(self, silo: int, round_: int, samples: int, draw: int) -> NDArray[np.int64]:
        return batch_indices(self.seed, silo, round_, samples, self.batch_size, draw)

    def of(self, silo: int, fold: Fold | None = None) -> tuple[Tensor, Tensor]:
        """Return all training data (x, y) of one silo, unchanged; for the target, a fold of it."""
        own = slice(self.starts[silo], self.starts[silo] + self.sizes[silo])
        x, y = self.x[own], self.y[own]
        if fold is not None and silo == self.target:
            at = torch.from_numpy(fold.rows(self.seed, silo, len(y))).to(x.device)
            return x[at], y[at]
        return x, y

    def shuffled(self, silo: int, fold: Fold | None = None) -> Iterator[Tensor]:
        """Yield all inputs of a silo in batches of b…2b−1, in an order that the seed alone sets.

        They are shuffled because data may be stored class by class. Sizes differ by at most one,
        because all batches count the same. A silo with fewer than b samples is one batch.
        """
        x, _ = self.of(silo, fold)
        order = stream(self.seed, STATISTICS, silo).permutation(len(x))
        for part in np.array_split(order, max(1, len(x) // self.batch_size)):
            yield x[torch.from_numpy(part).to(x.device)]
