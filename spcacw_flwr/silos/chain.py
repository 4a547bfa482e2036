"""The gradients of all silos of a plain perceptron in one pass, with the chain rule written out.

All silos share the model w_t, so their samples can pass through it as one batch. Only the weights'
gradients must stay separate: one product per silo instead of one over all samples. The idea is that
of per-example gradients (I. Goodfellow, Efficient per-example gradient computations, arXiv
1510.01799), with a silo's batch in place of an example. The reverse pass of linear layers and ReLUs
is so short that autograd's bookkeeping costs as much as the arithmetic of a few silos. The pass
also accepts one model per silo, which methods of client-owned models need.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from spcacw_flwr.silos.models import Loss, losses_of


@dataclass(frozen=True)
class Step:
    """A layer of a chain."""

    module: nn.Module
    names: dict[str, str]
    """Maps the layer's name of each of its parameters to the model's name."""


def _leaves(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield name and module of the layers of nested ``nn.Sequential``, in the order of the pass."""
    if type(model).forward is nn.Sequential.forward:
        for name, child in model._modules.items():  # named_children() leaves out repeated modules
            assert child is not None
            yield from _leaves(child, f"{prefix}{name}.")
    else:
        yield prefix, model


PLAIN = nn.Linear, nn.ReLU, nn.Flatten
"""The layers of a chain."""


def steps_of(model: nn.Module, kinds: tuple[type[nn.Module], ...] = PLAIN) -> list[Step]:
    """Return the layers of a model that is a sequence of layers of these kinds only.

    Empty for any other model, or if layers share weights, have hooks, or are not all trained.
    """
    if any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()):
        return []
    steps = []
    for prefix, module in _leaves(model):
        mixes = isinstance(module, nn.Flatten) and module.start_dim != 1
        if type(module) not in kinds or mixes:
            return []
        own = [name for name, _ in module.named_parameters(recurse=False)]
        steps.append(Step(module, {name: prefix + name for name in own}))
    # A parameter that two layers share appears once among the model's and twice among the layers'.
    found = [full for step in steps for full in step.names.values()]
    trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
    whole = len(trained) == len(list(model.parameters()))
    return steps if whole and found == trained else []


def bytes_kept(steps: Sequence[Step]) -> int:
    """Return the bytes kept of a sample until the reverse pass: float32 inputs and outputs."""
    linears = [step.module for step in steps if isinstance(step.module, nn.Linear)]
    return sum(4 * (layer.in_features + 2 * layer.out_features) for layer in linears)


def chain_pass(
    steps: Sequence[Step], weights: dict[str, Tensor], rows: dict[str, Tensor], x: Tensor,
    y: Tensor, loss: Loss,
) -> Tensor:  # fmt: skip
    """Fill ``rows`` with the gradients of k silos and return their losses (k,).

    ``x`` (k, b, …) and ``y`` (k, b, …) hold a mini-batch for each silo. The names of the model's
    parameters are the keys of ``rows`` and ``weights``. Weights may be (k, …), a model per silo.
    """
    silos = len(x)
    ends = forward(steps, weights, x.flatten(0, 1))
    losses, delta = losses_and_gradient(loss, ends[-1], y.flatten(0, 1), silos)
    first = first_trained(steps)
    for k in range(len(steps) - 1, first - 1, -1):
        if names := steps[k].names:
            by_silo, inputs = (t.reshape(silos, -1, t.shape[-1]) for t in (delta, ends[k]))
            torch.bmm(by_silo.transpose(1, 2), inputs, out=rows[names["weight"]])
            if "bias" in names:
                torch.sum(by_silo, dim=1, out=rows[names["bias"]])
        if k > first:
            delta = back(steps[k], weights, delta, *ends[k : k + 2])
    return losses


def mean_by_silo(each: Tensor, silos: int) -> Tensor:
    """Return the mean losses (k,) of k = ``silos`` silos from the losses of all samples (k·b,)."""
    return each.view(silos, -1).mean(dim=1)


def losses_and_gradient(
    loss: Loss, outputs: Tensor, y: Tensor, silos: int
) -> tuple[Tensor, Tensor]:
    """Return the mean losses (k,) of k = ``silos`` silos, and the gradient of their sum.

    ``outputs`` (k·b, …, classes) and labels ``y`` (k·b, …) hold b samples of each silo. The
    gradient is with respect to ``outputs``. For the plain cross-entropy the chain rule is written
    out with the functions that autograd calls: the result is bit for bit the same (tested).
    """
    if loss is losses_of and y.ndim == 1:
        aten = torch.ops.aten
        logs = torch.log_softmax(outputs, 1)
        plain = None, 0, -100  # no class weights, no reduction, and the label to ignore
        each, total = aten.nll_loss_forward(logs, y, *plain)
        upstream = torch.full_like(each, silos / len(y))
        upstream = aten.nll_loss_backward(upstream, logs, y, *plain, total)
        delta = aten._log_softmax_backward_data(upstream, logs, 1, logs.dtype)
        return mean_by_silo(each, silos), delta
    leaf = outputs.detach().requires_grad_()
    losses = mean_by_silo(loss(leaf, y), silos)
    (delta,) = torch.autograd.grad(losses.sum(), leaf)
    return losses.detach(), delta


def forward(steps: Sequence[Step], weights: dict[str, Tensor], x: Tensor) -> list[Tensor]:
    """Return the inputs of all steps, followed by the output of the last step."""
    ends = [x]
    for step in steps:
        if isinstance(step.module, nn.Linear):
            own = {name: weights[full] for name, full in step.names.items()}
            ends.append(affine(ends[-1], own["weight"], own.get("bias")))
        elif isinstance(step.module, nn.ReLU):
            ends.append(torch.relu(ends[-1]))
        else:
            ends.append(step.module(ends[-1]))
    return ends


def first_trained(steps: Sequence[Step]) -> int:
    """Return the number of the first step that has weights: the reverse pass ends there."""
    return min((k for k, step in enumerate(steps) if step.names), default=len(steps))


def back(
    step: Step, weights: dict[str, Tensor], delta: Tensor, below: Tensor, above: Tensor
) -> Tensor:
    """Return the derivative by a step's input, given ``delta``, that by its output ``above``."""
    if isinstance(step.module, nn.ReLU):
        return torch.ops.aten.threshold_backward(delta, above, 0)
    if not step.names:
        return delta.view(below.shape)
    weight = weights[step.names["weight"]]
    if weight.ndim == 2:
        return delta @ weight
    by_silo = delta.reshape(len(weight), -1, delta.shape[-1])
    return torch.bmm(by_silo, weight).view(*delta.shape[:-1], -1)


def affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x Wᵀ + c for one weight (out, in) of all silos, or a weight for each (k, out, in)."""
    if weight.ndim == 2:
        return linear(x, weight, bias)
    by_silo = x.reshape(len(weight), -1, x.shape[-1])
    if bias is None:
        out = torch.bmm(by_silo, weight.transpose(1, 2))
    else:
        out = torch.baddbmm(bias.unsqueeze(1), by_silo, weight.transpose(1, 2))
    return out.view(*x.shape[:-1], -1)
