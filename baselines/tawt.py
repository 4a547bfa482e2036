"""TAWT: weights that grow with the cosine between a silo's gradient and the target's.

S. Chen, K. Crammer, H. He, D. Roth and W. J. Su, Weighted Training for Cross-Task Learning, ICLR
2022 (arXiv:2105.14095), target-aware weighted training; one model for all tasks, and no heads. α
is warm, from 1/M::

    w_t ← w_{t−1} − η Opt(Σ α^{(i)} g^{(i)})
    α^{(i)} ← α^{(i)} exp(ρ cos(g^{(i)}, g')) / Z,    g' on a fresh batch of f_0, at w_{t−1}

The paper's mirror step has −⟨∇f_0, H⁻¹∇f_i⟩ for the gradient of α; its experiments and the authors'
code (CogComp/TAWT a2a537e) put the cosine there. That code takes both gradients of the target from
one batch, so that its own cosine is 1 while its peers' hold the noise of two batches: the target
would gain on a silo of the same data in every round. With a fresh batch g' (draw 1) all are alike.

The code moves α once in an epoch; here it moves in every round, and ρ is smaller. Nothing holds α
back: with time all weight goes to the silo whose cosine is largest on average. Under partial
participation an exponent counts 1/p times.
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
        """Ask the target for a second gradient, then all silos as ever."""
        answer = yield Request(round_, (self.target,), self.parameters, draw=1)
        self.fresh = answer.gradients[0].clone()
        yield from super().round(round_)

    def learn(self, request: Request, replies: Replies) -> None:
        """Move α by the cosines cos(g^{(i)}, g'), 0 where one of the two is 0."""
        lengths = (replies.gradients.norm(dim=1) * self.fresh.norm()).double().cpu().numpy()
        cosines = products(replies.gradients, self.fresh) / np.where(lengths > 0, lengths, np.inf)
        found = self.factors(replies.silos) * cosines
        exponents = spread(found, replies.silos, self.federation)
        self.set_weights(mirror_step(self.alpha, exponents, self.own.rho), request.round)
