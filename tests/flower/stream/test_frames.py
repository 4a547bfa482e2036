"""Frames: round trips, sizes, and the code that was made from the .proto."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from spcacw_flwr.flower.stream import exchange_pb2, frames
from spcacw_flwr.flower.stream.exchange_pb2 import Answer, Array, Frame, Question

PROTO = Path(exchange_pb2.__file__).with_name("exchange.proto")


def round_trip(arrays, limit=1 << 30):
    head = Frame(answer=Answer(id=7, arrays=frames.described(arrays)))
    raw = list(frames.frames(head, frames.pieces(arrays)))
    return raw, list(frames.heard(raw, limit))


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
    assert found.head.id == 7
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


def test_a_small_message_is_one_frame_that_protobuf_reads():
    """A head and a piece, each serialised, stand one after the other."""
    arrays = {"a": np.arange(5, dtype=np.float32)}
    (raw,), _ = round_trip(arrays)
    frame = Frame.FromString(raw)
    assert frame.answer.id == 7
    assert frame.data == arrays["a"].tobytes()


@given(st.binary(max_size=300), st.binary(max_size=300), st.booleans())
def test_frames_are_read_as_protobuf_reads_them(text, data, other):
    """Head and data in their order, in another, one of them alone or none; and mere bytes."""
    head = Frame(answer=Answer(error=text.hex())) if text else Frame()
    parts = [head.SerializeToString(), Frame(data=data).SerializeToString()]
    for raw in (b"".join(parts[::-1] if other else parts), text, text + data):
        try:
            expected = Frame.FromString(raw)
        except DecodeError:
            with pytest.raises(frames.FrameError, match="cannot be read"):
                frames._parsed(raw)
        else:
            found, at = frames._parsed(raw)
            assert bytes(at) == expected.data
            found.data = expected.data
            assert found == expected


@pytest.mark.parametrize("size", [1, 127, 128, 16_383, 16_384, frames.PIECE])
def test_data_are_written_as_protobuf_writes_them(size):
    array = np.arange(size, dtype=np.int64).astype(np.uint8)
    (raw,), _ = round_trip({"a": array})
    assert raw.endswith(Frame(data=array.tobytes()).SerializeToString())


def question(**array) -> bytes:
    return Frame(question=Question(arrays=[Array(name="a", **array)])).SerializeToString()


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ([b"\xff\xff"], "cannot be read"),
        ([Frame(data=b"12").SerializeToString()], "data came where the head"),
        ([question(dtype="float32", shape=[10**9, 10**9])], "are the most"),
        ([question(dtype="object", shape=[1])], "of type 'object'"),
        ([question(dtype="float32", shape=[4])], "ended within a message"),
        ([question(dtype="float32", shape=[4])] * 2, "a message began before"),
        ([question(dtype="float32", shape=[4]), Frame().SerializeToString()], "a message began"),
        (
            [question(dtype="int8", shape=[4]), Frame(data=b"12345").SerializeToString()],
            "more data than its head says",
        ),
    ],
)
def test_what_is_not_of_the_protocol_is_refused(raw, words):
    with pytest.raises(frames.FrameError, match=words):
        list(frames.heard(raw, 1000))


def test_the_code_is_that_of_the_proto():
    """Every message, field, number, type and label, and the service's method."""
    text = re.sub(r"//.*", "", PROTO.read_text())
    file = exchange_pb2.DESCRIPTOR
    assert file.package == re.search(r"package ([\w.]+);", text)[1]
    service, rpc = re.search(r"service (\w+)", text)[1], re.search(r"rpc (\w+)", text)[1]
    assert f"/{file.package}.{service}/{rpc}" == frames.METHOD
    assert [m.name for m in file.services_by_name[service].methods] == [rpc]
    declared = {
        name: {
            (field, int(number), kind, label)
            for label, kind, field, number in re.findall(
                r"(repeated|optional)?\s*([\w.]+) (\w+) = (\d+);", body
            )
        }
        for name, body in re.findall(r"message (\w+) \{((?:[^{}]|\{[^{}]*\})*)\}", text)
    }
    types = {8: "bool", 12: "bytes", 9: "string", 13: "uint32", 4: "uint64", 1: "double"}
    found = {}
    for name, message in file.message_types_by_name.items():
        found[name] = set()
        for field in message.fields:
            kind = field.message_type.name if field.message_type else types[field.type]
            optional = field.containing_oneof and field.containing_oneof.name.startswith("_")
            label = "repeated" if field.is_repeated else "optional" if optional else ""
            found[name].add((field.name, field.number, kind, label))
    assert found == declared
    assert {"id", "round", "silos", "arrays"} <= {name for name, *_ in found["Question"]}
