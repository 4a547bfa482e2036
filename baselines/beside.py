"""What methods share in which the target keeps a model beside the global one: Ditto, APFL.

All silos train one w as in FedAvg, and the target trains v_0 beside it, by a second gradient on
the same mini-batch. Nobody else's v_i is ever read, so no other needs to exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import key
from spcacw_flwr.methods.base import WeightedGradients, Weights
from spcacw_flwr.silos.protocol import Federation, Request

from .averages import AVERAGES, UNIFORM, average_weights


@dataclass(frozen=True)
class GlobalKeys:
    """The key of all methods that keep a personal model beside a global one."""

    weights: str = key(
        UNIFORM,
        "Weights of the silos in the global model: uniform, as in the authors' code (Ditto: "
        "litian96/ditto 26d9b29, APFL: MLOPTPSU/FedTorch ab8068d), or size, n_i / Σ n.",
        choices=AVERAGES,
    )


class BesideGlobal(WeightedGradients):
    """A global model w = ``parameters`` that all silos train, and the target's own, ``v``."""

    Keys: ClassVar[type | None] = GlobalKeys

    def __init__(self, config: Config, federation: Federation, parameters: Tensor) -> None:
        super().__init__(config, federation, parameters)
        self.v = self.parameters.clone()

    def initial_weights(self) -> Weights:
        """Return the silos' weights in the global model, which never change."""
        return average_weights(self.federation, self.own.weights)

    @property
    def personal(self) -> Tensor:
        """(d,) the target's own model."""
        return self.v

    def at_target(self, round_: int, model: Tensor) -> Request:
        """Return the question for the target's gradient, on the mini-batch it uses for w too."""
        return Request(round_, (self.target,), model)
