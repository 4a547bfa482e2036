"""pFedSim: bodies are averaged over silos whose classifiers look alike.

J. Tan, Y. Zhou, G. Liu, J. H. Wang, S. Yu, pFedSim: Similarity-Aware Model Aggregation Towards
Personalized Federated Learning, arXiv:2305.15706. The first rounds (``warmup``) are FedAvg. At
round t, with w_i = [φ_i; h_i] and h_i[c] the classifier's weights of class c::

    s_ij = min(.9999, max(0, mean_c cos(h_i[c], h_j[c]))),  s_ii = .9999
    a_ij = −ln(1 − s_ij) / Σ_k −ln(1 − s_ik)
    u_i  = [Σ_j a_ij φ_j; h_i]                               body from all, own head
    w_i  = u_i − η Opt(g_i(u_i))

The target uses w_0, its model after its own step, as in the first author's code.

The paper's silo trains for an epoch between aggregations; ours takes one step. After the warm-up
every silo holds the global model, as in that code, so the first similarities are all 1. That is a
trap, because −ln(1 − 1) is infinite. We bound a peer's similarity by the .9999 of the silo itself.
Equal heads then have equal weights, and later differ by their own steps. A silo that does not take
part keeps its model, and others still aggregate it.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError, key
from spcacw_flwr.methods.base import Weights, weighted_sum
from spcacw_flwr.silos.layout import Layout
from spcacw_flwr.silos.protocol import Federation, Request, Round

from .families import HeadKeys, SplitNetwork

MOST_ALIKE = 0.9999
"""The similarity of a silo to itself, and the largest similarity to another silo."""


@dataclass(frozen=True)
class PFedSimKeys(HeadKeys):
    """Hyper-parameters of pFedSim; "authors" is the first author's FL-bench, commit 06e658b."""

    warmup: float = key(
        0.5,
        "Share of all rounds, at their beginning, that are FedAvg (authors: warmup_round .5).",
        least=0,
        most=1,
    )


def aggregation_weights(classifiers: Weights) -> Weights:
    """Return a_ij (M, M), whose rows sum to 1, from the classifiers' weights (M, C, h)."""
    norms = np.linalg.norm(classifiers, axis=2, keepdims=True)
    # A class whose weights are all 0 has no direction: its cosine counts as 0.
    unit = np.divide(classifiers, norms, out=np.zeros_like(classifiers), where=norms > 0)
    flat = unit.reshape(len(unit), -1)
    alike = np.clip(flat @ flat.T / classifiers.shape[1], 0, MOST_ALIKE)
    np.fill_diagonal(alike, MOST_ALIKE)
    weights = -np.log1p(-alike)
    return weights / weights.sum(axis=1, keepdims=True)


class PFedSim(SplitNetwork):
    """FedAvg, then bodies weighted by the similarity of classifiers.

    The classifier's weights are the last matrix among the head's tensors. Biases are not compared,
    as in the authors' code. SpcacwError when made if the head has no matrix.
    """

    name = "pfedsim"
    Keys = PFedSimKeys

    def __init__(self, config: Config, federation: Federation, parameters: Tensor) -> None:
        super().__init__(config, federation, parameters)
        tensors = self.own.head_tensors
        self.head_layout = Layout(self.layout.shapes[len(self.layout.shapes) - tensors :])
        matrices = [name for name, shape in self.head_layout.shapes if len(shape) > 1]
        if not matrices:
            raise SpcacwError(
                f"pfedsim.head-tensors = {tensors} names no matrix among the model's last "
                "tensors, and pfedsim compares the classifier's: use more of them."
            )
        self.classifier = matrices[-1]
        rounds = config.run.epochs * federation.rounds_per_epoch
        self.warmup_rounds = int(self.own.warmup * rounds)
        self.bodies = parameters[: self.body_size].repeat(federation.num_silos, 1)
        """(M, d_φ), the body of each silo after its last step."""

    @property
    def personal(self) -> Tensor:
        """w_0; during the warm-up this is the global model."""
        return self.joined(self.bodies[self.target], [self.target])[0]

    def round(self, round_: int) -> Round:
        """Run FedAvg's round during the warm-up, then a step of each silo from its own u_i."""
        if round_ <= self.warmup_rounds:
            yield from super().round(round_)
            self.bodies[:] = self.body
            self.heads[:] = self.parameters[self.body_size :]
            return
        silos = self.sampled(round_)
        classifiers = self.head_layout.unflatten(self.heads)[self.classifier]
        mixing = aggregation_weights(classifiers.flatten(2).cpu().double().numpy())
        points = self.joined(weighted_sum(mixing[list(silos)], self.bodies), silos)
        traffic = self.body_size, points.shape[1]
        replies = yield Request(round_, silos, points, traffic=traffic)
        for silo, gradient in zip(replies.silos, replies.gradients.clone(), strict=True):
            model = points[silos.index(silo)].clone()
            self.optimiser.step(model, gradient, silo)
            self.bodies[silo], self.heads[silo] = model.tensor_split((self.body_size,))
        if self.ends_epoch(round_):
            self.set_weights(mixing[self.target], round_)
