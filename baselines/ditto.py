"""Ditto: a personal model of the target, tied to the global one.

T. Li, S. Hu, A. Beirami, V. Smith, Ditto: Fair and Robust Federated Learning Through
Personalization, ICML 2021, Algorithm 1, with one gradient a round::

    v ← Opt_v(v, g_0(v) + λ (v − w_t))         w_t as received, before it moves
    w_{t+1} ← Opt_w(w_t, Σ p_i g_i(w_t))

The gradient of (λ/2)‖v − w‖² is λ (v − w), without a 2. The comparison leaves out Ditto's robust
aggregators. With λ = 0 the personal model equals the model of Local at every step.
"""

from dataclasses import dataclass

from spcacw_flwr.config.declare import key
from spcacw_flwr.silos.protocol import Request, Round

from .families import BesideGlobal, GlobalKeys


@dataclass(frozen=True)
class DittoKeys(GlobalKeys):
    """Hyper-parameters of Ditto."""

    lambda_: float = key(
        1.0,
        "λ, how strongly the personal model is tied to the global one (Algorithm 1); 1 in the "
        "authors' scripts, 0 in their main.py (litian96/ditto 26d9b29); their grid is .1, 1, 2.",
        least=0,
    )


class Ditto(BesideGlobal):
    """v_0 near w; the target uses v_0. The log has the weights of the silos in w."""

    name = "ditto"
    Keys = DittoKeys

    def round(self, round_: int) -> Round:
        """Step v, pulled towards w as received; then all silos move w."""
        replies = yield Request(round_, (self.target,), self.v)
        gradient = replies.gradients[0] + self.own.lambda_ * (self.v - self.parameters)
        self.optimiser.step(self.v, gradient, "personal")
        yield from super().round(round_)
