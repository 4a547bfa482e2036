"""The workload that every library is given, and the clock of its rounds.

M silos hold 320 random images of 28 × 28 with random labels each; the model is an MLP 784-64-10
(d = 50,890, float32). In a round every silo computes the gradient of one mini-batch of 32 at the
shared model, and the server takes one SGD step along their mean. A silo's batches are the ten
slices of its data, in turn: views, so that drawing a batch costs a peer nothing. All peers start
from one model, so after as many rounds they end at one model: ``norm`` in the line shows it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import cache

import torch
from torch import Tensor, nn

BATCH = 32
LEARNING_RATE = 0.05
THREADS = 2
"""PyTorch's threads, where rounds run in this process."""
WARM_UP = 3
"""Times that are not reported: the first rounds load, allocate and start processes."""


@cache
def batches(silo: int) -> list[tuple[Tensor, Tensor]]:
    """Return the silo's ten mini-batches."""
    rng = torch.Generator().manual_seed(silo)
    x = torch.rand(320, 1, 28, 28, generator=rng)
    y = torch.randint(10, (320,), generator=rng)
    return list(zip(x.split(BATCH), y.split(BATCH), strict=True))


def make_model() -> nn.Sequential:
    """Return the MLP at its initial parameters, which are always the same."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def norm(parameters: Iterable[Tensor]) -> float:
    """Return ‖w‖."""
    return float(torch.cat([p.detach().flatten() for p in parameters]).norm())


class Clock:
    """Notes when rounds end."""

    def __init__(self, rounds_per_tick: int) -> None:
        self.rounds_per_tick = rounds_per_tick
        self.ends: list[float] = []

    def tick(self) -> None:
        """Note that a round (or ``rounds_per_tick`` of them) has ended."""
        self.ends.append(time.perf_counter())

    @property
    def milliseconds(self) -> list[float]:
        """ms per round after the warm-up, each from the end of the round before to its own."""
        pairs = zip(self.ends[WARM_UP - 1 :], self.ends[WARM_UP:], strict=False)
        return [round(1000 * (end - start) / self.rounds_per_tick, 3) for start, end in pairs]
