"""Chance: one generator for each purpose, so that none depends on another's use.

A stream is a pure function of (seed, purpose, key), such as a silo and a round: the same seed draws
the same whatever else is asked, and in which order. The target knows the key, and could subtract
noise that came from such a stream: real silos therefore draw theirs as :class:`Secret` does.
"""

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


class Secret:
    """The operating system's own randomness, for every single number of a real silo.

    It speaks NumPy's words, whatever the key. Nothing is seeded, and no state of a generator could
    be worked out from noise that shows: where a gradient is exactly 0, as at pixels that are always
    black, the answer *is* the noise.
    """

    def __init__(self, *key: int) -> None:
        pass

    def standard_normal(self, size: int) -> NDArray[np.float64]:
        """Return draws from N(0, 1), (size,): Φ⁻¹ of 52 random bits each."""
        from scipy.special import ndtri  # here: it takes half a second, and few silos have noise

        bits = np.frombuffer(os.urandom(8 * size), dtype=np.uint64) >> np.uint64(12)
        return ndtri((bits.astype(np.float64) + 0.5) * 2.0**-52)

    def choice(self, a: int, size: int, replace: bool) -> NDArray[np.int64]:
        """Return ``size`` different numbers of 0…a−1, every set of them equally likely."""
        assert not replace
        return np.array(SystemRandom().sample(range(a), size), dtype=np.int64)


Randomness = np.random.Generator | Secret
"""A source of chance for one purpose, in one answer of one private silo."""
Chances = Callable[[int, int, int, int, int], Randomness]
"""Purpose, silo, round, number of the question in the round, mini-batch (draw) → chance."""


def seeded(seed: int) -> Chances:
    """Return the chances of a simulation: whoever knows the run's seed can repeat them."""
    return partial(stream, seed, PRIVACY)
