"""Weighted gradient averaging (peers have equal weights), and bias correction (removes their bias).

E. M. Chayti, S. P. Karimireddy, S. U. Stich, N. Flammarion and M. Jaggi, Linear Speedup in
Personalized Collaborative Learning, arXiv:2111.05968 (TMLR 2022). With ḡ the mean of the peers'
gradients at the target's model::

    WGA:  d = (1 − a) g^{(0)} + a ḡ
    BC:   d = (1 − a) g^{(0)} + a (ḡ − c_{t−1}),   c_t = (1 − β) c_{t−1} + β (ḡ − g^{(0)})
    w_t ← w_{t−1} − η Opt(d)

The target's gradient is noisy, and the peers' mean is biased. c starts at 0 and is a running mean
of that bias over earlier rounds, so it never holds the noise of the current round. BC's fixed
points are the target's own; WGA's are those of (1 − a) f_0 + a f̄. The paper's a and β depend on the
unknown σ and δ; here both are keys. With β = 0 BC is WGA, with a = 0 both are Local.

Under partial participation a peer that answers counts 1/p times, in c too. The log has the weights
of the gradients in the step; c belongs to no silo.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import key
from spcacw_flwr.methods.base import WeightedGradients, Weights, weighted_sum
from spcacw_flwr.silos.protocol import Federation, Replies, Request


@dataclass(frozen=True)
class AveragingKeys:
    """The hyper-parameter of both methods."""

    a: float = key(
        0.5,
        "a, the weight of the peers' mean; (M − 1)/M is the mean of all silos.",
        least=0,
        most=1,
    )


@dataclass(frozen=True)
class BiasCorrectionKeys(AveragingKeys):
    """Hyper-parameters of bias correction."""

    beta: float = key(
        0.01, "β, rate of the running mean of the bias; 0: no correction.", least=0, most=1
    )


class WeightedGradientAveraging(WeightedGradients):
    """A fixed weighted sum of the target's gradient and the mean of its peers' gradients."""

    name = "wga"
    Keys = AveragingKeys

    def initial_weights(self) -> Weights:
        """Return 1 − a for the target, and a/(M − 1) for each peer."""
        peers = self.federation.num_silos - 1
        weights = np.full(peers + 1, self.own.a / max(1, peers))
        weights[self.target] = 1 - self.own.a if peers else 1.0
        return weights


class BiasCorrection(WeightedGradientAveraging):
    """Weighted gradient averaging, corrected by a running mean of the peers' bias."""

    name = "bc"
    Keys = BiasCorrectionKeys

    def __init__(self, config: Config, federation: Federation, parameters: Tensor) -> None:
        super().__init__(config, federation, parameters)
        self.bias = torch.zeros_like(self.parameters)
        """(d,) c."""

    def step(self, replies: Replies) -> None:
        """Step along d."""
        gradient = self.weighted(replies) - self.own.a * self.bias
        self.optimiser.step(self.parameters, gradient)

    def learn(self, request: Request, replies: Replies) -> None:
        """Fold ḡ − g^{(0)} into c."""
        weights = self.factors(replies.silos) / max(1, self.federation.num_silos - 1)
        weights[replies.silos.index(self.target)] = -1.0
        if self.federation.num_silos > 1:
            self.bias.lerp_(weighted_sum(weights, replies.gradients), self.own.beta)
