"""Family S: a network in two, a body φ that silos share and a head h_i of each silo's own.

w_i = [φ; h_i]. The head is the last tensors of the flat vector, so both parts are slices of it. The
methods keep all heads, for silos keep no state: a silo is sent [φ; h_i], though in the published
protocols its head never leaves it; the requests say so in ``traffic``.

A part that is held fixed takes no step at all. To step the whole vector on a gradient with zeros
for the fixed part would let momentum and weight decay move it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError, key
from spcacw_flwr.methods.base import WeightedGradients
from spcacw_flwr.silos.layout import Layout
from spcacw_flwr.silos.protocol import Federation


def head_tensors_key() -> Any:
    """Declare the key ``head-tensors``, the same for every method of the family."""
    return key(
        2,
        "Tensors of the head h_i, the last ones in the order of model.parameters(); 2 are the "
        "weight and bias of the last layer; 0: no head.",
        least=0,
    )


def head_start(layout: Layout, head_tensors: int) -> int:
    """Return d_φ, where the head begins in the flat vector.

    Raises
    ------
    SpcacwError
        If no tensor would be left for the body.
    """
    count = len(layout.shapes)
    if head_tensors >= count:
        raise SpcacwError(
            f"head-tensors = {head_tensors} leaves nothing to share: the model has {count} "
            f"tensors, so use at most {count - 1}."
        )
    return sum(shape.numel() for _, shape in layout.shapes[: count - head_tensors])


class SplitNetwork(WeightedGradients):
    """What the family has in common: d_φ, the heads, and the models [φ; h_i] to ask silos at.

    Attributes
    ----------
    body_size : int
        d_φ.
    heads : Tensor
        (M, d_h), the head of each silo; all start at that of w_0.
    """

    def __init__(self, config: Config, federation: Federation, parameters: Tensor) -> None:
        super().__init__(config, federation, parameters)
        assert federation.layout is not None  # every engine knows its model
        self.layout = federation.layout
        self.body_size = head_start(self.layout, self.own.head_tensors)
        self.heads = parameters[self.body_size :].repeat(federation.num_silos, 1)

    def joined(self, bodies: Tensor, silos: Sequence[int]) -> Tensor:
        """Return [φ; h_i] (k, d) for ``silos``; ``bodies`` is one φ (d_φ,) or a row for each."""
        heads = self.heads[list(silos)]
        return torch.cat((bodies.expand(len(heads), -1), heads), dim=1)
