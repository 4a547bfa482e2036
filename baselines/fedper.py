"""FedPer: a shared body, and a head of each silo's own that is trained with it.

M. G. Arivazhagan, V. Aggarwal, A. K. Singh and S. Choudhary, Federated Learning with
Personalization Layers, arXiv:1912.00818. Round t, at each silo that takes part, on one mini-batch::

    h_i ← h_i − η Opt(∂_h f_i(φ, h_i)),    φ ← φ − η Opt(Σ n_i/n ∂_φ f_i(φ, h_i))

The published form makes epochs of both at home and averages the bodies; this is the one-gradient
form. In FedRep heads move first, and alone. A silo clips the whole gradient, of which head and body
are then taken. Without a head (``head-tensors = 0``) this is FedAvg.
"""

from __future__ import annotations

from torch import Tensor

from spcacw_flwr.methods.base import Weights
from spcacw_flwr.silos.protocol import Request, Round

from .families import SIZE, HeadKeys, SplitNetwork, average_weights


class FedPer(SplitNetwork):
    """Head and body step together; the body on the averaged gradient."""

    name = "fedper"
    Keys = HeadKeys

    def initial_weights(self) -> Weights:
        """Return n_i / Σ n, the weights of the silos in the body."""
        return average_weights(self.federation, SIZE)

    @property
    def body(self) -> Tensor:
        """(d_φ,) the shared body, a view."""
        return self.parameters[: self.body_size]

    @property
    def personal(self) -> Tensor:
        """[φ; h_0]."""
        return self.joined(self.body, [self.target])[0]

    def round(self, round_: int) -> Round:
        """Ask all at [φ; h_i]; step the heads of those who answer, and the body."""
        silos, start = self.sampled(round_), self.body_size
        points = self.joined(self.body, silos)
        replies = yield Request(round_, silos, points, traffic=(start, start))
        mean = self.weighted(replies)[:start]
        for silo, gradient in zip(replies.silos, replies.gradients[:, start:], strict=True):
            if len(gradient):
                self.optimiser.step(self.heads[silo], gradient.clone(), ("head", silo))
        self.optimiser.step(self.body, mean, "body")
