"""Federated Clustering: the target averages the gradients within a radius of its own.

M. Werner, L. He, M. I. Jordan, M. Jaggi and S. P. Karimireddy, Provably Personalized and Robust
Federated Learning, TMLR 2023 (arXiv:2306.08393), Threshold-Clustering; "FC" in the paper's
Table 1. With the silos' gradients g^{(i)} at the target's model::

    v ← g^{(0)}
    L times:  v ← (1/M) Σ_i  g^{(i)} if ‖g^{(i)} − v‖ ≤ τ else v
    w_t ← w_{t−1} − η Opt(v)

In the published form every client clusters at its own model, which costs M² gradients. This rule is
the target's share of that and costs M gradients. Momentum comes after the clustering, as in the
authors' released code (liehe/PRFL).

v is linear in the gradients: with n silos within τ, α ← 1_in/M + (1 − n/M) α, from α = e_0. The
code computes and logs this α. The divisor is M, not n: silos outside vote for the present centre,
so the centre moves slowly if few silos are near.

τ is the ⌊qM⌋-th smallest distance after the silo's own 0, so in the first inner round ⌊qM⌋ + 1 of M
silos are within τ. The MNIST version of the authors' code multiplies τ by .99, which excludes the
silo that gave τ. With q = .2 and 7 silos only the target would be left, and the method would be
Local. The CIFAR-100 version has no such factor, and neither do we: the target uses its nearest peer
if there are 7 silos, and its four nearest if there are 20. With 4 silos it would use none, so we
always include the nearest peer unless q = 0.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from spcacw_flwr.config.declare import key
from spcacw_flwr.methods.base import Weights, weighted_sum

from .families import GradientRule, distances


@dataclass(frozen=True)
class FederatedClusteringKeys:
    """Hyper-parameters of Threshold-Clustering."""

    inner_rounds: int = key(
        3,
        "L, inner rounds of clustering (authors' code, liehe/PRFL 6ec27b0: 3 on MNIST, 10 on "
        "CIFAR-100).",
        least=1,
    )
    threshold: str = key(
        "quantile",
        "How τ is chosen: quantile, anew in each inner round, or fixed.",
        choices=("quantile", "fixed"),
    )
    quantile: float = key(
        0.2,
        "q: τ is the distance at place ⌊qM⌋ in ascending order, the silo itself counted (authors' "
        "code: .2 on MNIST, .1 on CIFAR-100), and at least 1, the nearest peer's; with q = 0 the "
        "method is Local.",
        least=0,
        below=1,
    )
    tau: float = key(1.0, "τ, the radius when threshold = fixed.", least=0)


class FederatedClustering(GradientRule):
    """Federated Clustering (FC): the mean of the gradients near the target's own."""

    name = "fedcluster"
    Keys = FederatedClusteringKeys

    def aggregate(self, gradients: Tensor, own: int) -> tuple[Weights, Tensor]:
        """Return α^{L} and the centre Σ α^{(i)} g^{(i)} after L inner rounds from row ``own``."""
        weights, centre = np.eye(len(gradients))[own], gradients[own]
        for _ in range(self.own.inner_rounds):
            away = distances(centre[None], gradients)[0]
            within = away <= self.radius(away)
            weights = weights + (within - within.sum() * weights) / len(gradients)
            centre = weighted_sum(weights, gradients)
        return weights, centre

    def radius(self, away: Weights) -> float:
        """Return τ for the distances (k,) to the centre."""
        if self.own.threshold == "fixed":
            return float(self.own.tau)
        place = max(int(self.own.quantile * len(away)), int(self.own.quantile > 0))
        return float(np.sort(away)[min(place, len(away) - 1)])
