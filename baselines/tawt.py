"""TAWT: weights that grow with the cosine between a silo's gradient and the target's.

S. Chen, K. Crammer, H. He, D. Roth and W. J. Su, Weighted Training for Cross-Task Learning, ICLR
2022 (arXiv:2105.14095): target-aware weighted training. All tasks share one model without heads.
α starts at 1/M and is kept from round to round::

    w_t ← w_{t−1} − η Opt(Σ α^{(i)} g^{(i)})
    α^{(i)} ← α^{(i)} exp(ρ cos(g^{(i)}, g')) / Z,    g' on a fresh batch of f_0, at w_{t−1}

The paper's mirror step uses −⟨∇f_0, H⁻¹∇f_i⟩ as the gradient of α. Its experiments and the authors'
code (CogComp/TAWT a2a537e) use the cosine instead. That code takes both gradients of the target
from one batch. Then the target's cosine is 1, a peer's holds the noise of two batches, and in every
round the target gains on a peer with the same data. A fresh batch g' (draw 1) avoids that.

The code moves α once an epoch. Here α moves in every round, and ρ is smaller. Nothing holds α back:
in time all weight goes to the silo whose cosine is largest on average. Under partial participation
an exponent is multiplied by 1/p.
"""

from dataclasses import dataclass

import numpy as np

from spcacw_flwr.config.declare import key
from spcacw_flwr.silos.protocol import Replies, Request, Round

from .families import Averaged, spread
from .meritfed import mirror_step, products


@dataclass(frozen=True)
class TAWTKeys:
    """The hyper-parameter of TAWT."""

    rho: float = key(
        0.03,
        "ρ, step size of mirror descent on α in each round (authors' code: 1 an epoch).",
        least=0,
    )


class TAWT(Averaged):
    """Target-aware weighted training: mirror ascent on cosines with a fresh batch of the target."""

    name = "tawt"
    Keys = TAWTKeys

    def round(self, round_: int) -> Round:
        """Ask the target for a second gradient, then all silos as usual."""
        answer = yield Request(round_, (self.target,), self.parameters, draw=1)
        self.fresh = answer.gradients[0].clone()
        yield from super().round(round_)

    def learn(self, request: Request, replies: Replies) -> None:
        """Move α by cos(g^{(i)}, g'), which is 0 where one of the two gradients is 0."""
        lengths = (replies.gradients.norm(dim=1) * self.fresh.norm()).double().cpu().numpy()
        cosines = products(replies.gradients, self.fresh) / np.where(lengths > 0, lengths, np.inf)
        found = self.factors(replies.silos) * cosines
        exponents = spread(found, replies.silos, self.federation)
        self.set_weights(mirror_step(self.alpha, exponents, self.own.rho), request.round)
