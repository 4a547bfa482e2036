"""Whose chance it is: a private silo's noise, and the batches that it keeps to itself.

Mini-batches are otherwise a pure function of (seed, silo, round), which the target knows. Were the
noise one too, the target could subtract it. A real silo therefore asks its operating system for
every single number: nothing is seeded, and no state of a generator could be worked out from noise
that shows (where a gradient is exactly 0, as at pixels that are always black, the answer *is* the
noise). A simulation, in which there is nobody to hide from, takes a seeded stream, so that runs
repeat and engines agree.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from random import SystemRandom
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.silos.streams import PRIVACY, stream

NOISE, BATCH = range(2)
"""Purposes: what the chance is for."""


class Randomness(Protocol):
    """A source of chance for one purpose, in one answer of one silo."""

    def normals(self, count: int) -> NDArray[np.float64]:
        """Return independent draws from N(0, 1), (count,)."""

    def subset(self, size: int, count: int) -> NDArray[np.int64]:
        """Return ``count`` different numbers of 0…size−1, every set of them equally likely."""


Chances = Callable[[int, int, int, int, int], Randomness]
"""Purpose, silo, round, number of the question in the round, mini-batch (draw) → chance."""


class Seeded:
    """A stream that whoever knows its key can repeat: for simulations."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def normals(self, count: int) -> NDArray[np.float64]:
        """Return independent draws from N(0, 1), (count,)."""
        return self.rng.standard_normal(count)

    def subset(self, size: int, count: int) -> NDArray[np.int64]:
        """Return ``count`` different numbers of 0…size−1."""
        return self.rng.choice(size, count, replace=False)


class Secret:
    """The operating system's own randomness, for real silos: nobody can repeat it."""

    def normals(self, count: int) -> NDArray[np.float64]:
        """Return independent draws from N(0, 1), (count,): Φ⁻¹ of 52 random bits each."""
        from scipy.special import ndtri  # here: it takes half a second, and few silos have noise

        bits = np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(12)
        normals: NDArray[np.float64] = ndtri((bits.astype(np.float64) + 0.5) * 2.0**-52)
        return normals

    def subset(self, size: int, count: int) -> NDArray[np.int64]:
        """Return ``count`` different numbers of 0…size−1."""
        return np.array(SystemRandom().sample(range(size), count), dtype=np.int64)


def seeded(seed: int) -> Chances:
    """Return the chances of a simulation: a pure function of the run's seed."""
    return partial(_seeded, seed)


def _seeded(seed: int, *key: int) -> Randomness:
    return Seeded(stream(seed, PRIVACY, *key))


def secret(purpose: int, silo: int, round_: int, number: int, draw: int) -> Randomness:
    """Return the chances of a real silo."""
    return Secret()
