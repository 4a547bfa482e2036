"""CFL: all silos train one model until it rests, then split where their gradients still disagree.

F. Sattler, K.-R. Müller and W. Samek, Clustered Federated Learning: Model-Agnostic Distributed
Multi-Task Optimization under Privacy Constraints, IEEE TNNLS 2020 (arXiv:1910.01991), Algorithms 1
to 3. m_i is the mean of the gradients that silo i sent in a period, at the model of its cluster C.
At the end of a period a cluster splits in two if::

    ‖Σ_{i ∈ C} p_i m_i‖ < ε_1   and   max_{i ∈ C} ‖m_i‖ > ε_2
    C = A ∪ B  with the least  a = max_{i ∈ A, j ∈ B} cos(m_i, m_j),   and   √((1 − a)/2) > γ

A and B go on from the model of C. In each round a cluster steps along Σ p_i g_i / Σ p_i. Single
linkage of the cosines, stopped at two clusters, gives the best bipartition, as in Algorithm 1. The
authors' code (felisat/clustered-federated-learning) uses complete linkage. It has no γ, and splits
clusters of at least three silos, after 20 rounds.

The authors use updates after epochs of local training. Here m_i averages a period's gradients,
which are clipped, so ε_1 and ε_2 are in units of gradients. The noise of mini-batches adds to ‖m_i‖
and makes silos with the same data differ. Without γ clusters would therefore go on to split.
With ε_1 = 0 this is FedAvg.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from spcacw_flwr.alpha import grams
from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import key
from spcacw_flwr.methods.base import weighted_sum
from spcacw_flwr.silos.protocol import Federation, Request, Round

from .families import ClusterModels
from .personal import PeriodKeys


@dataclass(frozen=True)
class CFLKeys(PeriodKeys):
    """Hyper-parameters of CFL."""

    eps_1: float = key(
        0.2, "ε_1, a resting cluster's mean gradient (authors: .4, of updates).", least=0
    )
    eps_2: float = key(
        0.25, "ε_2, a restless silo's mean gradient (authors: 1.6, of updates).", least=0
    )
    gamma: float = key(0.6, "γ, least distance of the two parts (paper's γ_max).", least=0, most=1)


def halves(means: Tensor) -> tuple[NDArray[np.bool_], float]:
    """Return which rows of (k, d) are in the second part, and the largest cosine across parts."""
    from scipy.cluster.hierarchy import cut_tree, linkage  # here: it takes a sixth of a second
    from scipy.spatial.distance import squareform

    (cosines,) = grams(normalize(means))
    apart = squareform(np.maximum(0.0, 1 - cosines), checks=False)
    second = cut_tree(linkage(apart, "single"), 2)[:, 0] == 1
    return second, float(cosines[second][:, ~second].max())


class CFL(ClusterModels):
    """Clusters that split in two where the silos' gradients disagree at rest."""

    name = "cfl"
    Keys = CFLKeys

    def __init__(self, config: Config, federation: Federation, parameters: Tensor) -> None:
        super().__init__(config, federation, parameters)
        self.every = self.own.update_every or federation.rounds_per_epoch
        self.sums = self.parameters.new_zeros(federation.num_silos, len(parameters))
        self.heard = np.zeros(federation.num_silos)

    def round(self, round_: int) -> Round:
        """Step the model of each cluster; at the end of a period, split clusters that disagree."""
        silos = self.sampled(round_)
        replies = yield Request(round_, silos, self.points(silos))
        self.sums[list(replies.silos)] += replies.gradients
        self.heard[list(replies.silos)] += 1
        self.step(replies)
        if round_ % self.every == 0:
            for cluster in range(len(self.models)):
                self.part(cluster)
            self.sums.zero_()
            self.heard[:] = 0
        self.log_cluster(round_)

    def part(self, cluster: int) -> None:
        """Split a cluster whose silos disagree at rest: one part gets a model of its own."""
        silos = np.flatnonzero((self.cluster == cluster) & (self.heard > 0))
        if len(silos) < 2:
            return
        means = self.sums[silos] / torch.from_numpy(self.heard[silos]).to(self.sums)[:, None]
        mean = weighted_sum(self.average[silos] / self.average[silos].sum(), means)
        if mean.norm() < self.own.eps_1 and means.norm(dim=1).max() > self.own.eps_2:
            second, across = halves(means)
            if ((1 - across) / 2) ** 0.5 > self.own.gamma:
                new = len(self.models)
                self.cluster[silos[second]] = new
                self.models = torch.cat((self.models, self.models[[cluster]]))
                buffer = self.optimiser.momentum.get(cluster)
                self.optimiser.momentum[new] = None if buffer is None else buffer.clone()

    def epoch_report(self) -> dict[str, float]:
        """Add the number of clusters."""
        return super().epoch_report() | {"clusters": float(len(self.models))}
