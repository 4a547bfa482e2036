"""The loss of each sample: cross-entropy, squared error, or a function of the user's own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from spcacw_flwr.config.declare import SpcacwError, did_you_mean, import_by_path

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs (n, …, classes), labels (n, …)) → the losses of the n samples, (n,)."""


def losses_of(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy of each sample, (n,); a sequence's is the mean over positions.

    ``outputs`` is (n, classes) for labels (n,), or (n, positions, classes) for (n, positions).
    """
    each = cross_entropy(outputs.flatten(0, -2), y.flatten(), reduction="none")
    return each if y.ndim == 1 else each.view(len(y), -1).mean(dim=1)


def mean_by_silo(each: Tensor, silos: int) -> Tensor:
    """Return the mean losses (k,) of k = ``silos`` silos from those of all their samples (k·b,)."""
    return each.view(silos, -1).mean(dim=1)


def losses_and_gradient(
    loss: Loss, outputs: Tensor, y: Tensor, silos: int
) -> tuple[Tensor, Tensor]:
    """Return the mean losses (k,) of k = ``silos`` silos, and the gradient of their sum.

    ``outputs`` (k·b, …, classes) and labels ``y`` (k·b, …) are of all silos, b samples of each; the
    gradient is that with respect to ``outputs``. Of the plain cross-entropy the chain rule is
    written out, with the functions that autograd itself would call: bit for bit the same (tested).
    """
    if loss is losses_of and y.ndim == 1:
        aten = torch.ops.aten
        logs = torch.log_softmax(outputs, 1)
        plain = None, 0, -100  # no class weights, no reduction, and the label that is left out
        each, total = aten.nll_loss_forward(logs, y, *plain)
        upstream = torch.full_like(each, silos / len(y))
        upstream = aten.nll_loss_backward(upstream, logs, y, *plain, total)
        delta = aten._log_softmax_backward_data(upstream, logs, 1, logs.dtype)
        return mean_by_silo(each, silos), delta
    leaf = outputs.detach().requires_grad_()
    losses = mean_by_silo(loss(leaf, y), silos)
    (delta,) = torch.autograd.grad(losses.sum(), leaf)
    return losses.detach(), delta


def squared_errors(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the squared error of each sample, (n,); ``outputs`` is (n, 1) for labels (n,)."""
    return (outputs.squeeze(-1) - y).square()


LOSSES: dict[str, Loss] = {"cross-entropy": losses_of, "squared-error": squared_errors}


def make_loss(name: str) -> Loss:
    """Return the loss that the key ``loss`` names.

    SpcacwError if the name is unknown, or the user's own cannot be imported or called.
    """
    if name in LOSSES:
        return LOSSES[name]
    if ":" not in name:
        raise SpcacwError(
            f"loss = {name!r} is unknown{did_you_mean(name, LOSSES)}: it must be one of "
            f"{', '.join(LOSSES)}, or 'package.module:function' of your own."
        )
    loss: Loss = import_by_path(name, "loss")
    if not callable(loss):
        raise SpcacwError(
            f"loss = {name!r} is no function: it must take outputs and labels and return the loss "
            "of each sample."
        )
    return loss
