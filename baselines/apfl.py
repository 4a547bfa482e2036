"""APFL: the target's model is a mixture of its own and the global one.

Y. Deng, M. M. Kamani, M. Mahdavi, Adaptive Personalized Federated Learning, arXiv:2003.13461,
Algorithm 1, with one gradient a round::

    v̄ = α v + (1 − α) w_t
    v ← Opt_v(v, α g_0(v̄))
    α ← Π_[0,1](α − η ⟨v − w_t, g_0(v̄)⟩)       if adaptive, from v and w_t before they move
    w_{t+1} ← Opt_w(w_t, Σ p_i g_i(w_t))

Parameters are mixed, as in the paper. The released code (MLOPTPSU/FedTorch ab8068d) mixes outputs
and adds .02 α to the gradient of α. The target uses v̄, which is never written back to v. α enters
the step of v once, by the chain rule. With α fixed at 1 this equals Local at every step.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import key
from spcacw_flwr.silos.protocol import Federation, Request, Round

from .families import BesideGlobal, GlobalKeys


@dataclass(frozen=True)
class APFLKeys(GlobalKeys):
    """Hyper-parameters of APFL."""

    alpha: float = key(
        0.5,
        "α, the share of the target's own model in v̄ (Algorithm 1); .5 is fed_personal_alpha of "
        "the authors' code (MLOPTPSU/FedTorch ab8068d).",
        least=0,
        most=1,
    )
    adaptive: bool = key(
        False,
        "Whether α is learned by projected gradient steps of size η; the paper's title, yet "
        "fed_adaptive_alpha is off in the authors' code (MLOPTPSU/FedTorch ab8068d).",
    )


class APFL(BesideGlobal):
    """v̄ = αv + (1 − α)w; the log has the weights of the silos in w."""

    name = "apfl"
    Keys = APFLKeys

    def __init__(self, config: Config, federation: Federation, parameters: Tensor) -> None:
        super().__init__(config, federation, parameters)
        self.mixing: float = self.own.alpha
        """α"""

    @property
    def personal(self) -> Tensor:
        """(d,) v̄, the mixture."""
        return self.mixing * self.v + (1 - self.mixing) * self.parameters

    def round(self, round_: int) -> Round:
        """Move v, and α if it is adaptive, by the gradient at v̄; then all silos move w."""
        replies = yield Request(round_, (self.target,), self.personal)
        gradient, share = replies.gradients[0], self.mixing
        if self.own.adaptive:
            slope = float(torch.dot(self.v - self.parameters, gradient))
            self.mixing = min(1.0, max(0.0, share - self.config.training.eta * slope))
        self.optimiser.step(self.v, share * gradient, "personal")
        yield from super().round(round_)

    def epoch_report(self) -> dict[str, float]:
        """Add the mixing coefficient α."""
        return super().epoch_report() | {"mixing": self.mixing}
