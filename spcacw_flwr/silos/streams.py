"""Random numbers: one generator for each purpose, so that no purpose depends on another.

A stream is a pure function of (seed, purpose, key); a key is, for example, a silo and a round. The
same seed draws the same numbers, whatever else is drawn and in which order. The target knows the
key and could subtract noise of such a stream, so real silos draw theirs from :class:`Secret`.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import SystemRandom

import numpy as np
import torch
from numpy.typing import NDArray

(
    BATCHES, PARTICIPATION, POWER_ITERATION, MODEL, MODEL_NOISE, _, AUGMENTATION, STATISTICS, _,
    METHOD, FOLDS, WIRE, PRIVACY, SKETCH,
) = range(14)  # fmt: skip
"""During a run: batches, which silos are sampled, the start of L's iteration, w_0, dropout, …"""
DEALING = 100
"""Purposes above this number are drawn before the run: which silo holds which data."""
SPLIT, HOLD_OUT, NOISE, ROLE, TEST, TUNE = (DEALING + k for k in (1, 2, 4, 5, 6, 8))
LABEL, WINDOW = DEALING + 20, DEALING + 21
"""The deal of a pool, what digits hold out, the noise of an allocation, the roles of a silo, the
test samples to keep, samples held out for tuning; label permutations, the windows to keep."""


def stream(seed: int, purpose: int, *key: int) -> np.random.Generator:
    """Return the random generator of one purpose at one key.

    Numbers of removed purposes stay unused, because another number is another stream.
    """
    if purpose > DEALING:
        return np.random.default_rng((seed, purpose - DEALING, *key))
    return np.random.default_rng((purpose, seed, *key))


@contextmanager
def drawing(seed: int, device: torch.device) -> Iterator[None]:
    """Let what PyTorch draws in a block follow from a seed; other random state is unchanged."""
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if on_gpu else []):
        # torch.manual_seed() saves the stack for a GPU not yet in use: that takes 1.7 ms.
        (torch if on_gpu else torch.default_generator).manual_seed(seed)
        yield


class Secret:
    """Random numbers of a real silo, every one from the operating system.

    The methods are named as NumPy's; the key is ignored. Nothing is seeded, and nobody can work out
    a generator's state from noise that is visible: where a gradient is exactly 0, as at pixels that
    are always black, the answer *is* the noise.
    """

    def __init__(self, *key: int) -> None:
        pass

    def standard_normal(self, size: int) -> NDArray[np.float64]:
        """Return draws from N(0, 1), (size,): Φ⁻¹ of 52 random bits each."""
        from scipy.special import ndtri  # here: the import takes 0.5 s, and few silos need it

        bits = np.frombuffer(os.urandom(8 * size), dtype=np.uint64) >> np.uint64(12)
        return ndtri((bits.astype(np.float64) + 0.5) * 2.0**-52)

    def choice(self, a: int, size: int, replace: bool) -> NDArray[np.int64]:
        """Return ``size`` different numbers of 0…a−1, every set of them equally likely."""
        assert not replace
        return np.array(SystemRandom().sample(range(a), size), dtype=np.int64)


Randomness = np.random.Generator | Secret
"""A source of random numbers for one purpose, in one answer of one private silo."""
Chances = Callable[[int, int, int, int, int], Randomness]
"""Purpose, silo, round, question's number in the round, mini-batch (draw) → random numbers."""


def seeded(seed: int) -> Chances:
    """Return the chances of a simulation: anyone who knows the run's seed can repeat them."""
    return partial(stream, seed, PRIVACY)
