"""Linear layers and embeddings: one product, or one scatter, for each silo."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear

from spcacw_flwr.silos.rules.base import Rule, Shared


def gradients_by_silo(delta: Tensor, x: Tensor, silos: int, rows: dict[str, Tensor]) -> None:
    """Write a linear layer's gradients, from ∂ loss/∂ output and input, into ``rows``."""
    by_silo = delta.reshape(silos, -1, delta.shape[-1])
    inputs = x.reshape(silos, -1, x.shape[-1])
    torch.bmm(by_silo.transpose(1, 2), inputs, out=rows["weight"])
    if "bias" in rows:
        torch.sum(by_silo, dim=1, out=rows["bias"])


class _Linear(torch.autograd.Function):
    """x Wᵀ + c, whose backward writes one weight gradient per silo and returns only ∂/∂x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, layer: Shared) -> Tensor:
        ctx.save_for_backward(x)
        ctx.layer = layer
        return linear(x, layer.weights["weight"], layer.weights.get("bias"))

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, None, None]:
        (x,), layer, (delta,) = ctx.saved_tensors, ctx.layer, upstream
        weight = layer.weights["weight"]
        gradients_by_silo(delta, x, layer.silos, layer.rows)
        return (delta @ weight if ctx.needs_input_grad[0] else None), None, None


class _Embedding(torch.autograd.Function):
    """W[tokens]; the silos' gradients come from one scatter into k tables at once."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, anchor: Tensor, layer: Shared) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.layer = layer
        return embedding(tokens, layer.weights["weight"])

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[None, None, None]:
        (tokens,), layer, (delta,) = ctx.saved_tensors, ctx.layer, upstream
        into, size = layer.rows["weight"], len(layer.weights["weight"])
        table = torch.arange(layer.silos, device=tokens.device).unsqueeze(1) * size
        places = tokens.reshape(layer.silos, -1) + table  # silo k's words in the k-th table
        tables = torch.ops.aten.embedding_dense_backward(
            delta.reshape(places.numel(), -1), places.flatten(), layer.silos * size, -1, False
        )
        into.copy_(tables.view(into.shape))
        return None, None, None


def _plain(module: nn.Embedding) -> bool:
    return module.padding_idx is None and module.max_norm is None and not (
        module.scale_grad_by_freq or module.sparse
    )  # fmt: skip


LINEAR = Rule(lambda module, x, layer: _Linear.apply(x, layer.anchor, layer))
EMBEDDING = Rule(lambda module, x, layer: _Embedding.apply(x, layer.anchor, layer), _plain)
