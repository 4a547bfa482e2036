"""Settings that deal one pool of images out to the silos and then transform each silo's share.

Both MNIST settings of the paper are of this kind (Kiselman & Levy, SP-CACW, arXiv 2606.29322,
"MNIST Label-Switching" and "MNIST Rotation"); a setting differs by its transform.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.keys import PartitionKeys
from spcacw_flwr.silos.setting import Setting, SiloData
from spcacw_flwr.silos.streams import SPLIT, TEST, stream

from .allocation import kept_rows
from .images import load_mnist

# A test set of MNIST takes 31 MB: a process that serves 89 silos must not keep them all.
_TEST_SETS_KEPT = 8


@dataclass(frozen=True)
class Pool:
    """All images and labels, before they are dealt out.

    ``x_train``, ``x_test`` are (n, ...) with pixels in [0, ``white``]; ``y_train``, ``y_test`` are
    (n,); ``mean`` and ``std`` are those of the training pixels in [0, 1].
    """

    x_train: NDArray[np.generic]
    y_train: NDArray[np.generic]
    x_test: NDArray[np.generic]
    y_test: NDArray[np.generic]
    white: float
    mean: float
    std: float


class PooledSetting(Setting):
    """A setting whose silos hold disjoint random subsets of one pool, all of the same size.

    The pool is MNIST, unless a subclass says otherwise.
    """

    pool_size: ClassVar[int] = 60_000
    num_classes = 10
    input_shape = (1, 28, 28)

    def __init__(self, keys: PartitionKeys, seed: int) -> None:
        """Read no data; SpcacwError if the pool has not enough images for every silo."""
        super().__init__(keys, seed)
        self._train_kept: dict[int, SiloData] = {}
        self._test_kept: dict[int, SiloData] = {}
        most = self.pool_size // self.num_silos
        self._size = keys.samples_per_silo or most
        if not 0 < self._size <= most:
            raise SpcacwError(
                f"{self.name} has {self.pool_size} training images, but {self.num_silos} silos × "
                f"{max(self._size, 1)} samples are {self.num_silos * max(self._size, 1)}: set "
                f"samples-per-silo to at most {most}, or use fewer silos."
            )

    def pool(self) -> Pool:
        """Return the pool, with the customary mean and std; cheap once it was loaded."""
        return Pool(*load_mnist(self.keys.data_dir), white=255.0, mean=0.1307, std=0.3081)

    @abstractmethod
    def transform(self, x: Tensor, y: Tensor, silo: int) -> tuple[Tensor, Tensor]:
        """Return images (n, \\*input_shape) in [0, 1] and labels (n,) as ``silo`` sees them."""

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        return stream(self.seed, SPLIT).permutation(self.pool_size)

    def prepare(self) -> None:
        """Find, fetch and verify the data; cheap once done; SpcacwError if it cannot be had."""
        self.pool()

    def train(self, silo: int) -> SiloData:
        """Return the ``samples_per_silo`` training images of ``silo``, kept after the first call.

        No two silos share an image. With the same seed and number of silos, a larger
        ``samples_per_silo`` only adds images, so curves over it compare like with like.
        """
        self.check_silo(silo)
        if silo not in self._train_kept:
            pool = self.pool()
            # Deal the images out like cards, so that the first n of a silo do not depend on n.
            mine = self._order[silo :: self.num_silos][: self._size]
            self._train_kept[silo] = self._view(pool, pool.x_train[mine], pool.y_train[mine], silo)
        return self._train_kept[silo]

    def test(self, silo: int) -> SiloData:
        """Return the test set under the transform of ``silo`` (READING row 12).

        All of it, or the ``test_samples`` images that the seed draws, the same for all silos.
        """
        self.check_silo(silo)
        if silo not in self._test_kept:
            pool = self.pool()
            while len(self._test_kept) >= _TEST_SETS_KEPT:
                self._test_kept.pop(next(iter(self._test_kept)))  # the one made first
            kept = kept_rows(len(pool.y_test), self.keys.test_samples, stream(self.seed, TEST))
            self._test_kept[silo] = self._view(pool, pool.x_test[kept], pool.y_test[kept], silo)
        return self._test_kept[silo]

    def _view(
        self, pool: Pool, images: NDArray[np.generic], labels: NDArray[np.generic], silo: int
    ) -> SiloData:
        unit = images.astype(np.float32) / np.float32(pool.white)
        x = torch.from_numpy(unit.reshape(-1, *self.input_shape))
        x, y = self.transform(x, torch.from_numpy(labels.astype(np.int64)), silo)
        if self.keys.input_scale == "standard":
            x = (x - pool.mean) / pool.std
        return SiloData(x, y)
