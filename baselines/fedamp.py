"""FedAMP: models of silos attract each other, and nearer models attract more strongly.

Y. Huang, L. Chu, Z. Zhou, L. Wang, J. Liu, J. Pei, Y. Zhang, Personalized Cross-Silo Federated
Learning on Non-IID Data, AAAI 2021, Algorithm 1, with one gradient a round in place of the prox::

    ξ_ij = α_k A′(‖w_i − w_j‖²),  A′(x) = e^{−x/σ}/σ,  ξ_ii = 1 − Σ_{j≠i} ξ_ij
    u_i = Σ_j ξ_ij w_j
    w_i ← Opt_i(w_i, g_i(w_i) + (λ/α_k) (w_i − u_i))

The norm inside A′ is squared, and 1/σ stands before the exponential. u_i is a convex combination
only if no ξ_ii is negative, and so is the step only if η λ/α_k < 1. Other values raise an error.
All models start equal, so the first round requires α_k (M − 1) ≤ σ. Written out,
(λ/α_k)(w_i − u_i) = λ Σ_j A′(‖w_i − w_j‖²)(w_i − w_j). With one gradient per u_i, α_k therefore
decides only the weights in the log and the largest λ.

σ is a squared distance of models, and models move apart as they train. So by default σ is a share,
``sigma-share``, of the median squared distance of two silos' models in the round. The median itself
would be a distance *between* clusters, and silos of two clusters would attract nearly as silos of
one do: the share is below 1. α_k and λ are then multiples of σ/(M − 1), that is ::

    ξ_ij = α/(M − 1) e^{−‖w_i − w_j‖²/σ},    pull = (λ/α) (w_i − u_i)

Then ξ_ii ≥ 0 for every α ≤ 1, and λ is comparable with Ditto's. A fixed ``sigma`` can also work:
silos that attract each other stay near, so FedAMP need not become Local as training goes on. PFLlib
builds its penalty from detached tensors, so that has no gradient; ours is the gradient.
"""

from dataclasses import dataclass

import numpy as np
import torch

from spcacw_flwr.config.declare import SpcacwError, key
from spcacw_flwr.methods.base import Weights

from .personal import AttentiveModels


@dataclass(frozen=True)
class FedAMPKeys:
    """Hyper-parameters of FedAMP; PFLlib d832e76 has lamda = alphaK = sigma = 1."""

    lambda_: float = key(
        1.0,
        "λ, weight of the attraction (Algorithm 1); in units of σ/(M − 1) if sigma is 0.",
        least=0,
    )
    alpha: float = key(
        1.0,
        "α_k, step of the message passing (Algorithm 1), more than η λ and at most σ/(M − 1); in "
        "units of σ/(M − 1) if sigma is 0.",
        above=0,
    )
    sigma: float = key(
        0.0,
        "σ in A(x) = 1 − e^{−x/σ}, a squared distance of models (PFLlib 1, easyFL ea07f1d 25); 0: "
        "sigma-share says it.",
        least=0,
    )
    sigma_share: float = key(
        0.1, "σ as a share of the median squared distance of two models in the round.", above=0
    )


class FedAMP(AttentiveModels):
    """Attentive message passing between the silos' own models."""

    name = "fedamp"
    Keys = FedAMPKeys
    reach_is = "λ/α_k"
    remedy = ", or raise fedamp.alpha"
    sigma = 0.0

    @property
    def reach(self) -> float:
        """λ/α_k."""
        return super().reach / float(self.own.alpha)

    def attention(self) -> Weights:
        """Return ξ; SpcacwError if some ξ_ii is negative."""
        from scipy.spatial.distance import squareform  # here: it takes a sixth of a second

        keys, unit = self.own, 1.0
        # pdist finds exactly 0 where two models are equal.
        squared = squareform(torch.pdist(self.models).square().double().cpu().numpy())
        self.sigma = keys.sigma
        if keys.sigma == 0:
            # Models that have not moved are equal: 0 is no information on distances.
            apart = squared[squared > 0]
            self.sigma = keys.sigma_share * float(np.median(apart) if apart.size else 1.0)
            unit = self.sigma / max(1, len(squared) - 1)
        xi: Weights = keys.alpha * unit / self.sigma * np.exp(-squared / self.sigma)
        np.fill_diagonal(xi, 0.0)
        np.fill_diagonal(xi, 1 - xi.sum(axis=1))
        if xi.diagonal().min() < -1e-9:
            most = keys.sigma / (len(squared) - 1) if keys.sigma else 1.0
            raise SpcacwError(
                f"fedamp.alpha = {keys.alpha:g} makes a silo's weight on its own model negative: "
                f"with {len(squared)} silos and fedamp.sigma = {keys.sigma:g} it must be at most "
                f"{most:.3g}."
            )
        return xi

    def epoch_report(self) -> dict[str, float]:
        """Add σ of the last round."""
        return super().epoch_report() | {"sigma": self.sigma}
