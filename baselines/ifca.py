"""IFCA: k cluster models, and every silo trains the one that fits it best.

A. Ghosh, J. Chung, D. Yin, K. Ramchandran, An Efficient Framework for Clustered Federated Learning,
NeurIPS 2020. Round t, with cluster models θ_1 … θ_k::

    k̂_i = argmin_k f_i(θ_k; ξ_i)                          on the silo's mini-batch
    θ_k ← θ_k − η Opt(Σ_{i: k̂_i = k} α_i g_i(θ_k; ξ_i) / Σ_{i: k̂_i = k} α_i)

The sums are over the silos that take part. The target uses θ_{k̂_0}. This is the paper's model
averaging with one local step, over a cluster's members as in the authors' code. The paper's
gradient averaging divides by the number of all silos, so the steps of small clusters are small. The
authors' code chooses on all data of a silo, ours on the gradient's mini-batch. With k = 1 and all
silos taking part, this is FedAvg. The method is given k: report k with results.

Trap: if cluster models start equal they tie, and all silos pick the first for ever. θ_1 is the
run's initial model. Each further model has the entries of θ_1 shuffled within every tensor. That
keeps their distribution if they were drawn independently (true of all our networks; a pre-trained
model of your own would be destroyed). The authors make restarts for some data; we make none.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import key
from spcacw_flwr.silos.layout import Layout
from spcacw_flwr.silos.protocol import LOSSES, Federation, Request, Round
from spcacw_flwr.silos.streams import METHOD, stream

from .families import AVERAGES, UNIFORM, ClusterModels

UNKNOWN = -1
"""The cluster of a silo that has not taken part yet."""


@dataclass(frozen=True)
class IFCAKeys:
    """Hyper-parameters of IFCA; "authors" is jichan3751/ifca, commit 61e44b8."""

    clusters: int = key(
        4, "k, the number of cluster models (authors' mnist/config.json: p 4, the truth there).",
        least=1,
    )  # fmt: skip
    weights: str = key(
        UNIFORM,
        "α_i of a cluster's members: uniform (authors' code), or size (n_i).",
        choices=AVERAGES,
    )


def shuffled(model: Tensor, layout: Layout, rng: np.random.Generator) -> Tensor:
    """Return a model (d,) with the entries of each tensor shuffled by ``rng``."""
    parts = model.split(layout.sizes)
    orders = [torch.from_numpy(rng.permutation(len(part))).to(model.device) for part in parts]
    return torch.cat([part[order] for part, order in zip(parts, orders, strict=True)])


class IFCA(ClusterModels):
    """Each silo's gradient goes to the cluster model on which its loss is smallest."""

    name = "ifca"
    reveals = "losses"
    Keys = IFCAKeys

    def __init__(self, config: Config, federation: Federation, parameters: Tensor) -> None:
        super().__init__(config, federation, parameters)
        assert federation.layout is not None  # every engine knows its model
        seed, layout = config.run.seed, federation.layout
        rngs = [stream(seed, METHOD, k) for k in range(1, self.own.clusters)]
        further = [shuffled(parameters, layout, rng) for rng in rngs]
        self.models = torch.stack([parameters, *further])
        self.cluster[:] = UNKNOWN
        self.cluster[self.target] = 0  # the target uses θ_1 until it chooses

    def round(self, round_: int) -> Round:
        """Let silos choose, and step each chosen model on its members' gradients."""
        silos, (_, size) = self.sampled(round_), self.models.shape
        traffic = self.models.numel(), 0
        judged = yield Request(round_, silos, self.models, want=LOSSES, traffic=traffic)
        self.cluster[list(judged.silos)] = judged.losses.argmin(dim=1).cpu().numpy()
        points = self.points(judged.silos)
        replies = yield Request(round_, judged.silos, points, traffic=(0, size))
        self.step(replies)
        self.log_cluster(round_)

    def epoch_report(self) -> dict[str, float]:
        """Add the target's cluster, and the number of clusters in use after the last choices."""
        used = np.unique(self.cluster[self.cluster != UNKNOWN])
        own = float(self.cluster[self.target])
        return super().epoch_report() | {"cluster": own, "clusters_used": float(len(used))}
