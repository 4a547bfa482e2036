"""Batches are a pure function of (seed, silo, round)."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spcacw_flwr.silos import batches
from spcacw_flwr.silos.batches import batch_indices, rounds_per_pass


@given(
    seed=st.integers(0, 2**40), silo=st.integers(0, 500), epoch=st.integers(0, 50),
    samples=st.integers(1, 200), size=st.integers(1, 64),
)  # fmt: skip
def test_a_pass_sees_each_sample_once(seed, silo, epoch, samples, size):
    steps = rounds_per_pass(samples, size)
    seen = [
        batch_indices(seed, silo, epoch * steps + step + 1, samples, size) for step in range(steps)
    ]
    assert all(len(batch) == size for batch in seen[:-2])
    lone = samples % size == 1 and steps > 1 and size > 2
    if steps > 1:
        assert len(seen[-2]) == size - lone
    assert len(seen[-1]) == (2 if lone else (samples - 1) % size + 1)
    assert sorted(np.concatenate(seen)) == list(range(samples))


def test_no_state_is_kept():
    """Asking out of order, or after the cache was emptied, changes nothing."""
    forward = [batch_indices(5, 2, t, 100, 32) for t in range(1, 20)]
    batches._order.cache_clear()
    backward = [batch_indices(5, 2, t, 100, 32) for t in reversed(range(1, 20))]
    for one, other in zip(forward, reversed(backward), strict=True):
        np.testing.assert_array_equal(one, other)


def test_seeds_silos_and_passes_differ():
    base = batch_indices(0, 0, 1, 1000, 32)
    for other in [(1, 0, 1), (0, 1, 1), (0, 0, 1 + rounds_per_pass(1000, 32))]:
        assert not np.array_equal(base, batch_indices(*other, 1000, 32))
