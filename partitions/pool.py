"""Settings that deal one pool of images out to the silos and then transform each silo's share.

Both MNIST settings of the paper are of this kind (Kiselman & Levy, SP-CACW, arXiv 2606.29322,
"MNIST Label-Switching" and "MNIST Rotation"); they differ in their transforms.
"""

from abc import abstractmethod
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.keys import PartitionKeys
from spcacw_flwr.silos.setting import Setting, SiloData
from spcacw_flwr.silos.streams import SPLIT, TEST, stream

from .allocation import kept_rows, made_once
from .images import Images, load_mnist

# A test set of MNIST takes 31 MB: a process that serves 89 silos must not keep them all.
_TEST_SETS_KEPT = 8


class PooledSetting(Setting):
    """A setting whose silos hold disjoint random subsets of one pool, all of the same size.

    The pool is MNIST, unless a subclass has another one.
    """

    pool_size: ClassVar[int] = 60_000
    white: ClassVar[float] = 255.0
    """The value of a white pixel of the pool."""
    num_classes = 10
    input_shape = (1, 28, 28)

    def __init__(self, keys: PartitionKeys, seed: int) -> None:
        """Read no data; SpcacwError if the pool has too few images for all silos."""
        super().__init__(keys, seed)
        most = self.pool_size // self.num_silos
        self._size = keys.samples_per_silo or most
        if not 0 < self._size <= most:
            raise SpcacwError(
                f"{self.name} has {self.pool_size} training images, but {self.num_silos} silos × "
                f"{max(self._size, 1)} samples are {self.num_silos * max(self._size, 1)}: set "
                f"samples-per-silo to at most {most}, or use fewer silos."
            )

    def pool(self) -> Images:
        """Return all images (n, …) and labels (n,); cheap once loaded."""
        return load_mnist(self.keys.data_dir)

    def moments(self) -> tuple[float, float]:
        """Return the customary mean and standard deviation of training pixels in [0, 1]."""
        return 0.1307, 0.3081

    @abstractmethod
    def transform(self, x: Tensor, y: Tensor, silo: int) -> tuple[Tensor, Tensor]:
        """Return images (n, \\*input_shape) in [0, 1] and labels (n,) as ``silo`` sees them."""

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        return stream(self.seed, SPLIT).permutation(self.pool_size)

    def prepare(self) -> None:
        """Find, fetch and verify the data; cheap once done; SpcacwError if that fails."""
        self.pool()

    @made_once
    def train(self, silo: int) -> SiloData:
        """Return the ``samples_per_silo`` training images of ``silo``, kept after the first call.

        No two silos share an image. With the same seed and number of silos, a larger
        ``samples_per_silo`` only adds images, so points of a curve over it are comparable.
        """
        # Deal the images out like cards, so that the first n of a silo do not depend on n.
        mine = self._order[silo :: self.num_silos][: self._size]
        pool = self.pool()
        return self._view(pool.x_train[mine], pool.y_train[mine], silo)

    @partial(made_once, most=_TEST_SETS_KEPT)
    def test(self, silo: int) -> SiloData:
        """Return the test set under the transform of ``silo`` (READING row 12).

        It has all images, or ``test_samples`` that the seed draws, the same for all silos.
        """
        pool = self.pool()
        kept = kept_rows(len(pool.y_test), self.keys.test_samples, stream(self.seed, TEST))
        return self._view(pool.x_test[kept], pool.y_test[kept], silo)

    def _view(self, images: NDArray[Any], labels: NDArray[Any], silo: int) -> SiloData:
        unit = images.astype(np.float32) / np.float32(self.white)
        x = torch.from_numpy(unit.reshape(-1, *self.input_shape))
        x, y = self.transform(x, torch.from_numpy(labels.astype(np.int64)), silo)
        if self.keys.input_scale == "standard":
            mean, std = self.moments()
            x = (x - mean) / std
        return SiloData(x, y)
