"""BatchNorm: every silo's batch is normalised by its own statistics.

Each silo's part of the activations goes through the kernels that plain PyTorch would use, so that
the results are the same bits as those of a loop over silos. Running statistics take no part: silos
keep no state, and :mod:`spcacw_flwr.silos.statistics` computes them when a model is evaluated.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spcacw_flwr.silos.rules.base import Rule, Shared


class _BatchNorm(torch.autograd.Function):
    """γ (x − mean)/√(var + ε) + β with mean and var over each silo's samples and positions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, eps: float, layer: Shared) -> Tensor:
        gamma, beta = layer.weights.get("weight"), layer.weights.get("bias")
        out, means = torch.empty_like(x), x.new_empty(layer.silos, x.shape[1])
        inverses = torch.empty_like(means)
        parts = zip(layer.split(x), layer.split(out), means, inverses, strict=True)
        for part, into, mean, inverse in parts:
            torch.ops.aten.native_batch_norm.out(
                part, gamma, beta, None, None, True, 0.0, eps,
                out=into, save_mean=mean, save_invstd=inverse,
            )  # fmt: skip
        ctx.save_for_backward(x, means, inverses)
        ctx.layer, ctx.eps = layer, eps
        return out

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, None, None, None]:
        (x, means, inverses), layer, (delta,) = ctx.saved_tensors, ctx.layer, upstream
        gamma, rows, below = layer.weights.get("weight"), layer.rows, ctx.needs_input_grad[0]
        gradient = torch.empty_like(x) if below else None
        wanted = below, "weight" in rows, "bias" in rows
        for k, (above, part) in enumerate(zip(layer.split(delta), layer.split(x), strict=True)):
            into, scale, shift = torch.ops.aten.native_batch_norm_backward(
                above, part, gamma, None, None, means[k], inverses[k], True, ctx.eps, wanted
            )
            if gradient is not None:
                layer.split(gradient)[k].copy_(into)
            if "weight" in rows:
                rows["weight"][k] = scale
            if "bias" in rows:
                rows["bias"][k] = shift
        return gradient, None, None, None


BATCH_NORM = Rule(
    lambda module, x, layer: _BatchNorm.apply(x, layer.anchor, module.eps, layer),
    lambda module: module.training,
)
