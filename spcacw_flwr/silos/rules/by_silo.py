"""A layer that takes the silos one after another, by PyTorch's own kernels.

For layers whose kernels PyTorch does not open, and where small batches are as fast as large ones.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from spcacw_flwr.silos.rules.base import Shared


class _BySilo(torch.autograd.Function):
    """The layer's own forward and backward, with leaves of its own for each silo."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, module: nn.Module, layer: Shared) -> Tensor:
        ctx.layer, ctx.silos = layer, []
        for part in layer.split(x.detach()):
            leaves = {name: w.detach().requires_grad_() for name, w in layer.weights.items()}
            if ctx.needs_input_grad[0]:
                part = part.requires_grad_()
            with torch.enable_grad():
                ctx.silos.append((part, leaves, functional_call(module, leaves, (part,))))
        return torch.cat([out.detach() for _, _, out in ctx.silos])

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, None, None, None]:
        layer, (delta,) = ctx.layer, upstream
        below: list[Tensor] = []
        for k, above in enumerate(layer.split(delta)):
            (part, leaves, out), ctx.silos[k] = ctx.silos[k], None
            inputs = [*leaves.values(), *([part] if part.requires_grad else [])]
            found = torch.autograd.grad(out, inputs, above)
            for name, gradient in zip(leaves, found, strict=False):
                layer.rows[name][k] = gradient
            below += found[len(leaves) :]
        return torch.cat(below) if below else None, None, None, None


def by_silo(module: nn.Module, x: Tensor, layer: Shared) -> Tensor:
    """Apply a layer to each silo's part by itself; it must draw no random numbers."""
    out: Tensor = _BySilo.apply(x, layer.anchor, module, layer)
    return out
