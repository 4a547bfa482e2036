"""FedDisco: weights from the silos' sizes and the distances of their label shares to a reference.

R. Ye, M. Xu, J. Wang, C. Xu, S. Chen and Y. Wang, FedDisco: Federated Learning with
Discrepancy-Aware Collaboration, ICML 2023; "FedDisco" in the paper's Table 1. With p_i the silos'
shares of the samples, q_i their label shares and T the reference's::

    d_i = D(q_i, T),   α^{(i)} ∝ max(0, p_i − a d_i + b),   for all t

The silos report their label counts once. FedDisco ignores the map from inputs to labels: silos that
use the same labels for other things look alike, as in the relabelled MNIST.

The authors train one model for all silos and so use a uniform T. For one target the natural
reference is its own, T = q_0, the default here. The paper does not say which it used.

The authors divide KL, and no other D, by Σ_j D_j. So ``a`` does not depend on the size of the
divergences, and pure sampling noise is inflated if all silos agree. KL is infinite if a silo has
labels that T lacks, and the division would give NaN. So for KL the target counts each class that it
lacks once. Divergences are then large where classes are missing, and finite.
"""

from dataclasses import dataclass

import numpy as np

from spcacw_flwr.config.declare import SpcacwError, key
from spcacw_flwr.methods.base import WeightedGradients, Weights


@dataclass(frozen=True)
class FedDiscoKeys:
    """Hyper-parameters of FedDisco."""

    reference: str = key(
        "target",
        "T, to which label shares are compared: those of the target, or uniform (the authors').",
        choices=("target", "uniform"),
    )
    measure: str = key(
        "kl",
        "D: kl, rescaled to sum to 1 over the silos (authors' code, MediaBrain-SJTU/FedDisco "
        "f3ea299), kl-raw, not rescaled, or l2.",
        choices=("kl", "kl-raw", "l2"),
    )
    a: float = key(0.5, "a, weight of the discrepancy d_i (authors' disco_a).", least=0)
    b: float = key(0.1, "b, added to every silo's weight (authors' disco_b).")


def discrepancies(counts: Weights, reference: Weights, measure: str) -> Weights:
    """Return d, (M,), of label counts (M, C) from the reference's label shares (C,)."""
    shares = counts / counts.sum(axis=1, keepdims=True)
    if measure == "l2":
        found: Weights = np.linalg.norm(shares - reference, axis=1)
        return found
    present = shares > 0  # 0 log 0 = 0
    ratios = np.divide(shares, reference, out=np.ones_like(shares), where=present)
    found = (shares * np.log(ratios)).sum(axis=1)
    return found / found.sum() if measure == "kl" and found.any() else found


class FedDisco(WeightedGradients):
    """FedDisco: weights from sizes and label shares, the same for all t."""

    name = "feddisco"
    reveals = "label counts"
    Keys = FedDiscoKeys

    def initial_weights(self) -> Weights:
        """Return the weights that the label counts give.

        SpcacwError if a silo has no label counts, or if no silo has a positive weight.
        """
        own, told = self.own, [info.label_counts for info in self.federation.silos]
        if not all(told):
            raise SpcacwError(
                "feddisco compares counts of labels, and these labels are numbers: use a method "
                "that asks for gradients only, such as spcacw."
            )
        counts = np.array(told, dtype=float)
        found = discrepancies(counts, self.reference(counts), own.measure)
        weights: Weights = np.maximum(self.federation.shares - own.a * found + own.b, 0.0)
        if not weights.any():
            raise SpcacwError(
                f"feddisco.a = {own.a:g} and feddisco.b = {own.b:g} leave no silo with a positive "
                "weight (p − a d + b ≤ 0 for all): use a smaller a or a larger b."
            )
        return weights / weights.sum()

    def reference(self, counts: Weights) -> Weights:
        """Return T, (C,), for label counts (M, C)."""
        if self.own.reference == "uniform":
            return np.full(counts.shape[1], 1 / counts.shape[1])
        own = np.maximum(counts[self.target], self.own.measure != "l2")
        return own / own.sum()
