"""What a layer's rule is given, and what it must do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Shared:
    """One layer's share of a pooled pass."""

    silos: int
    """k: activations are (k·b, …), the batches of k silos one after another."""
    weights: dict[str, Tensor]
    """The layer's parameters, shared by all silos."""
    rows: dict[str, Tensor]
    """(k, *shape) for each parameter: where the silos' gradients go, written by the backward."""
    anchor: Tensor
    """A scalar that requires a gradient: it makes autograd visit layers whose input needs none."""
    noise: Sequence[torch.Generator]
    """k generators on the CPU, one for each silo; layers draw from them in the order of the pass.

    Empty unless the model has a layer that draws.
    """

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the k silos' parts (b, …) of activations (k·b, …), as views."""
        return x.chunk(self.silos)


@dataclass(frozen=True)
class Rule:
    """How a kind of layer takes part in a pooled pass."""

    apply: Callable[[Any, Tensor, Shared], Tensor]
    """Module, input (k·b, …) and share → output (k·b, …), whose backward fills the rows."""
    allows: Callable[[Any], bool] = lambda module: True
    """Whether this very module, with its options, is one that the rule covers."""
    draws: bool = False
    """Whether the layer draws random numbers."""
