"""Batches are a pure function of (seed, silo, round); no two purposes draw from one stream."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spcacw_flwr.silos import batches, streams
from spcacw_flwr.silos.batches import WHOLE, batch_indices, rounds_per_pass
from spcacw_flwr.silos.streams import DEALING, stream


@given(
    seed=st.integers(0, 2**40), silo=st.integers(0, 500), epoch=st.integers(0, 50),
    samples=st.integers(1, 200), size=st.integers(1, 64), draw=st.integers(0, 2),
)  # fmt: skip
def test_a_pass_sees_each_sample_once(seed, silo, epoch, samples, size, draw):
    steps = rounds_per_pass(samples, size)
    first = epoch * steps + 1
    seen = [batch_indices(seed, silo, first + k, samples, size, draw) for k in range(steps)]
    assert all(len(batch) == size for batch in seen[:-2])
    lone = samples % size == 1 and steps > 1 and size > 2
    if steps > 1:
        assert len(seen[-2]) == size - lone
    assert len(seen[-1]) == (2 if lone else (samples - 1) % size + 1)
    assert sorted(np.concatenate(seen)) == list(range(samples))


@given(samples=st.integers(1, 100), size=st.integers(1, 40), round_=st.integers(1, 50))
def test_whole_draws_are_never_short_and_pass_over_the_data(samples, size, round_):
    steps = max(1, samples // size)
    one = [batch_indices(0, 1, round_, samples, size, WHOLE + k) for k in range(2 * steps)]
    assert {len(batch) for batch in one} == {min(samples, size)}
    for turn in (one[:steps], one[steps:]):
        assert len(np.unique(np.concatenate(turn))) == steps * min(samples, size)


def test_no_state_is_kept():
    """Asking out of order, or after the cache was emptied, changes nothing."""
    forward = [batch_indices(5, 2, t, 100, 32) for t in range(1, 20)]
    batches._order.cache_clear()
    backward = [batch_indices(5, 2, t, 100, 32) for t in reversed(range(1, 20))]
    for one, other in zip(forward, reversed(backward), strict=True):
        np.testing.assert_array_equal(one, other)


def test_seeds_silos_passes_and_draws_differ():
    base, later = batch_indices(0, 0, 1, 1000, 32), 1 + rounds_per_pass(1000, 32)
    for *other, draw in [(1, 0, 1, 0), (0, 1, 1, 0), (0, 0, later, 0), (0, 0, 1, 1)]:
        assert not np.array_equal(base, batch_indices(*other, 1000, 32, draw))


PURPOSES = {
    name: number
    for name, number in vars(streams).items()
    if name.isupper() and name not in ("DEALING", "_")
}
BY_ROUND = ("PARTICIPATION", "POWER_ITERATION", "MODEL_NOISE", "AUGMENTATION", "WIRE", "PRIVACY")
"""Whose last words are a round ≥ 1."""


def keys(name: str) -> list[tuple[int, ...]]:
    """Keys as they occur: silos from 0, rounds from 1, passes from 0, draws from 1."""
    some = range(3)
    if name == "PARTICIPATION":
        return [(t, *more) for t in range(1, 4) for more in ((), (1,), (2,))]
    if name in BY_ROUND:
        judged = [(silo, 0, 1) for silo in some] if name == "MODEL_NOISE" else []
        return [(silo, t) for silo in some for t in range(1, 4)] + judged
    if name == "BATCHES":
        return [(silo, epoch, *more) for silo in some for epoch in some for more in ((), (1,))]
    if name == "METHOD":
        return [(k,) for k in range(1, 4)]
    if name in ("STATISTICS", "FOLDS", "TUNE", "WINDOW"):
        return [(silo,) for silo in some]
    return [()]


def test_no_two_purposes_of_a_seed_share_a_generator():
    """At seeds 3, 5 and 7 some did: labels and w_0, roles and sketch, windows and BatchNorm."""
    for seed in range(20):
        seen: dict[int, tuple] = {}
        for name, purpose in PURPOSES.items():
            for key in keys(name):
                first = int(stream(seed, purpose, *key).integers(2**63))
                assert first not in seen, (seed, name, key, seen.get(first))
                seen[first] = name, key


def test_no_purpose_has_ever_another_number():
    """Results that were published hang on them; those beyond DEALING are drawn before the run."""
    assert DEALING == 100
    assert PURPOSES == {
        "BATCHES": 0, "PARTICIPATION": 1, "POWER_ITERATION": 2, "MODEL": 3, "MODEL_NOISE": 4,
        "AUGMENTATION": 6, "STATISTICS": 7, "METHOD": 9, "FOLDS": 10, "WIRE": 11, "PRIVACY": 12,
        "SKETCH": 13, "SPLIT": 101, "HOLD_OUT": 102, "NOISE": 104, "ROLE": 105, "TEST": 106,
        "TUNE": 108, "LABEL": 120, "WINDOW": 121,
    }  # fmt: skip
