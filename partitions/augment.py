"""Random crops and mirror images, for a whole batch at once (READING row 19).

A pure function of the batch and the generator: a silo keeps no state, so the same (seed, silo,
round) sees the same images in every engine.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def crop_and_flip(x: Tensor, rng: np.random.Generator, pad: int = 4, edge: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return each image cropped at random from itself padded by ``pad``, mirrored with chance ½.

    Parameters
    ----------
    x : Tensor
        Images (n, channels, height, width).
    rng : Generator
        Draws, for each image, its offset downwards and to the right in 0 … 2·pad, and its mirror.
    pad : int
        Pixels added on each side before the crop.
    edge : Tensor, optional
        Colour of the padding (channels,): what black is in the units of ``x``; None: 0.

    Returns
    -------
    Tensor
        A new tensor of the shape and type of ``x``.
    """
    n, channels, height, width = x.shape
    padded = x.new_zeros(n, channels, height + 2 * pad, width + 2 * pad)
    if edge is not None:
        padded += edge.to(x)[:, None, None]
    padded[:, :, pad : pad + height, pad : pad + width] = x
    down, right, mirror = (rng.integers(0, high, size=n) for high in (2 * pad + 1, 2 * pad + 1, 2))
    rows = down[:, None] + np.arange(height)
    across = np.arange(width)
    columns = right[:, None] + np.where(mirror[:, None] == 1, across[::-1], across)
    each, rows_, columns_ = (
        torch.from_numpy(i).to(x.device) for i in (np.arange(n), rows, columns)
    )
    # Indices of images, rows and columns go together; the slice of channels in their midst moves
    # to the end, and back.
    picked = padded[each[:, None, None], :, rows_[:, :, None], columns_[:, None, :]]
    return picked.permute(0, 3, 1, 2).contiguous()
