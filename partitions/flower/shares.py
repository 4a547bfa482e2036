"""Label switching and rotation as Partitioners: equal shares, each seen in the silo's own way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from datasets import Dataset
from PIL.Image import Resampling

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.silos.streams import SPLIT, stream

from ..relabel import permutations
from .rows import Ints, RowsPartitioner


class EqualPartitioner(RowsPartitioner):
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


class RelabelPartitioner(EqualPartitioner):
    """Equal shares whose labels each cluster calls by other names: MNIST label switching.

    Parameters
    ----------
    cluster_sizes : sequence of int
        Silos in each cluster; the paper has 7 in 3.
    samples_per_partition : int
        Samples of each silo; 0: as many as there are.
    how : str
        "shift" or "random", see :func:`spcacw_flwr.partitions.relabel.permutations`.
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
        share = super().load_partition(partition_id)
        classes, count = self.num_classes(self._column), self._clusters[-1] + 1
        names = permutations(count, classes, self._how, self._seed)[self._clusters[partition_id]]

        def rename(labels: list[int]) -> dict[str, list[int]]:
            return {self._column: names[labels].tolist()}

        return share.map(rename, batched=True, input_columns=self._column, features=share.features)


class RotatePartitioner(EqualPartitioner):
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
        self.check_column(self._image)
        angle = partition_id * self._step % 360

        def turn(batch: dict[str, Any]) -> dict[str, Any]:
            if self._image not in batch:
                return batch
            turned = [one.rotate(angle, Resampling.BILINEAR) for one in batch[self._image]]
            return {**batch, self._image: turned}

        return super().load_partition(partition_id).with_transform(turn)
