"""pFedGraph: a collaboration graph from the directions in which the silos' models have moved.

R. Ye, Z. Ni, F. Wu, S. Chen, Y. Wang, Personalized Federated Learning with Inferred Collaboration
Graphs, ICML 2023. At a meeting, with Δ_i = w_i − w_0::

    d_ij = −cos(Δ_i, Δ_j), −1 where it is below −.9
    α_i = argmin_{x ∈ Δ} λ′‖x − p‖² + d_i·x = Π_Δ(p − d_i/(2λ′))
    w_i ← Σ_j α_ij w_j,   c_i = Σ_j α_ij w_j/‖w_j‖
    then K rounds of   w_i ← Opt_i(w_i, ∇[f_i(w) − λ ⟨c_i, w⟩/‖w‖])

The authors pass the quadratic program to a solver, but it is a projection. Their released local
term *adds* λ times the similarity to a loss that is minimised, which drives the models apart (issue
1 of their repository). This file has the paper's term, with the minus sign.

Δ is measured from w_0, so combined models stay similar, and cosines above the snap count as 1. If
λ′ is large enough to favour the sizes, silos of different kinds may all merge late in a run. A
smaller λ′, such as .2, keeps them apart.

The authors test the target's model before and after a meeting (``personal``), and keep the better
on validation data.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from spcacw_flwr.alpha import grams, project_simplex
from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import key
from spcacw_flwr.methods.base import Weights, weighted_sum
from spcacw_flwr.silos.protocol import Federation

from .families import spread
from .personal import MeetingKeys, MeetingModels

SNAP = 0.9
"""Cosines above this value count as 1."""


@dataclass(frozen=True)
class PFedGraphKeys(MeetingKeys):
    """Hyper-parameters of pFedGraph; defaults of MediaBrain-SJTU/pFedGraph 4f5f17c."""

    alpha: float = key(
        0.8, "λ′, how near the graph stays to the sizes p (authors' alpha = .8).", above=0
    )
    lambda_: float = key(
        0.01, "λ of the local cosine term, with the paper's sign (authors' lam = .01).", least=0
    )


def collaboration(deltas: Tensor, shares: Weights, strength: float) -> Weights:
    """Return the graph α (k, k) from Δ (k, d), the sizes p (k,) and λ′ = ``strength``."""
    (cosines,) = grams(normalize(deltas))
    cosines[cosines > SNAP] = 1.0
    return np.stack([project_simplex(shares + row / (2 * strength)) for row in cosines])


def similarity_gradient(models: Tensor, centres: Tensor) -> Tensor:
    """Return the gradients (k, d) of ⟨c, w⟩/‖w‖ at the rows w of ``models``."""
    norms = torch.linalg.vector_norm(models, dim=1, keepdim=True).clamp_min(1e-12)
    units = models / norms
    return (centres - (centres * units).sum(dim=1, keepdim=True) * units) / norms


class PFedGraph(MeetingModels):
    """Own models, combined by a graph. The log has α_0, the target's row of the graph."""

    name = "pfedgraph"
    Keys = PFedGraphKeys

    def __init__(self, config: Config, federation: Federation, parameters: Tensor) -> None:
        super().__init__(config, federation, parameters)
        self.centres = torch.zeros_like(self.models)
        """c_i; 0 until the first meeting, so without effect on local training."""

    def traffic(self, round_: int) -> tuple[int, int]:
        """Return the floats of a round; a silo receives its c_i besides its w_i."""
        down, up = super().traffic(round_)
        return down * (2 if self.own.lambda_ and round_ > 1 else 1), up

    def pull(self, silos: Sequence[int]) -> Tensor | float:
        """Return −λ ∇⟨c_i, w⟩/‖w‖ at w_i."""
        if self.own.lambda_ == 0:
            return 0.0
        rows = list(silos)
        return -self.own.lambda_ * similarity_gradient(self.models[rows], self.centres[rows])

    def meet(self, round_: int, silos: list[int]) -> None:
        """Infer the graph of ``silos``, and combine their models."""
        models = self.models[silos]
        graph = collaboration(models - self.parameters, self.shares(silos), self.own.alpha)
        self.models[silos] = weighted_sum(graph, models)
        self.centres[silos] = weighted_sum(graph, normalize(models))
        self.restart(silos)
        own = graph[silos.index(self.target)]
        self.set_weights(spread(own, silos, self.federation), round_)
