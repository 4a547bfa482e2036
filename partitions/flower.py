"""The paper's settings as Partitioners of flwr-datasets, for any Flower app.

    from flwr_datasets import FederatedDataset
    from spcacw_flwr.partitions.flower import LatentClusterPartitioner

    data = FederatedDataset(
        dataset="uoft-cs/cifar100",
        partitioners={"train": LatentClusterPartitioner(cluster_sizes=(5, 5, 5, 5), epsilon=10.0)},
    )
    silo = data.load_partition(0)

Each uses the same allocation as our own settings (Kiselman & Levy, SP-CACW, arXiv 2606.29322,
"Experiments"). They need flwr-datasets; none of our modules imports them.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset
from flwr_datasets.partitioner import Partitioner
from numpy.typing import NDArray
from PIL.Image import Resampling

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.silos.streams import NOISE, ROLE, SPLIT, stream

from .allocation import Ints, check_nobody_empty, deal, latent_clusters
from .plays import draw_roles
from .relabel import permutations

__all__ = ["LatentClusterPartitioner", "RelabelPartitioner", "RolePartitioner", "RotatePartitioner"]


class RowsPartitioner(Partitioner):
    """A split of the data set's rows, drawn at its first use."""

    argument = "partition_by"
    """The argument that names the column."""

    def __init__(self, num_partitions: int, seed: int, column: str) -> None:
        """Keep the arguments of the split, and read no data."""
        super().__init__()
        self._num_partitions, self._seed, self._column = num_partitions, seed, column
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

    def check_column(self) -> None:
        """Raise SpcacwError unless the data set has the column."""
        if self._column not in self.dataset.features:
            raise SpcacwError(
                f"The data set has no column {self._column!r}, only "
                f"{', '.join(self.dataset.features)}: make the {type(self).__name__} with "
                f"{self.argument}= one of these."
            )

    def labels(self) -> Ints:
        """Return the column; SpcacwError unless it has whole numbers from 0 only."""
        self.check_column()
        found = np.asarray(self.dataset.with_format("numpy")[self._column][:])
        if found.dtype.kind not in "biuf" or not ((found >= 0) & (found % 1 == 0)).all():
            raise SpcacwError(
                f"Column {self._column!r} holds other labels than whole numbers from 0: drop what "
                "has no label, or number them by the data set's class_encode_column."
            )
        return found.astype(np.int64)

    def num_classes(self) -> int:
        """Return how many labels the column can have; SpcacwError if there is no such column."""
        self.check_column()
        feature = self.dataset.features[self._column]
        if isinstance(feature, ClassLabel):
            return int(feature.num_classes)
        return int(self.labels().max()) + 1


class LatentClusterPartitioner(RowsPartitioner):
    """Silos in latent clusters, each with its share of classes, and noise: CIFAR-100 in the paper.

    ``cluster_sizes`` counts the silos of each cluster (paper: 20 in 4), ``epsilon`` is ε, the noise
    (paper: 10 and .01), and ``partition_by`` is the column of labels. ``seed`` draws the noise and
    the samples of each silo. If the training and the test split use the same seed, a silo gets the
    same share of each class in both. For ``class_sizes``, ``epsilon_is`` and ``normalise``
    see :func:`~spcacw_flwr.partitions.allocation.latent_clusters`.
    """

    def __init__(
        self, cluster_sizes: Sequence[int] = (5, 5, 5, 5), epsilon: float = 10.0, *,
        partition_by: str = "fine_label", seed: int = 0, class_sizes: Sequence[int] | None = None,
        epsilon_is: str = "variance", normalise: str = "columns",
    ) -> None:  # fmt: skip
        super().__init__(sum(cluster_sizes), seed, partition_by)
        self._cluster_sizes, self._epsilon = tuple(cluster_sizes), epsilon
        self._class_sizes, self._epsilon_is, self._normalise = class_sizes, epsilon_is, normalise

    @property
    def allocation(self) -> NDArray[np.float64]:
        """X (silos, classes): the share of each class that each silo gets."""
        return latent_clusters(
            self._cluster_sizes, self.num_classes(), self._epsilon, stream(self._seed, NOISE),
            class_sizes=self._class_sizes, epsilon_is=self._epsilon_is, normalise=self._normalise,
        )  # fmt: skip

    def draw(self) -> list[Ints]:
        """Deal the samples out; SpcacwError if a silo would get none."""
        dealt = deal(self.allocation, self.labels(), stream(self._seed, SPLIT))
        check_nobody_empty(np.array([[len(rows)] for rows in dealt]), "LatentClusterPartitioner")
        return dealt


class RolePartitioner(RowsPartitioner):
    """Silos with a few speaking roles each: Shakespeare in the paper, n = 15 with m = 7.

    The data set needs a row per sample and a column ``partition_by`` that names the role, such as
    ``character_id`` in ``flwrlabs/shakespeare``, which has LEAF's samples. ``seed`` draws among the
    roles with at least ``least_samples`` rows (the larger roles; READING row 20).
    """

    def __init__(
        self, num_partitions: int = 15, roles_per_partition: int = 7, *, least_samples: int = 5000,
        partition_by: str = "character_id", seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(num_partitions, seed, partition_by)
        self._per_silo, self._least = roles_per_partition, least_samples

    def draw(self) -> list[Ints]:
        """Draw the roles; SpcacwError if there are too few. Rows stay in their order."""
        self.check_column()
        column = np.asarray(self.dataset[self._column][:])
        _, of_row, sizes = np.unique(column, return_inverse=True, return_counts=True)
        silos = draw_roles(
            sizes, self.num_partitions, self._per_silo, self._least,
            stream(self._seed, ROLE), "samples",
        )  # fmt: skip
        return [np.flatnonzero(np.isin(of_row, roles)) for roles in silos]


class EqualPartitioner(RowsPartitioner):
    """Disjoint random subsets of equal size; a subclass then transforms each silo's subset."""

    def __init__(self, num_partitions: int, samples: int, seed: int, column: str) -> None:
        super().__init__(num_partitions, seed, column)
        self._samples = samples

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


class RelabelPartitioner(EqualPartitioner):
    """Equal shares; each cluster permutes the labels: MNIST label switching.

    ``cluster_sizes`` counts the silos of each cluster (paper: 7 in 3), ``samples_per_partition``
    the samples of each silo (0: as many as there are). ``partition_by`` is the column of labels.
    ``how`` is "shift" or "random", see :func:`~spcacw_flwr.partitions.relabel.permutations`.
    ``seed`` draws the shares and random permutations.
    """

    def __init__(
        self, cluster_sizes: Sequence[int] = (3, 2, 2), *, samples_per_partition: int = 0,
        how: str = "shift", partition_by: str = "label", seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(sum(cluster_sizes), samples_per_partition, seed, partition_by)
        self._clusters = np.repeat(np.arange(len(cluster_sizes)), cluster_sizes)
        self._how = how

    def load_partition(self, partition_id: int) -> Dataset:
        """Return the samples of one silo, with the labels of its cluster."""
        share = super().load_partition(partition_id)
        self.labels()  # a check: a label of −1, which means none, would be renamed
        count = int(self._clusters[-1]) + 1
        names = permutations(count, self.num_classes(), self._how, self._seed)
        mine, column = names[self._clusters[partition_id]], self._column

        def rename(labels: list[int]) -> dict[str, list[int]]:
            numbers = np.asarray(labels, dtype=np.int64)  # also True and False
            return {column: mine[numbers].tolist()}

        return share.map(rename, batched=True, input_columns=column, features=share.features)


class RotatePartitioner(EqualPartitioner):
    """Equal shares; each silo's images are turned by its angle: MNIST rotation (paper: M = 89).

    The pictures of silo i, in the column ``image``, are turned counter-clockwise by i · ``step``
    degrees. ``samples_per_partition`` counts the samples of each silo (0: as many as there are).
    ``seed`` draws the shares.
    """

    argument = "image"

    def __init__(
        self, num_partitions: int = 89, step: float = 4.0, *, samples_per_partition: int = 0,
        image: str = "image", seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(num_partitions, samples_per_partition, seed, image)
        self._step = step

    def load_partition(self, partition_id: int) -> Dataset:
        """Return the samples of one silo, with its turned images."""
        self.check_column()
        angle, column = partition_id * self._step % 360, self._column

        def turn(pictures: list[Any]) -> dict[str, list[Any]]:
            return {column: [one.rotate(angle, Resampling.BILINEAR) for one in pictures]}

        share = super().load_partition(partition_id)
        # Not by a transform of the data set, because an app's own transform would replace it.
        return share.map(turn, batched=True, input_columns=column, features=share.features)
