"""Inner products of the silos' vectors, exact or sketched: most of the arithmetic of a round.

SP-CACW's cost depends on gradients and biases through inner products only (Eq. (CostDef)).

The code uses PyTorch's general product, although half of it would be enough: for up to 128 silos,
neither strips of the lower triangle nor BLAS ``syrk`` was faster (for 500: a third faster).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spcacw_flwr.alpha.crew import hands, spread

BLOCK = 1 << 16
"""How many squares PyTorch may add up one after the other in float32."""
FEW = 17
"""With fewer rows PyTorch uses float32 in any case, and is faster if low precision is off."""


@contextmanager
def low_precision(on: bool = True) -> Iterator[None]:
    """Let PyTorch multiply float32 matrices in bfloat16 (a CPU that can) or tf32 (a GPU).

    Elements are rounded to 8 bits (bfloat16) or 11 (tf32); sums stay float32.
    """
    cpu, gpu = torch.backends.mkldnn.matmul, torch.backends.cuda.matmul  # type: ignore[attr-defined]
    kinds = {cpu: "bf16", gpu: "tf32"} if on else {}
    try:
        for kind, precision in kinds.items():
            kind.fp32_precision = precision
        yield
    finally:
        for kind in kinds:
            kind.fp32_precision = "none"  # follow the setting for all products


def grams(*matrices: Tensor, low: bool = False) -> list[NDArray[np.float64]]:
    """Return the inner products of the rows of each matrix (k, d): symmetric (k, k) float64 arrays.

    They are computed in float32 on the tensors' device, so the results are positive semi-definite
    only up to float32 rounding. ``low`` computes them in :func:`low_precision`. ValueError if an
    argument is not a matrix.
    """
    for rows in matrices:
        if rows.ndim != 2:
            raise ValueError(f"Inner products need a matrix of rows, not shape {(*rows.shape,)}.")
    cut = -(-hands() // len(matrices))
    parts = [part for rows in matrices for part in rows.tensor_split(cut, dim=1)]
    with low_precision(low and max(map(len, matrices)) >= FEW):
        found = [part.cpu().numpy() for part in spread(lambda part: part @ part.T, parts)]
    products = [sum(found[k : k + cut], np.zeros(())) for k in range(0, len(found), cut)]
    return [0.5 * (product + product.T) for product in products]


def norms_of(rows: Tensor) -> Tensor:
    """Return the norms along the last dimension: (k,) of rows (k, d), or that of a vector (d,).

    On a CPU, PyTorch's own norm of 11 million numbers is off by 6e-4, because it adds up the
    squares one by one. Clipped gradients would seem too long.
    """
    whole = rows.shape[-1] // BLOCK * BLOCK
    rest = torch.linalg.vector_norm(rows[..., whole:], dim=-1)
    if not whole:
        return rest
    blocks = torch.linalg.vector_norm(rows[..., :whole].unflatten(-1, (-1, BLOCK)), dim=-1)
    return torch.linalg.vector_norm(torch.cat([blocks, rest.unsqueeze(-1)], dim=-1), dim=-1)


class CountSketch:
    """A seeded linear map S: R^d → R^k with E⟨Sa, Sb⟩ = ⟨a, b⟩, for federations of many silos.

    It is a count sketch (M. Charikar, K. Chen and M. Farach-Colton, Finding frequent items in data
    streams, 2002), laid out as one streaming pass: the vector is cut into blocks of length k, each
    block gets random signs and a random cyclic shift, and the blocks are added up.

    Two coordinates of different blocks meet with chance 1/k, two of one block never meet, and
    their signs are independent. Hence

        E (⟨Sa, Sb⟩ − ⟨a, b⟩)² ≤ (⟨a, b⟩² + ‖a‖²‖b‖²) / k,

    because only pairs that meet leave terms in the square. An inner product is thus off by about
    √(2/k) of ‖a‖‖b‖ or less. If S keeps the squared norms of all combinations of the silos'
    gradients and biases to within a factor 1 ± ε, it keeps every αᵀHα within that factor too. The
    α that minimises the sketched cost then has a true cost of at most (1 + ε)/(1 − ε) times the
    least.

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
