"""Label switching: silos in latent clusters that disagree on what the labels mean.

"We simulate 7 clients across 3 latent clusters with permuted class labels" (Kiselman & Levy,
SP-CACW, arXiv 2606.29322, "MNIST Label-Switching (Concept Shift)"). Images follow one distribution
at all silos; each cluster gives the classes other labels.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.keys import PartitionKeys
from spcacw_flwr.silos.streams import HOLD_OUT, LABEL, stream

from .allocation import clusters_of
from .images import Images, load_digits
from .pool import PooledSetting

_DIGITS_TEST_SIZE = 397


def permutations(
    num_clusters: int, num_classes: int, how: str, seed: int
) -> list[NDArray[np.int64]]:
    """Return for each cluster k the label p_k[y] (C,) that it gives to class y (READING row 10).

    With ``how`` = "shift" the label is (y + k) mod C, with C = ``num_classes``. With "random"
    ``seed`` draws permutations. In both, cluster 0 keeps its labels and all permutations differ.
    SpcacwError if there are too few distinct permutations.
    """
    most = num_classes if how == "shift" else math.factorial(num_classes)
    if num_clusters > most:
        raise SpcacwError(
            f"cluster-sizes names {num_clusters} clusters, but label-permutation = {how!r} of "
            f"{num_classes} classes tells only {most} apart: name at most {most}."
        )
    labels = np.arange(num_classes)
    if how == "shift":
        return [(labels + k) % num_classes for k in range(num_clusters)]
    rng = stream(seed, LABEL)
    drawn = {tuple(labels.tolist()): labels}
    while len(drawn) < num_clusters:
        permutation = rng.permutation(num_classes)
        drawn.setdefault(tuple(permutation.tolist()), permutation)
    return list(drawn.values())


class Relabel(PooledSetting):
    """Silos fill clusters of ``cluster_sizes`` in order; each cluster permutes the labels."""

    group_kind = "cluster"

    def __init__(self, keys: PartitionKeys, seed: int) -> None:
        """Fix clusters and permutations, read no data; SpcacwError if the sizes are wrong."""
        self._clusters = clusters_of(keys)
        count, how = self._clusters[-1] + 1, keys.label_permutation
        self._permutations = permutations(count, self.num_classes, how, seed)
        super().__init__(keys, seed)

    @property
    def groups(self) -> list[float]:
        """The cluster number of each silo, such as 0, 0, 0, 1, 1, 2, 2."""
        return [float(cluster) for cluster in self._clusters]

    def transform(self, x: Tensor, y: Tensor, silo: int) -> tuple[Tensor, Tensor]:
        """Return the images unchanged, and the labels as the silo's cluster permutes them."""
        return x, torch.from_numpy(self._permutations[self._clusters[silo]])[y]


class DigitsRelabel(Relabel):
    """Label switching on scikit-learn's 8 × 8 digits: no download, seconds a run; not in the paper.

    The seed draws 397 images for the test set; the other 1,400 are dealt out.
    """

    name = "digits-relabel"
    input_shape = (1, 8, 8)
    pool_size = 1400
    white = 1.0

    def pool(self) -> Images:
        """Return the digits in an order drawn by the seed; the last 397 are for the test."""
        x, y = load_digits()
        order = stream(self.seed, HOLD_OUT).permutation(len(y))
        train, test = order[:-_DIGITS_TEST_SIZE], order[-_DIGITS_TEST_SIZE:]
        return Images(x[train], y[train], x[test], y[test])

    def moments(self) -> tuple[float, float]:
        """Return mean and standard deviation of the training pixels."""
        x = self.pool().x_train
        return float(x.mean()), float(x.std())


class MnistRelabel(Relabel):
    """Label switching on MNIST, the paper's setting; tested on all 10,000 test images."""

    name = "mnist-relabel"
    # 2,900 standardised: READING row 8. η = .01, 50 epochs: the paper's appendices.
    defaults: ClassVar[Mapping[str, Any]] = {
        "samples_per_silo": 2900,
        "input_scale": "standard",
        "eta": 0.01,
        "epochs": 50,
    }
