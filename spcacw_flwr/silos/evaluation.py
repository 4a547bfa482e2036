"""How good a model is for a silo; and BatchNorm's statistics, for silos keep no state.

While it trains, a model normalises each mini-batch by the batch's own statistics. To be evaluated
it needs fixed ones, of the silo whose data it is to serve (READING 19: the target's own). They are
the averages, over batches of that silo's training data, of the statistics that the model has at the
very weights that are evaluated: "precise BatchNorm" of Y. Wu and J. Johnson, Rethinking "Batch" in
BatchNorm, arXiv 2105.07576, section 3. An exponential average over past rounds would need a state,
and would mix in the statistics of weights that are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spcacw_flwr.silos.layout import call
from spcacw_flwr.silos.losses import Loss
from spcacw_flwr.silos.setting import SiloData
from spcacw_flwr.silos.streams import STATISTICS, stream


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Hold a model in evaluation mode (no dropout), and put it back into training mode."""
    model.eval()
    try:
        yield
    finally:
        model.train()


@contextmanager
def _gathering(norm: _BatchNorm) -> Iterator[None]:
    """Let a layer, of a model in evaluation mode, average the statistics of what it sees."""
    momentum, norm.momentum = norm.momentum, None  # PyTorch's word for a plain average
    norm.train()
    try:
        yield
    finally:
        norm.momentum = momentum
        norm.eval()


def _norms(model: nn.Module) -> dict[str, _BatchNorm]:
    return {
        f"{name}." if name else "": module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.running_mean is not None
    }


@torch.no_grad()
def buffers_at(
    model: nn.Module, weights: dict[str, Tensor], batches: Iterable[Tensor]
) -> dict[str, Tensor]:
    """Return the model's buffers, those of BatchNorm as the averages over some batches.

    They are wanted at the parameters w = ``weights``, on inputs (b, …) without dropout. The model's
    own buffers stay as they are. ``batches`` is not touched if it has no running statistics.
    """
    buffers, norms = {name: b.clone() for name, b in model.named_buffers()}, _norms(model)
    if not norms:
        return buffers
    for name in norms:
        buffers[f"{name}running_mean"].zero_()
        buffers[f"{name}running_var"].fill_(1)
        buffers[f"{name}num_batches_tracked"].zero_()
    with evaluating(model), ExitStack() as gathering:
        for norm in norms.values():
            gathering.enter_context(_gathering(norm))
        for x in batches:
            call(model, weights | buffers, x)
    return buffers


def shuffled_batches(x: Tensor, batch_size: int, seed: int, silo: int) -> Iterator[Tensor]:
    """Yield all samples of a silo in batches of b…2b−1, an order that depends on the seed alone.

    Shuffled, for data may be stored class by class; equal in size up to one sample, for each counts
    the same; none shorter than b (a silo with fewer than b samples is one batch).
    """
    order = torch.from_numpy(stream(seed, STATISTICS, silo).permutation(len(x)))
    for part in np.array_split(order.numpy(), max(1, len(x) // batch_size)):
        yield x[torch.from_numpy(part).to(x.device)]


CHUNK = 1024
"""Samples of the test data that go through the model at a time."""


@torch.no_grad()
def accuracy_and_loss(
    model: nn.Module, state: dict[str, Tensor], data: SiloData, loss: Loss, device: torch.device
) -> tuple[float, float]:
    """Return accuracy in percent and mean loss, weighted as ``data`` says (READING 13).

    ``state`` holds the parameters and buffers to use.
    """
    right, losses = [], []
    with evaluating(model):
        for x, y in zip(data.x.split(CHUNK), data.y.split(CHUNK), strict=True):
            x, y = x.to(device), y.to(device)
            outputs = call(model, state, x)
            right.append((outputs.argmax(dim=-1) == y).cpu())
            losses.append(loss(outputs, y).cpu())
    return 100.0 * data.mean(torch.cat(right)), data.mean(torch.cat(losses))
