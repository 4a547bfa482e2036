"""The pooled pass of a plain perceptron, with the chain rule written out.

Of chains of linear layers and ReLUs the reverse pass is so short that autograd's bookkeeping costs
as much as a few silos' arithmetic. It is the pass of :mod:`spcacw_flwr.silos.layers`, bit for bit:
the same products, by the same functions, in the same order (tested). Unlike that one it also takes
a model for each silo, as methods of client-owned models need it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from spcacw_flwr.silos.layers import Step
from spcacw_flwr.silos.rules.linear import gradients_by_silo


def is_chain(steps: Sequence[Step]) -> bool:
    """Say whether a model is a sequence of linear layers, ReLUs and flattening only."""
    return all(type(step.module) in (nn.Linear, nn.ReLU, nn.Flatten) for step in steps)


def chain_pass(
    steps: Sequence[Step],
    weights: dict[str, Tensor],
    rows: dict[str, Tensor],
    x: Tensor,
    silos: int,
    loss_of: Callable[[Tensor], tuple[Tensor, Tensor]],
) -> Tensor:
    """Fill ``rows`` with the gradients of k = ``silos`` silos and return their losses.

    Parameters are those of :func:`~spcacw_flwr.silos.layers.pooled_pass`, but that ``weights`` may
    be (k, …), a model for each silo; ``loss_of`` takes outputs (k·b, …) to the silos' losses (k,)
    and the gradient of their sum.
    """
    ends = forward(steps, weights, x)
    losses, delta = loss_of(ends[-1])
    first = first_trained(steps)
    for k in range(len(steps) - 1, first - 1, -1):
        step = steps[k]
        if isinstance(step.module, nn.Linear):
            into = {name: rows[full] for name, full in step.names.items()}
            gradients_by_silo(delta, ends[k], silos, into)
            if k > first:
                delta = _back(delta, weights[step.names["weight"]])
        else:
            delta = back_as_is(step.module, delta, ends[k], ends[k + 1])
    return losses


def forward(steps: Sequence[Step], weights: dict[str, Tensor], x: Tensor) -> list[Tensor]:
    """Return the inputs of all steps, and after them the output of the last."""
    ends = [x]
    for step in steps:
        if isinstance(step.module, nn.Linear):
            own = {name: weights[full] for name, full in step.names.items()}
            ends.append(_affine(ends[-1], own["weight"], own.get("bias")))
        elif isinstance(step.module, nn.ReLU):
            ends.append(torch.relu(ends[-1]))
        else:
            ends.append(step.module(ends[-1]))
    return ends


def first_trained(steps: Sequence[Step]) -> int:
    """Return the number of the first step that has weights: the reverse pass ends there."""
    return min((k for k, step in enumerate(steps) if step.names), default=len(steps))


def back_as_is(module: nn.Module, delta: Tensor, below: Tensor, above: Tensor) -> Tensor:
    """Return the derivative with respect to the input of a step that has no weights."""
    if isinstance(module, nn.ReLU):
        return torch.ops.aten.threshold_backward(delta, above, 0)
    return delta.view(below.shape)


def _affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x Wᵀ + c for a weight (out, in) of all silos, or (k, out, in), one for each."""
    if weight.ndim == 2:
        return linear(x, weight, bias)
    by_silo = x.reshape(len(weight), -1, x.shape[-1])
    if bias is None:
        out = torch.bmm(by_silo, weight.transpose(1, 2))
    else:
        out = torch.baddbmm(bias.unsqueeze(1), by_silo, weight.transpose(1, 2))
    return out.view(*x.shape[:-1], -1)


def _back(delta: Tensor, weight: Tensor) -> Tensor:
    """Return δ W, the derivative with respect to the input."""
    if weight.ndim == 2:
        return delta @ weight
    by_silo = delta.reshape(len(weight), -1, delta.shape[-1])
    return torch.bmm(by_silo, weight).view(*delta.shape[:-1], -1)
