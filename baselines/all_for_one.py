"""All-for-One: the mean of the silos whose averaged gradients are near the target's own.

M. Even, L. Massoulié and K. Scaman, On Sample Optimality in Personalized Collaborative and
Federated Learning, NeurIPS 2022 (arXiv:2201.13097), takes the distances between silos as known.
C. Philippenko, B. Le Bars, K. Scaman and L. Massoulié, Adaptive Collaboration for Online
Personalized Distributed Learning with Heterogeneous Clients, arXiv:2507.06844, measures them from
gradients. This file has the second paper's binary form. m_i averages the gradients of silo i::

    N = {i : ‖m_i − m_0‖² ≤ c ‖m_0‖²},   α^{(i)} = 1/|N| on N
    w_t ← w_{t−1} − η Opt(Σ α^{(i)} g^{(i)})

The criterion is for true gradients. Mini-batches of the same data differ by noise as large as the
gradient. So m_i is a running mean of the gradients of silo i: plain over its first K rounds
(``memory``), then exponential with rate 1/K. It lags behind w as momentum does.

‖m_0‖ falls to 0 as w fits the target's training samples. Peers have other samples, so N then
shrinks to the target, and the method ends as Local. c decides when.

The authors' code weights N by the silos' sizes. Our batches have one size, and α is uniform as for
equal variances. That code also compares the length ‖m_i − m_0‖ to the squared length ‖m_0‖². With
squares on both sides the rule does not depend on the unit of the loss.
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
        """Ask every silo, with chance p: a silo that is far now may be near later."""
        return Request(round_, self.sampled(round_), self.parameters)

    def observe(self, request: Request, replies: Replies) -> None:
        """Average the gradients, and choose the silos of this round's step."""
        for silo, gradient in zip(replies.silos, replies.gradients, strict=True):
            self.heard[silo] += 1
            self.means[silo].lerp_(gradient, 1 / min(self.heard[silo], self.memory))
        own = self.means[self.target]
        squared = distances(own[None], self.means)[0] ** 2
        near = squared <= self.own.c * float(own.double().square().sum())
        near &= self.heard > 0
        self.set_weights(near / near.sum(), request.round)
