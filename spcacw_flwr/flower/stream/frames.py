"""Messages of ``exchange.proto`` as frames of bounded size.

What travels is a head and named arrays. The bytes of the arrays are cut into pieces; the first
piece shares its frame with the head, so that a small message is one frame. Protobuf copies a field
of bytes twice when it reads it and three times when it writes it: the data of a frame are put
behind its head, and found there, by the encoding's own rules
(https://protobuf.dev/programming-guides/encoding), at one copy each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from spcacw_flwr.flower.stream.exchange_pb2 import Array, Frame

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

HEADS, DATA = (b"\x0a", b"\x12", b"\x1a"), b"\x22"
"""The tags of a frame's head (fields 1 to 3) and data (4): a length follows, and so many bytes."""

Arrays = Mapping[str, NDArray[Any]]
Piece = list[bytes | memoryview]
"""What a frame of data alone consists of, one after the other."""


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


def pieces(arrays: Arrays) -> Iterator[Piece]:
    """Yield the frames of the arrays' data, serialised but not copied, as parts to be joined."""
    parts: Piece = []
    room = PIECE
    for array in arrays.values():
        view = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        while view:
            parts.append(view[:room])
            view, room = view[room:], room - len(parts[-1])
            if room == 0:
                yield [_prefix(PIECE), *parts]
                parts, room = [], PIECE
    if parts:
        yield [_prefix(PIECE - room), *parts]


def frames(head: Frame, data: Iterable[Piece] = ()) -> Iterator[bytes]:
    """Yield the frames of a message, given its head and the :func:`pieces` of its arrays.

    Serialised protobuf messages that stand one after the other are one message with the fields of
    both, so that the same pieces serve for every node. The arrays must not change meanwhile.
    """
    rest = iter(data)
    yield b"".join([head.SerializeToString(), *next(rest, ())])
    yield from map(b"".join, rest)


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
        frame, first = _parsed(raw)
        kind = frame.WhichOneof("head")
        if kind is None:
            raise FrameError("data came where the head of a message was expected")
        head = getattr(frame, kind)
        arrays = head.arrays if kind != "end" else ()
        size = sum(_size(array) for array in arrays)
        if size > limit:
            raise FrameError(f"a message of {size} bytes came where {limit} are the most")
        data = np.empty(size, np.uint8)
        have = _fill(data, 0, first)
        while have < size:
            more = next(incoming, None)
            if more is None:
                raise FrameError("the stream ended within a message")
            frame, rest = _parsed(more)
            if frame.WhichOneof("head") or not rest:
                raise FrameError("a message began before the one before it was complete")
            have = _fill(data, have, rest)
        yield Heard(head, dict(_cut(data, arrays)))


def _prefix(size: int) -> bytes:
    """Return what stands before so many bytes of a frame's data: its tag, and the length."""
    groups = bytearray(DATA)
    while size > 127:
        groups.append(size & 127 | 128)
        size >>= 7
    return bytes([*groups, size])


def _parsed(raw: bytes) -> tuple[Frame, bytes | memoryview]:
    """Return a frame's head, and its data where they lie."""
    end, start = _parts(raw)
    try:
        frame = Frame.FromString(raw[:end])
    except DecodeError as error:
        raise FrameError(f"a frame cannot be read ({error})") from error
    return frame, frame.data or memoryview(raw)[start:]


def _parts(raw: bytes) -> tuple[int, int]:
    """Return where a frame's head ends and its data begin.

    Both are the end of ``raw`` where it is not a head and then data, if any: a frame may be written
    in other ways, which are left to protobuf.
    """
    end = 0
    if raw[:1] in HEADS:
        size, end = _varint(raw, 1)
        end += size
    if raw[end : end + 1] == DATA:
        size, start = _varint(raw, end + 1)
        if start + size == len(raw):
            return end, start
    return len(raw), len(raw)


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """Return the length that is written at ``at``, seven bits a byte, and where it ends.

    One that does not end is returned as longer than ``raw``, as which protobuf refuses it.
    """
    value = 0
    for k, byte in enumerate(raw[at : at + 10]):
        value |= (byte & 127) << 7 * k
        if byte < 128:
            return value, at + k + 1
    return len(raw) + 1, at


def _size(array: Array) -> int:
    if array.dtype not in DTYPES:
        raise FrameError(f"an array is of type {array.dtype!r}")
    return math.prod(array.shape) * np.dtype(array.dtype).itemsize


def _fill(data: NDArray[np.uint8], have: int, more: bytes | memoryview) -> int:
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
