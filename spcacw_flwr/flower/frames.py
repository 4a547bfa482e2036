"""Messages of a stream as frames of bounded size.

A message is an :class:`Exchange`: the content of Flower's records (``records.py``), and the number
of the question. Its first frame has the length of the head (4 bytes, big-endian), the head as JSON,
and the first bytes of the arrays; the other bytes follow in frames of data only. Arrays are
little-endian and in C order, one after the other. The version is part of the service's name, so a
node does not find a service of another version.
"""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.flower.records import Arrays

PIECE = 1 << 20
"""Most bytes of data in a frame."""
FRAME_LIMIT = PIECE + (1 << 20)
"""Most bytes of a frame: its data, and a head that may list thousands of silos."""
METHOD = "/spcacw.exchange.v2.Exchange/Talk"
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
    ("grpc.http2.ping_timeout_ms", 10_000),  # by default a silent other side has a minute
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
)
"""Options of both ends: bounded frames, and a ping every 20 s to notice a dead line in 30 s."""

QUESTION, EVALUATION, ANSWER, END = "question", "evaluation", "answer", "end"
"""The kinds of messages."""
Piece = list[bytes | memoryview]
"""The parts of a frame that has only data, one after the other."""


class FrameError(Exception):
    """The other side does not keep to the protocol: the stream cannot be used any more."""


@dataclass
class Exchange:
    """A message of a stream."""

    kind: str
    id: int = 0
    """The same for a question and its answer."""
    told: dict[str, Any] = field(default_factory=dict)
    """The config of a question, the metrics of an answer, or why there is no answer."""
    arrays: Arrays = field(default_factory=dict)
    """Arrays that were received are writable, in memory of their own."""


def pieces(arrays: Arrays) -> Iterator[Piece]:
    """Yield the frames of the arrays' data as parts to be joined; the data are not copied."""
    parts: Piece = []
    room = PIECE
    for array in arrays.values():
        view = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        while view:
            parts.append(view[:room])
            view, room = view[room:], room - len(parts[-1])
            if room == 0:
                yield parts
                parts, room = [], PIECE
    if parts:
        yield parts


def frames(message: Exchange, data: Iterable[Piece] | None = None) -> Iterator[bytes]:
    """Yield the frames of a message; ``data`` are the :func:`pieces` of its arrays, if made before.

    The arrays must not change meanwhile.
    """
    arrays = [(name, a.dtype.name, a.shape) for name, a in message.arrays.items()]
    head = json.dumps([message.kind, message.id, message.told, arrays]).encode()
    rest = iter(pieces(message.arrays) if data is None else data)
    yield b"".join([len(head).to_bytes(4), head, *next(rest, ())])
    yield from map(b"".join, rest)


def heard(stream: Iterable[bytes], limit: int) -> Iterator[Exchange]:
    """Put the frames of a stream together and yield its messages.

    FrameError if a frame breaks the protocol, or a message's arrays have more bytes than ``limit``.
    """
    incoming = iter(stream)
    for raw in incoming:
        message, arrays, first = _parsed(raw)
        size = sum(math.prod(shape) * dtype.itemsize for _, dtype, shape in arrays)
        if size > limit:
            raise FrameError(f"a message of {size} bytes came where {limit} are the most")
        data = np.empty(size, np.uint8)
        have = _fill(data, 0, first)
        while have < size:
            more = next(incoming, None)
            if not more:
                raise FrameError("the stream ended within a message")
            have = _fill(data, have, more)
        try:
            message.arrays = dict(_cut(data, arrays))
        except ValueError as error:  # no array has such a shape, not even an empty one
            raise FrameError(f"an array cannot be made ({error})") from error
        yield message


Described = list[tuple[str, np.dtype[Any], tuple[int, ...]]]
"""Names, types and shapes of arrays."""


def _parsed(raw: bytes) -> tuple[Exchange, Described, memoryview]:
    """Return a message without its arrays, their description, and the data that came with it."""
    end = 4 + int.from_bytes(raw[:4])
    try:
        kind, id_, told, arrays = json.loads(raw[4:end])
        described = [_described(*one) for one in arrays]
    except (ValueError, TypeError, RecursionError) as error:
        raise FrameError(f"the head of a message cannot be read ({error})") from error
    if end > len(raw) or type(id_) is not int or not isinstance(told, dict):
        raise FrameError("the head of a message is not one")
    return Exchange(str(kind), id_, told), described, memoryview(raw)[end:]


def _described(name: Any, dtype: Any, shape: Any) -> tuple[str, np.dtype[Any], tuple[int, ...]]:
    if dtype not in DTYPES:
        raise ValueError(f"an array is of type {dtype!r}")
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"an array has shape {shape!r}")
    return str(name), np.dtype(dtype), tuple(shape)


def _fill(data: NDArray[np.uint8], have: int, more: bytes | memoryview) -> int:
    end = have + len(more)
    if end > len(data):
        raise FrameError("a message has more data than its head says")
    data[have:end] = np.frombuffer(more, np.uint8)
    return end


def _cut(data: NDArray[np.uint8], arrays: Described) -> Iterator[tuple[str, NDArray[Any]]]:
    start = 0
    for name, dtype, shape in arrays:
        end = start + math.prod(shape) * dtype.itemsize
        # A part that is not aligned is copied: PyTorch and NumPy want aligned data.
        part = data[start:end] if start % dtype.itemsize == 0 else data[start:end].copy()
        yield name, part.view(dtype).reshape(shape)
        start = end
