"""All-for-One: the mean of the silos whose averaged gradients are near the target's own.

M. Even, L. Massoulié and K. Scaman, On Sample Optimality in Personalized Collaborative and
Federated Learning, NeurIPS 2022 (arXiv:2201.13097), knows how far the silos are apart.
C. Philippenko, B. Le Bars, K. Scaman and L. Massoulié, Adaptive Collaboration for Online
Personalized Distributed Learning with Heterogeneous Clients, arXiv:2507.06844, sees it in the
gradients. This is the latter's binary form, with m_i the averages of the silos' gradients::

    N = {i : ‖m_i − m_0‖² ≤ c ‖m_0‖²},   α^{(i)} = 1/|N| on N
    w_t ← w_{t−1} − η Opt(Σ α^{(i)} g^{(i)})

The criterion is one on true gradients: mini-batches of the same data differ by noise as large as
the gradient. So m_i is a running mean of what silo i sent, plain over its first K rounds and
exponential with rate 1/K after them (``memory``); it lags behind w as momentum does.

‖m_0‖ falls to 0 as w fits the target's training samples, which are not its peers': N then shrinks
to the target, and the method ends as Local. c decides when.

The authors' code weighs N by the silos' sizes; our batches are of one size, and α is uniform as for
equal variances. That code also compares ‖m_i − m_0‖ to ‖m_0‖², a length to a squared one; with
squares on both sides the rule does not depend on the loss's unit.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import key
from spcacw_flwr.methods.base import WeightedGradients
from spcacw_flwr.silos.protocol import Federation, Replies, Request

from .families import distances


@dataclass(frozen=True)
class AllForOneKeys:
    """Hyper-parameters of All-for-One."""

    c: float = key(
        1.5,
        "c, how far a silo's averaged gradient may be from the target's, as a share of ‖m_0‖², "
        "both squared; 0 is Local, 2 is where gradients of one length are at right angles.",
        least=0,
    )
    memory: int = key(
        0, "K, rounds over which gradients are averaged; 0 is one epoch of the target, 1 is no "
        "average.", least=0,
    )  # fmt: skip


class AllForOne(WeightedGradients):
    """All-for-One: uniform weights on silos with similar averaged gradients."""

    name = "all-for-one"
    Keys = AllForOneKeys

    def __init__(self, config: Config, federation: Federation, parameters: Tensor) -> None:
        super().__init__(config, federation, parameters)
        self.memory = self.own.memory or federation.rounds_per_epoch
        self.means = self.parameters.new_zeros(federation.num_silos, len(parameters))
        """(M, d), m_i in row i."""
        self.heard = np.zeros(federation.num_silos, dtype=int)

    def request(self, round_: int) -> Request:
        """Ask every silo, with chance p: who is far today may be near tomorrow."""
        return Request(round_, self.sampled(round_), self.parameters)

    def observe(self, request: Request, replies: Replies) -> None:
        """Average the gradients, and choose whom this round's step listens to."""
        for silo, gradient in zip(replies.silos, replies.gradients, strict=True):
            self.heard[silo] += 1
            self.means[silo].lerp_(gradient, 1 / min(self.heard[silo], self.memory))
        own = self.means[self.target]
        squared = distances(own[None], self.means)[0] ** 2
        near = squared <= self.own.c * float(own.double().square().sum())
        near &= self.heard > 0
        self.set_weights(near / near.sum(), request.round)
