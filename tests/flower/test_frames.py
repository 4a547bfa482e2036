"""Frames: round trips, sizes, and what is not of the protocol."""

import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spcacw_flwr.flower import frames


def round_trip(arrays, /, **told):
    raw = list(frames.frames(frames.Exchange(frames.ANSWER, 7, told, arrays)))
    return raw, list(frames.heard(raw, 1 << 30))


@pytest.mark.parametrize(
    "shapes",
    [[(3, 5)], [(0, 4)], [], [(1, 50_890), (1,)], [(7,), (3, 1), (2, 2)], [(1 << 18,)],
     [((1 << 18) + 1,), (9,)], [(1, 15_000_000), (1,)]],
    ids=str,
)  # fmt: skip
def test_arrays_come_back_in_frames_of_bounded_size(shapes):
    """Up to the 60 MB of 15 million parameters."""
    rng = np.random.default_rng(0)
    arrays = {f"a{k}": rng.random(shape, dtype=np.float32) for k, shape in enumerate(shapes)}
    raw, (found,) = round_trip(arrays)
    assert all(len(frame) <= frames.PIECE + 1000 for frame in raw)
    assert len(raw) == max(1, -(-sum(a.nbytes for a in arrays.values()) // frames.PIECE))
    assert (found.kind, found.id) == ("answer", 7)
    assert list(found.arrays) == list(arrays)
    for name, array in arrays.items():
        assert found.arrays[name].flags.writeable
        np.testing.assert_array_equal(found.arrays[name], array)


def test_types_are_kept_where_arrays_are_not_aligned():
    arrays = {
        "int8": np.arange(-3, 4, dtype=np.int8), "scales": np.arange(3, dtype=np.float32),
        "count": np.array(5), "flag": np.array([True, False]), "half": np.ones(3, np.float16),
    }  # fmt: skip
    _, (found,) = round_trip(arrays)
    for name, array in arrays.items():
        assert found.arrays[name].dtype == array.dtype
        assert found.arrays[name].flags.aligned
        np.testing.assert_array_equal(found.arrays[name], array)


def test_messages_follow_one_another():
    arrays = {"a": np.ones(400_000, np.float32)}
    message, _ = round_trip(arrays)
    found = list(frames.heard(message * 3, 1 << 30))
    assert [one.arrays["a"].sum() for one in found] == [400_000] * 3


NUMBERS = st.integers(-(2**70), 2**70) | st.floats() | st.booleans()
TOLD = st.dictionaries(st.text(), NUMBERS | st.text() | st.lists(NUMBERS))


@given(TOLD)
@example({"arrays": 0})
def test_what_is_told_comes_back_to_the_last_bit(told):
    _, (found,) = round_trip({}, **told)
    assert repr(found.told) == repr(told)


def head(*described, size=None, **told) -> bytes:
    said = json.dumps(["question", 7, told, described]).encode()
    return (len(said) if size is None else size).to_bytes(4) + said


FOUR = head(("a", "float32", [4]))


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ([b""], "cannot be read"),
        ([b"\xff\xff"], "cannot be read"),
        ([b"\0\0\0\x05[[[[["], "cannot be read"),
        ([b"\0\0\x40\0" + b"[" * 0x4000], "cannot be read"),
        ([head(size=1 << 20)], "is not one"),
        ([b"\0\0\0\x11" + b'["a", "b", {}, []]'], "cannot be read|is not one"),
        ([head(("a", "float32", [10**9, 10**9]))], "are the most"),
        ([head(("a", "float32", [-4, -4]))], "shape"),
        ([head(("a", "float32", [0, 2**63]))], "dimension exceeded"),
        ([head(("a", "float32", [0] + 70 * [1]))], "dimension for an ndarray"),
        ([head(("a", "object", [1]))], "of type 'object'"),
        ([head(("a", ["f"], [1]))], "cannot be read"),
        ([FOUR], "ended within a message"),
        ([FOUR, b""], "ended within a message"),
        ([FOUR] * 2, "more data than its head says"),
        ([head(("a", "int8", [4])), b"12345"], "more data than its head says"),
    ],
)
def test_what_is_not_of_the_protocol_is_refused(raw, words):
    with pytest.raises(frames.FrameError, match=words):
        list(frames.heard(raw, 1000))


@given(st.lists(st.binary(max_size=80) | st.binary(max_size=80).map(lambda b: FOUR + b)))
def test_mere_bytes_are_messages_or_refused(raw):
    try:
        found = list(frames.heard(raw, 1000))
    except frames.FrameError:
        return
    assert all(one.arrays["a"].shape == (4,) for one in found)
