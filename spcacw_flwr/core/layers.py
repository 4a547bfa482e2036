"""How one backward pass through a shared model yields a gradient for each silo.

All silos share the model w_t, so their samples can pass through it as one batch; only the weights'
gradients must be kept apart. That is a product per silo (a batched matrix product for a linear
layer) in place of one over all samples: the same arithmetic as an ordinary pooled backward pass.
The idea is that of per-example gradients (I. Goodfellow, Efficient per-example gradient
computations, arXiv 1510.01799), with a silo's batch in the place of an example.

A layer takes part by a rule in :data:`RULES`. A rule sees activations (k·b, …), the batches of k
silos one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


@dataclass(frozen=True)
class Shared:
    """One layer's share of a pooled pass."""

    weights: dict[str, Tensor]
    """The layer's parameters, shared by all silos."""
    rows: dict[str, Tensor]
    """(k, *shape) for each parameter: where the silos' gradients go, written by the backward."""
    anchor: Tensor
    """A scalar that requires a gradient: it makes autograd visit layers whose input needs none."""


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
        weight, rows = layer.weights["weight"], layer.rows
        silos = len(rows["weight"])
        by_silo = delta.reshape(silos, -1, weight.shape[0])
        torch.bmm(
            by_silo.transpose(1, 2), x.reshape(silos, -1, weight.shape[1]), out=rows["weight"]
        )
        if "bias" in rows:
            torch.sum(by_silo, dim=1, out=rows["bias"])
        return (delta @ weight if ctx.needs_input_grad[0] else None), None, None


def _linear(module: nn.Module, x: Tensor, layer: Shared) -> Tensor:
    return _Linear.apply(x, layer.anchor, layer)


RULES: dict[type[nn.Module], Callable[[nn.Module, Tensor, Shared], Tensor]] = {nn.Linear: _linear}
"""Layers with parameters that a pooled pass can take apart by silo."""

SAMPLEWISE: tuple[type[nn.Module], ...] = (
    nn.Identity, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid,
    nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d,
)  # fmt: skip
"""Layers without parameters or chance that treat each sample for itself."""


def leaves(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield name and module of the layers of nested ``nn.Sequential``, in the order of the pass."""
    if type(model).forward is nn.Sequential.forward:
        for name, child in model._modules.items():  # named_children() leaves out repeated modules
            assert child is not None
            yield from leaves(child, f"{prefix}{name}.")
    else:
        yield prefix, model


def can_pool(model: nn.Module) -> bool:
    """Say whether one pooled pass gives the gradients of all silos.

    True for nested ``nn.Sequential`` of known layers: another module's ``forward`` could mix
    samples of different silos.
    """
    found: list[str] = []
    for prefix, layer in leaves(model):
        kind = type(layer)
        flat = kind is nn.Flatten and layer.start_dim >= 1  # type: ignore[operator]
        if kind not in RULES and kind not in SAMPLEWISE and not flat:
            return False
        found += [prefix + name for name, _ in layer.named_parameters(recurse=False)]
    # A parameter that two layers share appears once among the model's and twice among the layers'.
    return found == [name for name, _ in model.named_parameters()]


def pooled_pass(
    model: nn.Module, weights: dict[str, Tensor], rows: dict[str, Tensor], x: Tensor
) -> Tensor:
    """Return the outputs (k·b, …) for inputs (k·b, …); their backward pass fills ``rows``.

    ``weights`` and ``rows`` are keyed by the names of the model's parameters.
    """
    anchor = torch.zeros((), device=x.device, requires_grad=True)
    for prefix, module in leaves(model):
        rule = RULES.get(type(module))
        if rule is None:
            x = module(x)
            continue
        names = [name for name, _ in module.named_parameters(recurse=False)]
        own = {name: weights[prefix + name] for name in names}
        x = rule(module, x, Shared(own, {name: rows[prefix + name] for name in names}, anchor))
    return x
