"""Inner products of the silos' vectors, exact or sketched: most of the arithmetic of a round.

SP-CACW's cost depends on gradients and biases through inner products only (Eq. (CostDef)).

A symmetric product is half of a general one. PyTorch does not offer it. For up to some 60 silos, on
a CPU, its lower triangle is computed in strips of rows. For more, BLAS ``syrk`` is faster: NumPy
offers it, with threads of its own, which fight with PyTorch's over few cores. So it is used where
PyTorch keeps to one core, a part of the columns by each thread of the crew
(:mod:`spcacw_flwr.alpha.crew`). On a GPU the product of float32 is PyTorch's general one.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spcacw_flwr.alpha.crew import hands, spread

SYRK_ROWS, STRIP = 64, 16
"""With fewer rows, strips of so many; below 16 rows in all, of 4.

PyTorch multiplies 16 long rows three times as fast as 15.
"""


def grams(*matrices: Tensor, low: bool = False) -> list[NDArray[np.float64]]:
    """Return the inner products of the rows of each matrix (k, d): symmetric (k, k) float64 arrays.

    They are taken in float32 on the tensors' device, so the results are positive semi-definite only
    up to float32 rounding. With ``low`` they are taken, and rounded, in bfloat16: each is off by up
    to 1/256 of itself, without bias. ValueError if an argument is not a matrix.
    """
    for rows in matrices:
        if rows.ndim != 2:
            raise ValueError(f"Inner products need a matrix of rows, not shape {(*rows.shape,)}.")
    many = max(len(rows) for rows in matrices) >= SYRK_ROWS
    on_cpu = all(rows.device.type == "cpu" for rows in matrices)
    if many and on_cpu and not low and torch.get_num_threads() == 1:
        products = _symmetric([rows.numpy() for rows in matrices])
    else:
        found = spread(_low if low else _lower, matrices)
        products = [product.cpu().numpy() for product in found]
    return [0.5 * (product + product.T.astype(np.float64)) for product in products]


def _low(rows: Tensor) -> Tensor:
    """Return the product (k, k) in bfloat16, as float32."""
    return _strips(rows.to(torch.bfloat16), SYRK_ROWS).float()


def _lower(rows: Tensor) -> Tensor:
    """Return the product (k, k) in the way that is fastest for so many rows."""
    if rows.device.type != "cpu" or len(rows) >= SYRK_ROWS:
        return rows @ rows.T
    return _strips(rows, STRIP if len(rows) >= STRIP else 4)


def _strips(rows: Tensor, step: int) -> Tensor:
    """Return the product (k, k): the lower triangle in strips of rows, and its mirror image."""
    found = rows.new_empty(size := len(rows), size)
    for start in range(0, size, step):
        end = start + step
        torch.mm(rows[start:end], rows[:end].T, out=found[start:end, :end])
        found[:start, start:end] = found[start:end, :start].T
    return found


def _symmetric(matrices: list[NDArray[np.float32]]) -> list[NDArray[np.float64]]:
    """Return the products by BLAS ``syrk``, of a part of the columns by each of the crew."""
    cut = -(-hands() // len(matrices))
    parts = [(k, part) for k, rows in enumerate(matrices) for part in np.array_split(rows, cut, 1)]
    # NumPy sees the symmetry and calls BLAS syrk
    found = spread(lambda part: (part[1] @ part[1].T).astype(np.float64), parts)
    return [sum((p for (at, _), p in zip(parts, found, strict=True) if at == k),
                start=np.zeros(())) for k in range(len(matrices))]  # fmt: skip


class CountSketch:
    """A seeded linear map S: R^d → R^k with E⟨Sa, Sb⟩ = ⟨a, b⟩, for federations of many silos.

    It is a count sketch (M. Charikar, K. Chen and M. Farach-Colton, Finding frequent items in data
    streams, 2002), laid out as one streaming pass: the vector is cut into blocks of length k, each
    block gets random signs and a random cyclic shift, and the blocks are added up.

    Two coordinates of different blocks meet with chance 1/k, of one block never, and their signs
    are independent, so that

        E (⟨Sa, Sb⟩ − ⟨a, b⟩)² ≤ (⟨a, b⟩² + ‖a‖²‖b‖²) / k:

    the only terms left in the square are those of pairs that meet. An inner product is thus off by
    about √(2/k) of ‖a‖‖b‖ or less. Where S keeps the norms of all combinations of the silos'
    gradients and biases to within a factor 1 ± ε, every αᵀHα is within it too, and the α that
    minimises the sketched cost has a true cost of at most (1 + ε)/(1 − ε) times the least.

    ``dimension`` is d, ``size`` k; ``rng`` draws signs and shifts. ValueError if k is not in 1…d.
    """

    def __init__(
        self, dimension: int, size: int, rng: np.random.Generator,
        device: torch.device | str | None = None,
    ) -> None:  # fmt: skip
        if not 1 <= size <= dimension:
            raise ValueError(f"The sketch's size must be in 1…{dimension}, not {size}.")
        self.dimension, self.size = dimension, size
        blocks = -(-dimension // size)
        signs = rng.integers(2, size=dimension, dtype=np.int8) * 2.0 - 1.0
        self.signs = torch.from_numpy(signs).to(torch.float32).to(device)
        self.shifts: list[int] = rng.integers(size, size=blocks).tolist()

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the sketches (n, k) of rows (n, d), or (k,) of (d,)."""
        if rows.shape[-1] != self.dimension:
            raise ValueError(f"Expected rows of length {self.dimension}, not {rows.shape[-1]}.")
        out = rows.new_zeros(*rows.shape[:-1], self.size)
        for block, shift in enumerate(self.shifts):
            start = block * self.size
            end = min(start + self.size, self.dimension)
            turn = min(end, start + self.size - shift)  # where the shifted block wraps around
            for low, high, at in ((start, turn, shift), (turn, end, 0)):
                into = out[..., at : at + high - low]
                into.addcmul_(rows[..., low:high], self.signs[low:high])
        return out
