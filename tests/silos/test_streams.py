"""Random streams: one list of purposes, and no two that draw the same."""

from __future__ import annotations

from spcacw_flwr.silos import streams
from spcacw_flwr.silos.streams import DEALING, stream

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
        return [(silo, t) for silo in some for t in range(1, 4)]
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


def test_purposes_are_one_list_without_repetition():
    assert len(set(PURPOSES.values())) == len(PURPOSES) >= 20
    assert {"SPLIT", "LABEL"} <= {name for name, number in PURPOSES.items() if number > DEALING}


def test_no_purpose_has_ever_another_number():
    """Results that were published hang on them."""
    assert PURPOSES == {
        "BATCHES": 0, "PARTICIPATION": 1, "POWER_ITERATION": 2, "MODEL": 3, "MODEL_NOISE": 4,
        "AUGMENTATION": 6, "STATISTICS": 7, "METHOD": 9, "FOLDS": 10, "WIRE": 11, "PRIVACY": 12,
        "SKETCH": 13, "SPLIT": 101, "HOLD_OUT": 102, "NOISE": 104, "ROLE": 105, "TEST": 106,
        "TUNE": 108, "LABEL": 120, "WINDOW": 121,
    }  # fmt: skip
