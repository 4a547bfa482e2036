"""pFedMe: personal models by Moreau envelopes.

C. T. Dinh, N. H. Tran, T. D. Nguyen, Personalized Federated Learning with Moreau Envelopes,
NeurIPS 2020, Algorithm 1, with one local round (R = 1) of one mini-batch::

    θ_i ← w;  K times: θ_i ← θ_i − η_p (g_i(θ_i) + λ (θ_i − w))     all on one mini-batch
    w_i = w − η λ (w − θ_i)
    w ← (1 − β) w + β Σ p_i w_i = w − η β λ Σ p_i (w − θ_i)

The target uses θ_0. The authors' optimiser hands out references that w_i later overwrites, so that
their "personalised" accuracy is that of w_i: here θ_0 is a tensor of its own. Their hidden weight
decay mu = .001 in the inner steps is not in the paper and not here.

The inner steps are plain. λ (w − θ_i) is the gradient of the envelope at w, so w takes a step of
the run's optimiser, with its η and momentum, as every global model of the comparison does; without
momentum that is the equation above. θ starts at w in every round: the authors' warm start is
between local rounds, of which there is one.

Silos keep no state, so each inner step is a question; a real client would take them at home, and
the traffic counted is w down and w_i up.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import key
from spcacw_flwr.methods.base import Method, Weights, weighted_sum
from spcacw_flwr.silos.protocol import Federation, Request, Round


@dataclass(frozen=True)
class PFedMeKeys:
    """Hyper-parameters of pFedMe; defaults from main.py of CharlieDinh/pFedMe caf24b1."""

    lambda_: float = key(15.0, "λ, how strongly θ is tied to w (authors' lamda = 15).", least=0)
    inner_steps: int = key(
        5, "K, gradient steps on θ in a round (Algorithm 1; authors' K = 5).", least=1
    )
    personal_learning_rate: float = key(
        0.09, "η_p, step size of θ (authors' personal_learning_rate = .09).", above=0
    )
    beta: float = key(
        1.0, "β, step of the server towards the mean of w_i (Algorithm 1; authors' beta = 1).",
        least=0,
    )  # fmt: skip


class PFedMe(Method):
    """θ_0 ≈ argmin f_0(θ) + (λ/2)‖θ − w‖²; the weights logged are those of the silos in w."""

    name = "pfedme"
    Keys = PFedMeKeys

    def __init__(self, config: Config, federation: Federation, parameters: Tensor) -> None:
        super().__init__(config, federation, parameters)
        self.theta = self.parameters.clone()

    def initial_weights(self) -> Weights:
        """Return the silos' shares of the samples, their weights in w."""
        return self.federation.shares

    @property
    def personal(self) -> Tensor:
        """(d,) θ_0"""
        return self.theta

    def round(self, round_: int) -> Round:
        """Take the inner steps of all silos side by side; then w moves towards their θ."""
        keys, w, dimension = self.own, self.parameters, len(self.parameters)
        silos = self.sampled(round_)
        theta = w.repeat(len(silos), 1)
        for step in range(1, keys.inner_steps + 1):
            traffic = dimension * (step == 1), dimension * (step == keys.inner_steps)
            replies = yield Request(round_, silos, theta, traffic=traffic)
            theta = theta[[silos.index(silo) for silo in replies.silos]]
            silos = replies.silos
            theta -= keys.personal_learning_rate * (replies.gradients + keys.lambda_ * (theta - w))
        self.theta = theta[silos.index(self.target)].clone()
        shares = self.federation.shares[list(silos)]
        mean = weighted_sum(shares / shares.sum(), theta)
        self.optimiser.step(w, keys.beta * keys.lambda_ * (w - mean))
