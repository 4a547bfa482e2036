"""Latent clusters as a Partitioner: see ``spcacw_flwr.partitions.allocation``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.silos.streams import NOISE, SPLIT, stream

from ..allocation import check_nobody_empty, deal, latent_clusters
from .rows import Ints, RowsPartitioner


class LatentClusterPartitioner(RowsPartitioner):
    """Silos in latent clusters with a share of the classes each, and noise: CIFAR-100 in the paper.

    Parameters
    ----------
    cluster_sizes : sequence of int
        Silos in each cluster; the paper has 20 in 4.
    epsilon : float
        ε, the heterogeneity noise (paper: 10 and 0.01).
    partition_by : str
        The column of labels.
    seed : int
        Of the noise, and of which sample goes where. Partitioners of the training and the test
        split that share it give each silo the same share of each class of both.
    class_sizes, epsilon_is, normalise
        See :func:`spcacw_flwr.partitions.allocation.latent_clusters`.
    """

    def __init__(
        self, cluster_sizes: Sequence[int] = (5, 5, 5, 5), epsilon: float = 10.0, *,
        partition_by: str = "fine_label", seed: int = 0, class_sizes: Sequence[int] | None = None,
        epsilon_is: str = "variance", normalise: str = "columns",
    ) -> None:  # fmt: skip
        super().__init__(sum(cluster_sizes), seed)
        self._partition_by = partition_by
        self._cluster_sizes, self._epsilon = tuple(cluster_sizes), epsilon
        self._class_sizes, self._epsilon_is, self._normalise = class_sizes, epsilon_is, normalise

    @property
    def allocation(self) -> NDArray[np.float64]:
        """X (silos, classes): the share of each class that each silo gets."""
        return latent_clusters(
            self._cluster_sizes, self.num_classes(self._partition_by), self._epsilon,
            stream(self._seed, NOISE), class_sizes=self._class_sizes,
            epsilon_is=self._epsilon_is, normalise=self._normalise,
        )  # fmt: skip

    def draw(self) -> list[Ints]:
        """Deal the samples out; SpcacwError if a silo would get none."""
        labels = self.labels(self._partition_by)
        dealt = deal(self.allocation, labels, stream(self._seed, SPLIT))
        check_nobody_empty(np.array([[len(rows)] for rows in dealt]), "LatentClusterPartitioner")
        return dealt
