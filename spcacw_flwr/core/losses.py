"""The loss of each sample: cross-entropy, or a function of the user's own."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import cross_entropy

from spcacw_flwr.keys import SpcacwError, did_you_mean, import_by_path

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs (n, …, classes), labels (n, …)) → the losses of the n samples, (n,)."""


def losses_of(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy of each sample, (n,); a sequence's is the mean over positions.

    ``outputs`` is (n, classes) for labels (n,), or (n, positions, classes) for (n, positions).
    """
    each = cross_entropy(outputs.flatten(0, -2), y.flatten(), reduction="none")
    return each if y.ndim == 1 else each.view(len(y), -1).mean(dim=1)


LOSSES: dict[str, Loss] = {"cross-entropy": losses_of}


def make_loss(name: str) -> Loss:
    """Return the loss that the key ``loss`` names.

    Raises
    ------
    SpcacwError
        If the name is unknown, or the user's own cannot be imported or called.
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
