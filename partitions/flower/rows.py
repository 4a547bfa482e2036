"""Latent clusters and speaking roles as Partitioners, and what all of ours share.

Each is a split into rows of the data set: see ``partitions.allocation`` and ``partitions.roles``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from datasets import ClassLabel, Dataset
from flwr_datasets.partitioner import Partitioner
from numpy.typing import NDArray

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.silos.streams import NOISE, ROLE, SPLIT, stream

from ..allocation import check_nobody_empty, deal, latent_clusters
from ..roles import draw_roles

Ints = NDArray[np.int64]


class RowsPartitioner(Partitioner):
    """A split into rows of the data set, which is drawn when it is first asked for."""

    def __init__(self, num_partitions: int, seed: int) -> None:
        """Keep what the split depends on; reads no data."""
        super().__init__()
        self._num_partitions = num_partitions
        self._seed = seed
        self._drawn: list[Ints] | None = None

    @property
    def num_partitions(self) -> int:
        """M, the number of silos."""
        return self._num_partitions

    @abstractmethod
    def draw(self) -> list[Ints]:
        """Return the rows of each silo."""

    def rows(self, partition_id: int) -> Ints:
        """Return the rows of one silo; SpcacwError if there is no such silo."""
        if not 0 <= partition_id < self.num_partitions:
            raise SpcacwError(
                f"There is no silo {partition_id}: choose one from 0 to {self.num_partitions - 1}."
            )
        if self._drawn is None:
            self._drawn = self.draw()
        return self._drawn[partition_id]

    def load_partition(self, partition_id: int) -> Dataset:
        """Return the samples of one silo."""
        return self.dataset.select(self.rows(partition_id))

    def check_column(self, column: str) -> None:
        """Raise SpcacwError unless the data set has a column of that name."""
        if column not in self.dataset.features:
            raise SpcacwError(
                f"The data set has no column {column!r}, only {', '.join(self.dataset.features)}: "
                f"name the right one where you make the {type(self).__name__}."
            )

    def labels(self, column: str) -> Ints:
        """Return a column of whole numbers; SpcacwError if there is no such column."""
        self.check_column(column)
        return np.asarray(self.dataset.with_format("numpy")[column][:], dtype=np.int64)

    def num_classes(self, column: str) -> int:
        """Return how many labels a column can have; SpcacwError if there is no such column."""
        self.check_column(column)
        feature = self.dataset.features[column]
        if isinstance(feature, ClassLabel):
            return int(feature.num_classes)
        return int(self.labels(column).max()) + 1


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


class RolePartitioner(RowsPartitioner):
    """Silos of a few speaking roles each: Shakespeare in the paper, n = 15 with m = 7.

    For data sets with a row per sample and a column that names the role, as
    ``flwrlabs/shakespeare`` has LEAF's samples under ``character_id``.

    Parameters
    ----------
    num_partitions, roles_per_partition : int
        n and m.
    least_samples : int
        Rows that a role must have to be drawn (the larger roles; READING row 20).
    partition_by : str
        The column that names the role.
    seed : int
        Draws the roles.
    """

    def __init__(
        self, num_partitions: int = 15, roles_per_partition: int = 7, *, least_samples: int = 5000,
        partition_by: str = "character_id", seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(num_partitions, seed)
        self._per_silo, self._least = roles_per_partition, least_samples
        self._partition_by = partition_by

    def draw(self) -> list[Ints]:
        """Draw the roles; SpcacwError if there are too few. Rows stay in their order."""
        self.check_column(self._partition_by)
        column = np.asarray(self.dataset[self._partition_by][:])
        _, of_row, sizes = np.unique(column, return_inverse=True, return_counts=True)
        silos = draw_roles(
            sizes, self.num_partitions, self._per_silo, self._least,
            stream(self._seed, ROLE), "samples",
        )  # fmt: skip
        return [np.flatnonzero(np.isin(of_row, roles)) for roles in silos]
