"""FedRep: a shared representation, and for each silo a head of its own that is fitted first.

L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai, Exploiting Shared Representations for
Personalized Federated Learning, ICML 2021. Round t, at each silo that takes part::

    τ times:  h_i ← h_i − η Opt(∂_h f_i(φ, h_i))          body fixed, the head stays at home
    g_i = ∂_φ f_i(φ, h_i)                                 head fixed, at the new head
    φ ← φ − η Opt(Σ α_i g_i)

The authors average bodies after one pass over the data. With one step for the body, that is a step
on the averaged gradient. Every step has its own mini-batch (the authors shuffle each pass): draws
1 … τ for the head, draw 0 for the body. The authors fit all heads once more before the last test;
we do not. Without a head (``head-tensors = 0``) this is FedAvg.
"""

from dataclasses import dataclass

from spcacw_flwr.config.declare import key
from spcacw_flwr.silos.protocol import Request, Round

from .families import AVERAGES, SIZE, HeadKeys, SplitNetwork


@dataclass(frozen=True)
class FedRepKeys(HeadKeys):
    """Hyper-parameters of FedRep; "authors" is lgcollins/FedRep, commit d82e629."""

    head_steps: int = key(
        1,
        "τ, steps of the head before each step of the body; the authors make 10 passes for the "
        "head and 1 for the body (local_ep 11, local_rep_ep 1).",
        least=1,
    )
    weights: str = key(
        SIZE,
        "α_i of the bodies: size (n_i / Σ n, the authors' code), or uniform (1/M, the paper).",
        choices=AVERAGES,
    )


class FedRep(SplitNetwork):
    """τ head steps at home, then one step of the shared body on the averaged gradient."""

    name = "fedrep"
    Keys = FedRepKeys

    def round(self, round_: int) -> Round:
        """Step the heads of the silos that take part, then the body on gradients at these heads."""
        silos, start = self.sampled(round_), self.body_size
        for draw in range(1, self.own.head_steps + 1) if self.heads.shape[1] else ():
            points = self.joined(self.body, silos)
            replies = yield Request(round_, silos, points, draw=draw, traffic=(0, 0))
            silos = replies.silos
            self.step_heads(replies)
        points = self.joined(self.body, silos) if self.heads.shape[1] else self.body
        replies = yield Request(round_, silos, points, traffic=(start, start))
        self.optimiser.step(self.body, self.weighted(replies)[:start], "body")
