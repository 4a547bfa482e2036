"""Which samples a silo uses at round t: a pure function of (seed, silo, t).

Silos hold no sampling state, so a run can be resumed at any round, and every engine (Ray, real
silos, in process) draws the same batches. A silo passes over its data in a fresh order each time,
⌈n/b⌉ batches a pass, the last one shorter (READING.md 17: the target's pass is the epoch). Where
one sample would be left for the last batch, it gets a second one from the batch before it:
BatchNorm has no statistics of a single sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.silos.streams import BATCHES, FOLDS, stream


def rounds_per_pass(samples: int, batch_size: int) -> int:
    """Return ⌈n/b⌉, the rounds in which a silo sees each of its samples once."""
    return -(-samples // batch_size)


@lru_cache(maxsize=1 << 14)  # one order for each silo of a large simulation
def _order(seed: int, silo: int, epoch: int, samples: int, *draw: int) -> NDArray[np.int64]:
    return stream(seed, BATCHES, silo, epoch, *draw).permutation(samples)


def batch_indices(
    seed: int, silo: int, round_: int, samples: int, batch_size: int, draw: int = 0
) -> NDArray[np.int64]:
    """Return the indices of the samples that ``silo`` uses at round t = ``round_`` ≥ 1.

    A method that needs several independent mini-batches in a round numbers them by ``draw``: each
    number is a sequence of passes of its own.

    Examples
    --------
    >>> both = [batch_indices(0, 3, t, samples=5, batch_size=3) for t in (1, 2)]
    >>> [len(b) for b in both], sorted(int(i) for b in both for i in b)
    ([3, 2], [0, 1, 2, 3, 4])
    """
    rounds = rounds_per_pass(samples, batch_size)
    epoch, step = divmod(round_ - 1, rounds)
    start, stop = step * batch_size, (step + 1) * batch_size
    if samples % batch_size == 1 and rounds > 1 and batch_size > 2:
        start -= step == rounds - 1
        stop -= step == rounds - 2
    more = (draw,) if draw else ()
    return _order(seed, silo, epoch, samples, *more)[start:stop]


@dataclass(frozen=True)
class Fold:
    """Which part of its data a silo uses: one of ``of`` folds, or all data but that one."""

    index: int
    of: int
    within: bool = False
    """Whether the fold itself, and not the rest."""

    def rows(self, seed: int, silo: int, samples: int) -> NDArray[np.int64]:
        """Return the samples of the part: a pure function of (seed, silo), sizes differ by ≤ 1."""
        order = stream(seed, FOLDS, silo).permutation(samples)
        folds = np.array_split(order, self.of)
        rest = folds[: self.index] + folds[self.index + 1 :]
        return np.sort(folds[self.index] if self.within else np.concatenate(rest))
