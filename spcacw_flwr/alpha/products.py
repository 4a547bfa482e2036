"""Inner products of the silos' vectors: most of the arithmetic of a round with many silos.

A symmetric product (BLAS ``syrk``) is half of a general one, but PyTorch does not offer it and
NumPy's has threads of its own, which fight with PyTorch's over few cores. So where PyTorch keeps
to one core NumPy's is used, for some of the columns by each thread of the crew
(:mod:`spcacw_flwr.alpha.crew`); for few silos, of which it is slower than the general product, or
elsewhere, or on a GPU, PyTorch's.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spcacw_flwr.alpha.crew import hands, spread

SYRK_ROWS = 32
"""With fewer rows, the general product."""


def grams(*matrices: Tensor) -> list[NDArray[np.float64]]:
    """Return the inner products of the rows of each matrix (k, d): symmetric (k, k) float64 arrays.

    They are taken in float32 on the tensors' device, so the results are positive semi-definite only
    up to float32 rounding.

    Raises
    ------
    ValueError
        If an argument is not a matrix.
    """
    for rows in matrices:
        if rows.ndim != 2:
            raise ValueError(f"Inner products need a matrix of rows, not shape {(*rows.shape,)}.")
    many = max(len(rows) for rows in matrices) >= SYRK_ROWS
    on_cpu = all(rows.device.type == "cpu" for rows in matrices)
    if many and on_cpu and torch.get_num_threads() == 1:
        products = _symmetric([rows.numpy() for rows in matrices])
    else:
        products = [(rows @ rows.T).cpu().numpy() for rows in matrices]
    return [0.5 * (product + product.T.astype(np.float64)) for product in products]


def _symmetric(matrices: list[NDArray[np.float32]]) -> list[NDArray[np.float64]]:
    """Return the products by BLAS ``syrk``, of a part of the columns by each of the crew."""
    cut = -(-hands() // len(matrices))
    parts = [(k, part) for k, rows in enumerate(matrices) for part in np.array_split(rows, cut, 1)]
    found = spread(lambda part: _syrk(part[1]), parts)
    return [sum((p.astype(np.float64) for (at, _), p in zip(parts, found, strict=True) if at == k),
                start=np.zeros(())) for k in range(len(matrices))]  # fmt: skip


def _syrk(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    product: NDArray[np.float32] = rows @ rows.T  # NumPy sees the symmetry and calls BLAS syrk
    return product
