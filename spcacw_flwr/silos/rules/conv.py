"""Convolutions: one forward and one input gradient for all silos, a weight gradient for each.

The weight gradient of a silo's batch costs its share of the pooled one (on a CPU even a little
less, for a smaller batch fits the cache), so that nothing is lost by k calls.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from spcacw_flwr.silos.rules.base import Rule, Shared

INPUT, WEIGHT = (True, False, False), (False, True, True)
"""Which of the gradients of input, weight and bias are computed."""


class _Convolution(torch.autograd.Function):
    """x ∗ W + c, whose backward writes one weight gradient per silo and returns only ∂/∂x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, module: Any, layer: Shared) -> Tensor:
        ctx.save_for_backward(x)
        ctx.layer = layer
        ctx.geometry = (module.stride, module.padding, module.dilation, False,
                        module.output_padding, module.groups)  # fmt: skip
        return torch.convolution(
            x, layer.weights["weight"], layer.weights.get("bias"), *ctx.geometry
        )

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, None, None, None]:
        (x,), layer, (delta,) = ctx.saved_tensors, ctx.layer, upstream
        weight, rows = layer.weights["weight"], layer.rows
        backward, sizes = torch.ops.aten.convolution_backward, [weight.shape[0]]
        parts = zip(layer.split(delta), layer.split(x), strict=True)
        for k, (above, below) in enumerate(parts):
            _, rows["weight"][k], bias = backward(
                above, below, weight, sizes, *ctx.geometry, WEIGHT
            )
            if "bias" in rows:
                rows["bias"][k] = bias
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        return backward(delta, x, weight, sizes, *ctx.geometry, INPUT)[0], None, None, None


def _plain(module: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> bool:
    return module.padding_mode == "zeros" and not isinstance(module.padding, str)


CONVOLUTION = Rule(
    lambda module, x, layer: _Convolution.apply(x, layer.anchor, module, layer), _plain
)
