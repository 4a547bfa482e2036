"""Opt: SGD with momentum and weight decay (paper, appendix Network Architectures).

Torch's own step, as a function of vectors: its class would import a compiler, for a second. One
object serves several models, such as a personal model beside a global one, each with a momentum
buffer of its own.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from spcacw_flwr.config.keys import TrainingKeys


class Optimiser:
    """Takes steps on flat models, in place.

    Attributes
    ----------
    momentum : dict
        The momentum buffer (d,) of each model that has taken a step, by its name.
    """

    def __init__(self, keys: TrainingKeys) -> None:
        self.keys = keys
        self.momentum: dict[Hashable, Tensor | None] = {}

    def step(self, point: Tensor, gradient: Tensor, name: Hashable = None) -> None:
        """Point ← Opt(point, gradient); both (d,), and the gradient may be overwritten.

        With ``clip = "aggregate"`` it is here that the gradient is clipped.
        """
        keys = self.keys
        if keys.clip == "aggregate" and keys.max_norm > 0:
            norm = float(torch.linalg.vector_norm(gradient))
            gradient.mul_(min(1.0, keys.max_norm / norm) if norm > 0 else 1.0)
        buffer = [self.momentum.get(name)]
        sgd(
            [point], [gradient], buffer, foreach=False, lr=keys.eta, momentum=keys.momentum,
            weight_decay=keys.weight_decay, dampening=0.0, nesterov=False, maximize=False,
        )  # fmt: skip
        self.momentum[name] = buffer[0]
