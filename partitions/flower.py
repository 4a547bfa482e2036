"""The paper's settings as Partitioners of flwr-datasets, for any Flower app.

    from flwr_datasets import FederatedDataset
    from partitions.flower import LatentClusterPartitioner

    data = FederatedDataset(
        dataset="uoft-cs/cifar100",
        partitioners={"train": LatentClusterPartitioner(cluster_sizes=(5, 5, 5, 5), epsilon=10.0)},
    )
    silo = data.load_partition(0)

Each is a thin skin over the allocation that our own settings use. Kiselman & Levy, SP-CACW, arXiv
2606.29322, "Experiments". This module alone needs flwr-datasets; nothing of ours imports it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset
from flwr_datasets.partitioner import Partitioner
from numpy.typing import NDArray

from partitions.allocation import check_nobody_empty, deal, latent_clusters
from partitions.relabel import permutations
from partitions.roles import draw_roles
from partitions.rotate import rotated
from partitions.streams import NOISE, ROLE, SPLIT, stream
from spcacw_flwr.keys import SpcacwError

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

    def labels(self, column: str) -> Ints:
        """Return a column of whole numbers."""
        return np.asarray(self.dataset.with_format("numpy")[column][:], dtype=np.int64)

    def num_classes(self, column: str) -> int:
        """Return how many labels a column can have."""
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
        See :func:`partitions.allocation.latent_clusters`.
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
        column = np.asarray(self.dataset[self._partition_by][:])
        _, of_row, sizes = np.unique(column, return_inverse=True, return_counts=True)
        silos = draw_roles(
            sizes, self.num_partitions, self._per_silo, self._least,
            stream(self._seed, ROLE), "samples",
        )  # fmt: skip
        return [np.flatnonzero(np.isin(of_row, roles)) for roles in silos]


class _EqualPartitioner(RowsPartitioner):
    """Disjoint random subsets of equal size; a silo then sees its own through its own eyes."""

    def __init__(self, num_partitions: int, samples_per_partition: int, seed: int) -> None:
        super().__init__(num_partitions, seed)
        self._samples = samples_per_partition

    def draw(self) -> list[Ints]:
        """Deal the samples out like cards; SpcacwError if there are not enough."""
        most = len(self.dataset) // self.num_partitions
        if not 0 < (self._samples or most) <= most:
            raise SpcacwError(
                f"{self.num_partitions} silos × {self._samples or 1} samples are more than the "
                f"{len(self.dataset)} samples of the data set: use fewer of either."
            )
        order = stream(self._seed, SPLIT).permutation(len(self.dataset))
        silos = range(self.num_partitions)
        return [order[i :: self.num_partitions][: self._samples or most] for i in silos]


class RelabelPartitioner(_EqualPartitioner):
    """Equal shares whose labels each cluster calls by other names: MNIST label switching.

    Parameters
    ----------
    cluster_sizes : sequence of int
        Silos in each cluster; the paper has 7 in 3.
    samples_per_partition : int
        Samples of each silo; 0: as many as there are.
    how : str
        "shift" or "random", see :func:`partitions.relabel.permutations`.
    partition_by : str
        The column of labels.
    seed : int
        Of the shares, and of random permutations.
    """

    def __init__(
        self, cluster_sizes: Sequence[int] = (3, 2, 2), *, samples_per_partition: int = 0,
        how: str = "shift", partition_by: str = "label", seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(sum(cluster_sizes), samples_per_partition, seed)
        self._clusters = [k for k, size in enumerate(cluster_sizes) for _ in range(size)]
        self._column, self._how = partition_by, how

    def load_partition(self, partition_id: int) -> Dataset:
        """Return the samples of one silo, with the labels of its cluster."""
        classes, count = self.num_classes(self._column), self._clusters[-1] + 1
        names = permutations(count, classes, self._how, self._seed)[self._clusters[partition_id]]

        def rename(labels: list[int]) -> dict[str, list[int]]:
            return {self._column: names[labels].tolist()}

        share = super().load_partition(partition_id)
        return share.map(rename, batched=True, input_columns=self._column, features=share.features)


class RotatePartitioner(_EqualPartitioner):
    """Equal shares whose images each silo sees turned by its angle: MNIST rotation.

    Parameters
    ----------
    num_partitions : int
        M (paper: 89).
    step : float
        Degrees: silo i turns its images counter-clockwise by i · step.
    samples_per_partition : int
        Samples of each silo; 0: as many as there are.
    image : str
        The column of pictures, which are turned when they are looked at.
    seed : int
        Of the shares.
    """

    def __init__(
        self, num_partitions: int = 89, step: float = 4.0, *, samples_per_partition: int = 0,
        image: str = "image", seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(num_partitions, samples_per_partition, seed)
        self._step, self._image = step, image

    def load_partition(self, partition_id: int) -> Dataset:
        """Return the samples of one silo, with its turned images."""
        angle = partition_id * self._step % 360

        def turn(batch: dict[str, Any]) -> dict[str, Any]:
            if self._image not in batch:
                return batch
            return {**batch, self._image: [rotated(one, angle) for one in batch[self._image]]}

        return super().load_partition(partition_id).with_transform(turn)
