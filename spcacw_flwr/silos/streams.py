"""Chance: one generator for each purpose, so that none depends on another's use.

A stream is a pure function of (seed, purpose, key), such as a silo and a round: the same seed draws
the same whatever else is asked, and in which order.
"""

from __future__ import annotations

import numpy as np

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
