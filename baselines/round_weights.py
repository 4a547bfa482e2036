"""Weights that are found anew in every round, from what the silos sent in that round.

What Federated Clustering, FedFomo and the robust aggregators share: the target needs no weights
from the round before, so there is nothing to learn and nothing to keep but a note for the log. A
single round's weights are noisy; what is logged at the end of an epoch is their mean over its
rounds, with 0 where a silo was not heard.

Under partial participation these rules see the silos that answered and nothing else: their k stands
for M. The factor 1/p of fixed weights has no place here, since the weights of a round already sum
to 1 over those who answered.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.methods.base import Method, Weights
from spcacw_flwr.silos.protocol import Federation, Request, Round


class RoundWeights(Method):
    """Notes the weights of each round, and logs their mean over the epoch."""

    def __init__(self, config: Config, federation: Federation, parameters: Tensor) -> None:
        super().__init__(config, federation, parameters)
        self._noted: list[Weights] = []

    def initial_weights(self) -> Weights:
        """Return e_0: before anything is heard there is the target alone."""
        return np.eye(self.federation.num_silos)[self.target]

    def note(self, round_: int, silos: tuple[int, ...], weights: Weights) -> None:
        """Note the weights (k,) that ``silos`` had in round t."""
        whole = np.zeros(self.federation.num_silos)
        whole[list(silos)] = weights
        self._noted.append(whole)
        if self.ends_epoch(round_):
            self.set_weights(np.mean(self._noted, axis=0), round_)
            self._noted.clear()


class GradientRule(RoundWeights):
    """One gradient of every silo at the shared w_t, one aggregate of them, one step."""

    def aggregate(self, gradients: Tensor, own: int) -> tuple[Weights, Tensor]:
        """Return the weights (k,) of the gradients' rows, and their aggregate, a new (d,) tensor.

        ``own`` is the target's row.
        """
        raise NotImplementedError

    def round(self, round_: int) -> Round:
        """Ask every silo (with chance p) at w_{t−1}, and step along the aggregate."""
        replies = yield Request(round_, self.sampled(round_), self.parameters)
        own = replies.silos.index(self.target)
        weights, gradient = self.aggregate(replies.gradients, own)
        self.optimiser.step(self.parameters, gradient)
        self.note(round_, replies.silos, weights)
