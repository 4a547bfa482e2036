"""What our Partitioners share: each is a split into rows of the data set."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from datasets import ClassLabel, Dataset
from flwr_datasets.partitioner import Partitioner
from numpy.typing import NDArray

from spcacw_flwr.config.declare import SpcacwError

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
