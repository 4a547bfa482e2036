"""Krum and Multi-Krum: the gradients whose nearest neighbours are nearest.

P. Blanchard, E. M. El Mhamdi, R. Guerraoui and J. Stainer, Machine Learning with Adversaries:
Byzantine Tolerant Gradient Descent, NeurIPS 2017. Given k gradients, f of which may be arbitrary::

    s(i) = Σ ‖g^{(i)} − g^{(j)}‖² over the k − f − 2 silos j that are nearest to i
    w_t ← w_{t−1} − η Opt(mean of the m gradients with the smallest s)

Krum finds the middle of the largest group, so a target in a smaller cluster is itself the outlier.
The theorem needs 2f + 2 < k; a larger f is replaced by the largest that this allows. In a tie the
silo with the smaller number wins.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from spcacw_flwr.alpha import grams
from spcacw_flwr.config.declare import key
from spcacw_flwr.methods.base import Weights, weighted_sum

from .families import GradientRule


@dataclass(frozen=True)
class KrumKeys:
    """Hyper-parameters of Krum."""

    keep: int = key(
        1, "m, how many gradients are averaged: 1 is Krum, more Multi-Krum (paper's m).", least=1
    )
    byzantine: int = key(
        2,
        "f, silos that may be arbitrary; at most ⌊(k − 3)/2⌋ of the k that answer, which is the "
        "default for 7.",
        least=0,
    )


def krum_scores(products: Weights, byzantine: int) -> Weights:
    """Return s, (k,), from the gradients' inner products (k, k)."""
    count = len(products)
    squares = products.diagonal()[:, None] + products.diagonal() - 2 * products
    np.fill_diagonal(squares, -np.inf)  # each silo then comes first in its row and is left out
    neighbours = max(1, count - min(byzantine, max(0, (count - 3) // 2)) - 2)
    scores: Weights = np.sort(squares, axis=1)[:, 1 : neighbours + 1].sum(axis=1)
    return scores


class Krum(GradientRule):
    """Krum: the gradient with the nearest neighbours (a control that treats all silos alike)."""

    name = "krum"
    Keys = KrumKeys

    def aggregate(self, gradients: Tensor, own: int) -> tuple[Weights, Tensor]:
        """Return 1/m on the m gradients with the smallest scores, and their mean."""
        scores = krum_scores(grams(gradients)[0], self.own.byzantine)
        chosen = np.argsort(scores, kind="stable")[: self.own.keep]
        weights = np.zeros(len(scores))
        weights[chosen] = 1 / len(chosen)
        return weights, weighted_sum(weights, gradients)
