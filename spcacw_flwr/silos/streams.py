"""Chance: one generator for each purpose, so that none depends on another's use.

A stream is a pure function of (seed, purpose, key), such as a silo and a round: the same seed draws
the same whatever else is asked, and in which order. The target knows the key, and could subtract
noise that came from such a stream: real silos therefore draw theirs as :class:`Secret` does.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from random import SystemRandom

import numpy as np
from numpy.typing import NDArray

(
    BATCHES, PARTICIPATION, POWER_ITERATION, MODEL, MODEL_NOISE, _, AUGMENTATION, STATISTICS, _,
    METHOD, FOLDS, WIRE, PRIVACY, SKETCH,
) = range(14)  # fmt: skip
"""While a run goes on: batches, who is sampled, where L's iteration starts, w_0, dropout, …"""
DEALING = 100
"""Purposes from here on are drawn before the run: who holds what."""
SPLIT, HOLD_OUT, NOISE, ROLE, TEST, TUNE = (DEALING + k for k in (1, 2, 4, 5, 6, 8))
LABEL, WINDOW = DEALING + 20, DEALING + 21
"""The deal of a pool, what digits hold out, the noise of an allocation, the roles of a silo, the
test samples and the windows that are kept, samples held out for tuning, label permutations."""


def stream(seed: int, purpose: int, *key: int) -> np.random.Generator:
    """Return the random generator of one purpose at one key.

    A number that is gone is never given again: another number is another stream.
    """
    if purpose > DEALING:
        return np.random.default_rng((seed, purpose - DEALING, *key))
    return np.random.default_rng((purpose, seed, *key))


class Seeded:
    """A stream that whoever knows its key can repeat: for simulations, which hide from nobody."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def normals(self, count: int) -> NDArray[np.float64]:
        """Return draws from N(0, 1), (count,)."""
        return self.rng.standard_normal(count)

    def subset(self, size: int, count: int) -> NDArray[np.int64]:
        """Return ``count`` different numbers of 0…size−1, every set of them equally likely."""
        return self.rng.choice(size, count, replace=False)


class Secret:
    """The operating system's own randomness, for every single number of a real silo.

    Nothing is seeded, and no state of a generator could be worked out from noise that shows: where
    a gradient is exactly 0, as at pixels that are always black, the answer *is* the noise.
    """

    def normals(self, count: int) -> NDArray[np.float64]:
        """Return draws from N(0, 1), (count,): Φ⁻¹ of 52 random bits each."""
        from scipy.special import ndtri  # here: it takes half a second, and few silos have noise

        bits = np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(12)
        normals: NDArray[np.float64] = ndtri((bits.astype(np.float64) + 0.5) * 2.0**-52)
        return normals

    def subset(self, size: int, count: int) -> NDArray[np.int64]:
        """Return ``count`` different numbers of 0…size−1, every set of them equally likely."""
        return np.array(SystemRandom().sample(range(size), count), dtype=np.int64)


Randomness = Seeded | Secret
"""A source of chance for one purpose, in one answer of one private silo."""
Chances = Callable[[int, int, int, int, int], Randomness]
"""Purpose, silo, round, number of the question in the round, mini-batch (draw) → chance."""


def seeded(seed: int) -> Chances:
    """Return the chances of a simulation: a pure function of the run's seed."""
    return partial(_seeded, seed)


def _seeded(seed: int, *key: int) -> Seeded:
    return Seeded(stream(seed, PRIVACY, *key))


def secret(*key: int) -> Secret:
    """Return the chances of a real silo."""
    return Secret()
