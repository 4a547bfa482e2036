"""FedPer: a shared body, and for each silo a head of its own, trained together with the body.

M. G. Arivazhagan, V. Aggarwal, A. K. Singh and S. Choudhary, Federated Learning with
Personalization Layers, arXiv:1912.00818. Round t, at each silo that takes part, on one mini-batch::

    h_i ← h_i − η Opt(∂_h f_i(φ, h_i)),    φ ← φ − η Opt(Σ n_i/n ∂_φ f_i(φ, h_i))

The published form trains both for epochs at home and averages the bodies. This is the one-gradient
form. FedRep moves heads first, alone. Without a head (``head-tensors = 0``) this is FedAvg.
"""

from spcacw_flwr.silos.protocol import Request, Round

from .families import HeadKeys, SplitNetwork


class FedPer(SplitNetwork):
    """Head and body step together; the body steps on the averaged gradient."""

    name = "fedper"
    Keys = HeadKeys

    def round(self, round_: int) -> Round:
        """Ask all silos at [φ; h_i]; step the heads of the silos that answer, and the body."""
        silos, start = self.sampled(round_), self.body_size
        points = self.joined(self.body, silos)
        replies = yield Request(round_, silos, points, traffic=(start, start))
        self.step_heads(replies)
        self.optimiser.step(self.body, self.weighted(replies)[:start], "body")
