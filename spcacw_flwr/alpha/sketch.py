"""A random sketch of gradients that keeps their inner products, for federations of many silos.

SP-CACW's cost depends on gradients and biases through inner products only (Eq. (CostDef)), so both
may live in R^k with k ≪ d. The sketch is a count sketch (M. Charikar, K. Chen and M. Farach-Colton,
Finding frequent items in data streams, 2002), laid out so that it is one streaming pass: the vector
is cut into blocks of length k, each block gets random signs and a random cyclic shift, and the
blocks are added up.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class CountSketch:
    """A seeded linear map S: R^d → R^k with E⟨Sa, Sb⟩ = ⟨a, b⟩.

    Two coordinates of different blocks meet with chance 1/k, of one block never, and their signs
    are independent, so that

        E (⟨Sa, Sb⟩ − ⟨a, b⟩)² ≤ (⟨a, b⟩² + ‖a‖²‖b‖²) / k:

    the only terms left in the square are those of pairs that meet. An inner product is thus off by
    about √(2/k) of ‖a‖‖b‖ or less. Where S keeps the norms of all combinations of the silos'
    gradients and biases to within a factor 1 ± ε, every αᵀHα is within it too, and the α that
    minimises the sketched cost has a true cost of at most (1 + ε)/(1 − ε) times the least.

    Parameters
    ----------
    dimension, size : int
        d and k.
    rng : numpy.random.Generator
        Draws signs and shifts.
    device : torch.device or str, optional
        Where the vectors live.

    Raises
    ------
    ValueError
        If k is not in 1…d.
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
