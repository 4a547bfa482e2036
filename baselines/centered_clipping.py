"""Centred clipping: a running aggregate that no silo can move by more than τ/M in a round.

S. P. Karimireddy, L. He and M. Jaggi, Learning from History for Byzantine Robust Optimization,
ICML 2021. The centre v is the previous round's aggregate, at first 0::

    L times:  v ← v + (1/M) Σ_i (g^{(i)} − v) min(1, τ/‖g^{(i)} − v‖)
    w_t ← w_{t−1} − η Opt(v)

The authors' workers send their momenta, with τ = 100 and L = 1 in their scripts. Here silos keep no
state, so they send gradients, and only the target's optimiser has momentum. Gradients of norm at
most 1 (``max-norm``) lie within 2 of each other, so such a τ would never clip. The default here is
about half the distance between gradients and their mean on the MNIST settings (.6 to 1).

v is linear in all gradients so far. With λ_i = min(1, τ/‖g^{(i)} − v‖), the silos' weights in v
follow c ← (1 − Σλ/M) c + λ/M from c = 0. The log has as α these c, scaled to sum to 1.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import key
from spcacw_flwr.methods.base import Method, Weights, weighted_sum
from spcacw_flwr.silos.protocol import Federation, Request, Round

from .families import UNIFORM, average_weights, distances


@dataclass(frozen=True)
class CenteredClippingKeys:
    """Hyper-parameters of centred clipping."""

    tau: float = key(0.5, "τ, how far a gradient can pull; chosen here (authors' 100).", above=0)
    inner_rounds: int = key(1, "L, clipping iterations in a round (authors' n_iter).", least=1)


class CenteredClipping(Method):
    """Centred clipping around the last aggregate (a control that treats all silos alike)."""

    name = "centered-clipping"
    Keys = CenteredClippingKeys

    def __init__(self, config: Config, federation: Federation, parameters: Tensor) -> None:
        super().__init__(config, federation, parameters)
        self.centre = torch.zeros_like(parameters)
        """(d,) v, the last aggregate."""
        self.shares = np.zeros(federation.num_silos)
        """(M,) c, the silos' weights in v."""

    def initial_weights(self) -> Weights:
        """Return uniform weights, as in a first round without clipping."""
        return average_weights(self.federation, UNIFORM)

    def round(self, round_: int) -> Round:
        """Ask every silo (with chance p), pull v towards their gradients, and step along it."""
        replies = yield Request(round_, self.sampled(round_), self.parameters)
        silos, tau = list(replies.silos), self.own.tau
        for _ in range(self.own.inner_rounds):
            away = distances(self.centre[None], replies.gradients)[0]
            pulls = tau / np.maximum(away, tau) / len(silos)  # λ/k; 1/k at distance 0
            self.centre *= 1 - pulls.sum()
            self.centre += weighted_sum(pulls, replies.gradients)
            self.shares *= 1 - pulls.sum()
            self.shares[silos] += pulls
        # A copy, because the optimiser may clip its argument in place.
        self.optimiser.step(self.parameters, self.centre.clone())
        if self.ends_epoch(round_):
            self.set_weights(self.shares / self.shares.sum(), round_)
