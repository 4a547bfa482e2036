"""How gradients are represented on their way from a silo to the target (key ``wire``).

The silo functions apply it, so every engine yields the same numbers. Transports carry the parts
that :func:`pack` returns unchanged. ``float16`` and ``bfloat16`` round to nearest. ``int8`` rounds
at random to one of the two nearest multiples of a scale s: up with a chance of the distance to the
lower one, in units of s. So E[q s] = g and |q s − g| < s. s is the largest absolute entry of each
block of 256, over 127 (QSGD with the infinity norm: D. Alistarh et al., NeurIPS 2017). The random
numbers are a pure function of (seed, silo, round, draw).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.keys import BFLOAT16, FLOAT16, FLOAT32, INT8

BLOCK = 256
"""Entries that share a scale."""
PARTS = GRADIENTS, SCALES = "gradients", "scales"
DTYPES = {FLOAT32: torch.float32, FLOAT16: torch.float16, BFLOAT16: torch.int16, INT8: torch.int8}
"""The type of the array ``gradients``. NumPy has no bfloat16, so its bits are sent as int16."""


def pack(rows: Tensor, wire: str, rngs: Sequence[np.random.Generator]) -> dict[str, Tensor]:
    """Return the parts in which rows (k, d) are sent, given a random generator for each row."""
    if wire == FLOAT32:
        return {GRADIENTS: rows}
    if wire == FLOAT16:
        return {GRADIENTS: rows.to(torch.float16)}
    if wire == BFLOAT16:
        return {GRADIENTS: rows.to(torch.bfloat16).view(torch.int16)}
    blocks = _blocks(rows)
    scales = blocks.abs().amax(dim=2) / 127
    size = rows.shape[1]
    drawn = [torch.from_numpy(rng.random(size, dtype=np.float32)) for rng in rngs]
    chance = _blocks(torch.stack(drawn).to(rows)) if drawn else blocks
    steps = blocks / scales.where(scales > 0, 1).unsqueeze(2)
    # Two roundings of float32, of s and of g/s, may push the largest entry above 127.
    whole = (steps + chance).floor_().clamp_(-127, 127).nan_to_num_(nan=0.0)
    return {GRADIENTS: whole.flatten(1)[:, :size].to(torch.int8), SCALES: scales}


def unpack(parts: Mapping[str, Tensor], wire: str, shape: tuple[int, int]) -> Tensor:
    """Return the rows (k, d) = ``shape``, float32, that came as ``parts``.

    SpcacwError if a part is missing, or has another shape or type.
    """
    values = _part(parts, GRADIENTS, shape, DTYPES[wire])
    if wire == FLOAT32:
        return values
    if wire == FLOAT16:
        return values.float()
    if wire == BFLOAT16:
        return values.view(torch.bfloat16).float()
    scales = _part(parts, SCALES, (shape[0], -(-shape[1] // BLOCK)), torch.float32)
    return (_blocks(values.float()) * scales.unsqueeze(2)).flatten(1)[:, : shape[1]]


def received(parts: Mapping[str, NDArray[Any]], how: str) -> NDArray[Any]:
    """Return the rows (k, d) that came as arrays; float32 arrays unchanged and unchecked.

    SpcacwError if they cannot be read in the format ``how``.
    """
    rows = parts.get(GRADIENTS)
    if rows is None:
        raise SpcacwError(f"the reply has no array '{GRADIENTS}'")
    if how == FLOAT32 or rows.size == 0:  # answers with losses have no gradients
        return rows
    try:
        tensors = {name: torch.from_numpy(part) for name, part in parts.items() if name in PARTS}
    except TypeError as error:
        raise SpcacwError(f"an array cannot be read ({error})") from error
    if rows.ndim != 2:
        raise SpcacwError(f"its gradients have shape {rows.shape}")
    return unpack(tensors, how, rows.shape).numpy()


def slack(how: str) -> float:
    """Return how much longer a gradient may become on its way, as a share of its length.

    In int8 an entry is off by less than s, and s² is at most the block's squared norm over 127².
    """
    return {FLOAT32: 0.0, FLOAT16: 2**-11, BFLOAT16: 2**-8, INT8: BLOCK**0.5 / 127}[how]


def size_of(floats: int, wire: str) -> int:
    """Return how many bytes are sent for a gradient of ``floats`` entries."""
    scales = 4 * -(-floats // BLOCK) if wire == INT8 else 0
    return floats * DTYPES[wire].itemsize + scales


def _blocks(rows: Tensor) -> Tensor:
    """Return rows (k, d) as (k, ⌈d/256⌉, 256), filled up with zeros."""
    count, size = rows.shape
    return pad(rows, (0, -size % BLOCK)).view(count, -(-size // BLOCK), BLOCK)


def _part(
    parts: Mapping[str, Tensor], name: str, shape: tuple[int, int], dtype: torch.dtype
) -> Tensor:
    part = parts.get(name)
    if part is None:
        raise SpcacwError(f"the reply has no array '{name}'")
    if part.shape != shape or part.dtype != dtype:
        found, wanted = (str(d).removeprefix("torch.") for d in (part.dtype, dtype))
        raise SpcacwError(
            f"it has {found} {name} of shape {tuple(part.shape)} where {wanted} {shape} were "
            "expected"
        )
    return part
