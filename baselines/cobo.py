"""CoBo: silos attract each other if their gradients agree at the midpoint of their models.

D. Hashemi, L. He and M. Jaggi, CoBo: Collaborative Learning via Bilevel Optimization, NeurIPS 2024
(arXiv:2409.05539). Start at w_ij = 1. With g_i(x) a gradient of f_i and z_ij = (x_i + x_j)/2::

    w_ij ← clip(w_ij + γ ⟨g_i(z_ij), g_j(z_ij)⟩, 0, 1)          for some pairs
    x_i ← Opt_i(x_i, g_i(x_i) + ρ Σ_j w_ij (x_i − x_j))          for all silos, with the new w

The paper draws each pair with chance 1/n in a round (the authors' code, epfml/CoBo fd75b6a, with
chance 2/n, and less after 800 rounds). Here round t has the pairs with i + j ≡ t (mod M). Each pair
comes exactly once in M rounds, and no silo is in two pairs of a round. So a round costs a silo at
most two gradients, each on its own mini-batch (draw 1 at z).

Each gradient is clipped to ``max-norm``. With max-norm 1, products are at most 1, and w_ij moves by
at most γ in M rounds. The authors' γ = .01 is for gradients that are not clipped.
With all w = 1 the pull's largest curvature is ρM, so ρ must fall as the number of silos grows.

The log has weight 1 for the target and w_0j for its peers, scaled to sum to 1.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError, key
from spcacw_flwr.methods.base import weighted_sum
from spcacw_flwr.silos.protocol import Federation, Request, Round

from .personal import OwnModels


@dataclass(frozen=True)
class CoBoKeys:
    """Hyper-parameters of CoBo."""

    rho: float = key(0.1, "ρ, how strongly two silos with w_ij = 1 attract each other.", least=0)
    gamma: float = key(0.5, "γ, step size of w_ij (authors' code: .01, unclipped).", least=0)


class CoBo(OwnModels):
    """Own models, tied in pairs whose gradients agree at the midpoint."""

    name = "cobo"
    Keys = CoBoKeys

    def __init__(self, config: Config, federation: Federation, parameters: Tensor) -> None:
        super().__init__(config, federation, parameters)
        count, keys = federation.num_silos, config.training
        self.pairs = np.ones((count, count)) - np.eye(count)
        """(M, M), w_ij, symmetric; 0 on the diagonal."""
        reach, most = keys.eta * self.own.rho * count, 2 * (1 + keys.momentum)
        if reach >= most:
            raise SpcacwError(
                f"cobo.rho = {self.own.rho:g} is too much: η ρ M = {reach:.3g} must be below "
                f"2 (1 + momentum) = {most:g}, or the models of {count} silos fly apart; lower "
                "cobo.rho or eta."
            )

    def partners(self, round_: int, silos: tuple[int, ...]) -> dict[int, int]:
        """Return the partner of each of ``silos`` in round t, if that partner is in ``silos``."""
        count = self.federation.num_silos
        found = {i: (round_ - i) % count for i in silos}
        return {i: j for i, j in found.items() if j != i and j in found}

    def pull(self, silos: tuple[int, ...]) -> Tensor:
        """Return ρ Σ_j w_ij (x_i − x_j) for ``silos``, (k, d)."""
        weights = self.pairs[list(silos)]
        laplacian = np.diag(self.pairs.sum(axis=1))[list(silos)] - weights
        return self.own.rho * weighted_sum(laplacian, self.models)

    def select(self, round_: int, silos: tuple[int, ...]) -> Round:
        """Ask the round's pairs for their gradients at z_ij, and move their w_ij."""
        partners = self.partners(round_, silos)
        if not partners:
            return
        points = (self.models[list(partners)] + self.models[list(partners.values())]) / 2
        replies = yield Request(round_, tuple(partners), points, draw=1)
        rows = dict(zip(replies.silos, replies.gradients.double(), strict=True))
        for i, j in partners.items():
            if i < j and i in rows and j in rows:
                moved = self.pairs[i, j] + self.own.gamma * float(rows[i] @ rows[j])
                self.pairs[i, j] = self.pairs[j, i] = min(1.0, max(0.0, moved))

    def round(self, round_: int) -> Round:
        """Ask silos at their own models, and pairs at their midpoints; move w, then the models."""
        silos = self.sampled(round_)
        replies = yield Request(round_, silos, self.models[list(silos)])
        heard, gradients = replies.silos, replies.gradients.clone()
        yield from self.select(round_, heard)
        self.step(heard, gradients + self.pull(heard))
        if self.ends_epoch(round_):
            weights = self.pairs[self.target].copy()
            weights[self.target] = 1.0
            self.set_weights(weights / weights.sum(), round_)
