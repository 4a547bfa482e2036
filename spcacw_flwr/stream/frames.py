"""Messages of ``exchange.proto`` as frames of bounded size.

What travels is a head and named arrays. The bytes of the arrays are cut into pieces; the first
piece shares its frame with the head, so that a small message is one frame.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from spcacw_flwr.stream.exchange_pb2 import Array, Frame

PIECE = 1 << 20
"""Most bytes of data in a frame."""
FRAME_LIMIT = PIECE + (1 << 20)
"""Most bytes of a frame: its data, and a head that may list thousands of silos."""
METHOD = "/spcacw.exchange.v1.Exchange/Talk"
TOKEN, NODE, SILOS = "spcacw-token", "spcacw-node", "spcacw-silos"
"""The metadata that a node opens its stream with."""
DTYPES = frozenset(
    ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
)
OPTIONS = (
    ("grpc.max_receive_message_length", FRAME_LIMIT),
    ("grpc.max_send_message_length", FRAME_LIMIT),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # or else a silent other side has a minute
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
)
"""Of both ends: bounded frames, and a ping every 20 s, so that a dead line is noticed in 30 s."""

Arrays = Mapping[str, NDArray[Any]]


class FrameError(Exception):
    """The other side does not keep to the protocol: the stream cannot be used any more."""


@dataclass(frozen=True)
class Heard:
    """A message that has come in whole."""

    head: Any
    """A Question, an Answer or an End."""
    arrays: dict[str, NDArray[Any]]
    """Writable, in memory of their own."""


def described(arrays: Arrays) -> list[Array]:
    """Return the names, types and shapes of arrays for a head."""
    return [Array(name=n, dtype=a.dtype.name, shape=a.shape) for n, a in arrays.items()]


def pieces(arrays: Arrays) -> Iterator[bytes]:
    """Yield the frames of the arrays' data, serialised; lazily, for a model may be large."""
    parts: list[memoryview] = []
    room = PIECE
    for array in arrays.values():
        view = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        while view:
            parts.append(view[:room])
            view, room = view[room:], room - len(parts[-1])
            if room == 0:
                yield Frame(data=b"".join(parts)).SerializeToString()
                parts, room = [], PIECE
    if parts:
        yield Frame(data=b"".join(parts)).SerializeToString()


def frames(head: Frame, data: Iterable[bytes] = ()) -> Iterator[bytes]:
    """Yield the frames of a message, given its head and the :func:`pieces` of its arrays.

    Serialised protobuf messages that stand one after the other are one message with the fields of
    both, so that the same serialised pieces serve for every node.
    """
    rest = iter(data)
    yield head.SerializeToString() + next(rest, b"")
    yield from rest


def heard(stream: Iterable[bytes], limit: int) -> Iterator[Heard]:
    """Put the frames of a stream together and yield its messages.

    Parameters
    ----------
    stream : iterable of bytes
        Serialised frames as they come.
    limit : int
        Most bytes of a message's arrays.

    Raises
    ------
    FrameError
        If what comes is not of the protocol, or a message is larger than ``limit``.
    """
    incoming = iter(stream)
    for raw in incoming:
        frame = _parsed(raw)
        kind = frame.WhichOneof("head")
        if kind is None:
            raise FrameError("data came where the head of a message was expected")
        head = getattr(frame, kind)
        arrays = head.arrays if kind != "end" else ()
        size = sum(_size(array) for array in arrays)
        if size > limit:
            raise FrameError(f"a message of {size} bytes came where {limit} are the most")
        data = np.empty(size, np.uint8)
        have = _fill(data, 0, frame.data)
        while have < size:
            more = next(incoming, None)
            if more is None:
                raise FrameError("the stream ended within a message")
            frame = _parsed(more)
            if frame.WhichOneof("head") or not frame.data:
                raise FrameError("a message began before the one before it was complete")
            have = _fill(data, have, frame.data)
        yield Heard(head, dict(_cut(data, arrays)))


def _parsed(raw: bytes) -> Frame:
    try:
        return Frame.FromString(raw)
    except DecodeError as error:
        raise FrameError(f"a frame cannot be read ({error})") from error


def _size(array: Array) -> int:
    if array.dtype not in DTYPES:
        raise FrameError(f"an array is of type {array.dtype!r}")
    return math.prod(array.shape) * np.dtype(array.dtype).itemsize


def _fill(data: NDArray[np.uint8], have: int, more: bytes) -> int:
    end = have + len(more)
    if end > len(data):
        raise FrameError("a message has more data than its head says")
    data[have:end] = np.frombuffer(more, np.uint8)
    return end


def _cut(data: NDArray[np.uint8], arrays: Iterable[Array]) -> Iterator[tuple[str, NDArray[Any]]]:
    start = 0
    for array in arrays:
        end = start + _size(array)
        # A copy where the part would not be aligned: PyTorch and NumPy want it so.
        aligned = start % np.dtype(array.dtype).itemsize == 0
        part = data[start:end] if aligned else data[start:end].copy()
        yield array.name, part.view(array.dtype).reshape(array.shape)
        start = end
