"""pFedMe: personal models by Moreau envelopes.

C. T. Dinh, N. H. Tran, T. D. Nguyen, Personalized Federated Learning with Moreau Envelopes,
NeurIPS 2020, Algorithm 1, with one mini-batch in each of the R local rounds of a period::

    w_i ← w, θ_i ← w                                                when a period begins
    R times:  K times: θ_i ← θ_i − η_p (g_i(θ_i) + λ (θ_i − w_i))   all on one mini-batch
              w_i ← w_i − η λ (w_i − θ_i)
    w ← (1 − β) w + β Σ p_i w_i                                     when it ends

The target uses θ_0. The authors' optimiser returns references that w_i later overwrites, so their
"personalised" accuracy is that of w_i. Here θ is a separate matrix. Their hidden weight decay
mu = .001 in the inner steps is neither in the paper nor here. As in their code, θ is kept from one
local round to the next (theirs: R = 20). R is ``update-every``. With R = 1 and clipped gradients, θ
hardly leaves w, and the method is nearly FedAvg.

The inner steps are plain. λ (w_i − θ_i) is the gradient of the envelope at w_i. So w_i takes a step
of the run's optimiser, with its η and momentum, like every model of the comparison.

Each inner step is a question. A real client takes these steps at home, so the traffic counted is w
down and w_i up. A silo that does not answer a period's last question has no part in the mean.
"""

from dataclasses import dataclass

from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import key
from spcacw_flwr.methods.base import Weights, weighted_sum
from spcacw_flwr.silos.protocol import Federation, Request, Round

from .personal import MeetingModels, PeriodKeys


@dataclass(frozen=True)
class PFedMeKeys(PeriodKeys):
    """Hyper-parameters of pFedMe; defaults from main.py of CharlieDinh/pFedMe caf24b1."""

    lambda_: float = key(15.0, "λ, how strongly θ is tied to w_i (authors' lamda = 15).", least=0)
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


class PFedMe(MeetingModels):
    """θ_0 ≈ argmin f_0(θ) + (λ/2)‖θ − w_0‖²; the log has the weights of the silos in w."""

    name = "pfedme"
    Keys = PFedMeKeys

    def __init__(self, config: Config, federation: Federation, parameters: Tensor) -> None:
        super().__init__(config, federation, parameters)
        self.theta = self.models.clone()

    def initial_weights(self) -> Weights:
        """Return the silos' shares of the samples, their weights in w."""
        return self.federation.shares

    @property
    def personal(self) -> Tensor:
        """(d,) θ_0."""
        return self.theta[self.target]

    def round(self, round_: int) -> Round:
        """Take the inner steps of all silos in parallel, then step w_i; end a period by a mean."""
        keys, (down, up) = self.own, self.traffic(round_)
        if self.meets(round_ - 1):  # a period begins: all models start at w
            self.models = self.parameters.repeat(self.federation.num_silos, 1)
            self.theta = self.models.clone()
        silos = self.participants(round_)
        for step in range(1, keys.inner_steps + 1):
            traffic = down * (step == 1), up * (step == keys.inner_steps)
            rows = list(silos)
            replies = yield Request(round_, silos, self.theta[rows], traffic=traffic)
            silos, rows = replies.silos, list(replies.silos)
            pulls = keys.lambda_ * (self.theta[rows] - self.models[rows])
            self.theta[rows] -= keys.personal_learning_rate * (replies.gradients + pulls)
        for silo in silos:
            pull = keys.lambda_ * (self.models[silo] - self.theta[silo])
            self.optimiser.step(self.models[silo], pull, silo)
        if self.meets(round_):
            mean = weighted_sum(self.shares(silos), self.models[list(silos)])
            self.parameters.lerp_(mean, keys.beta)
