"""HeurFedAMP: FedAMP with a fixed weight on the own model, and cosines instead of distances.

Y. Huang, L. Chu, Z. Zhou, L. Wang, J. Liu, J. Pei, Y. Zhang, Personalized Cross-Silo Federated
Learning on Non-IID Data, AAAI 2021, "Heuristic Improvement of FedAMP on Deep Neural Networks", with
one gradient a round in place of the prox::

    ξ_ij = (1 − ξ_ii) e^{σ cos(w_i, w_j)} / Σ_{h≠i} e^{σ cos(w_i, w_h)},    ξ_ii given
    u_i = Σ_j ξ_ij w_j
    w_i ← Opt_i(w_i, g_i(w_i) + λ (w_i − u_i))

λ stands for the paper's λ/α_k, because nothing else depends on α_k here. In the first round all
models are equal, so all peers have equal weights. With ξ_ii = 1 or λ = 0 this is Local.

Trap: models with one start w_0 have nearly the same direction while they are near w_0, and peers
then have nearly equal weights. MediaBrain-SJTU/pFedGraph, whose "FedAMP" is this method, compares
w_i − w_0 (``since-start``).
"""

from dataclasses import dataclass

import numpy as np
from torch.nn.functional import normalize

from spcacw_flwr.alpha import grams
from spcacw_flwr.config.declare import key
from spcacw_flwr.methods.base import Weights

from .personal import AttentiveModels


@dataclass(frozen=True)
class HeurFedAMPKeys:
    """Hyper-parameters of HeurFedAMP."""

    lambda_: float = key(
        1.0, "λ, how strongly w_i is drawn to u_i (pFedGraph 4f5f17c: lambda_1 = 1).", least=0
    )
    self_weight: float = key(
        0.3, "ξ_ii, a silo's weight on its own model (pFedGraph: .3; easyFL: 1/M).", least=0, most=1
    )
    sigma: float = key(
        10.0, "σ, how much the cosines decide (pFedGraph: 10; easyFL 0bc05fd: 25).", least=0
    )
    since_start: bool = key(
        True, "Whether cosines are of w_i − w_0 (pFedGraph's code), or of w_i (the paper, easyFL)."
    )


class HeurFedAMP(AttentiveModels):
    """FedAMP's heuristic form: a given self-weight, and a softmax of cosines for the peers."""

    name = "heurfedamp"
    Keys = HeurFedAMPKeys

    def attention(self) -> Weights:
        """Return ξ of the models, or of w_i − w_0; [[1]] if the target has no peers."""
        from scipy.special import softmax  # here: it takes a quarter of a second

        own, count = self.own, len(self.models)
        if count == 1:
            return np.eye(1)
        (cosines,) = grams(normalize(self.models - own.since_start * self.parameters))
        exponents = own.sigma * cosines
        np.fill_diagonal(exponents, -np.inf)
        peers: Weights = (1 - own.self_weight) * softmax(exponents, axis=1)
        return peers + own.self_weight * np.eye(count)
