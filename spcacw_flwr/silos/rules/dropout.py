"""Dropout: every silo draws its own mask, from its own generator.

The masks are drawn on the CPU, silo by silo and layer by layer in the order of the pass, as plain
PyTorch draws them on the CPU for that silo's batch alone after ``torch.manual_seed``: they are the
same bits, and the same on every device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from spcacw_flwr.silos.rules.base import Rule, Shared


def _drop(p: float, x: Tensor, shape: Callable[[Tensor], tuple[int, ...]], layer: Shared) -> Tensor:
    if p in (0.0, 1.0):  # nothing is drawn
        return x * (1.0 - p)
    sizes = shape(layer.split(x)[0])
    masks = [torch.empty(sizes).bernoulli_(1 - p, generator=source) for source in layer.noise]
    return x * torch.cat(masks).div_(1 - p).to(x)


def _units(module: Any, x: Tensor, layer: Shared) -> Tensor:
    return _drop(module.p, x, lambda part: part.shape, layer)


def _channels(module: Any, x: Tensor, layer: Shared) -> Tensor:
    return _drop(module.p, x, lambda part: (*part.shape[:2], *[1] * (part.dim() - 2)), layer)


DROPOUT = Rule(_units, lambda module: module.training, draws=True)
SPATIAL_DROPOUT = Rule(_channels, lambda module: module.training, draws=True)
