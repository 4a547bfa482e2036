"""How good a model is for a silo: accuracy and loss on its test data."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spcacw_flwr.silos.losses import Loss
from spcacw_flwr.silos.setting import SiloData
from spcacw_flwr.silos.stateless import call
from spcacw_flwr.silos.statistics import evaluating

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
