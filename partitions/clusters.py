"""Latent clusters of CIFAR-100: the silos of a cluster share classes, and noise adds others.

"We partition 20 clients into 4 distinct clusters (assigned 25 disjoint classes each) and evaluate
under varying intra-cluster noise levels" (Kiselman & Levy, SP-CACW, arXiv 2606.29322, "CIFAR-100";
the algorithm is in the appendix on data partitioning and in ``allocation``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spcacw_flwr.config.declare import key
from spcacw_flwr.config.keys import PartitionKeys
from spcacw_flwr.silos.setting import Setting, SiloData
from spcacw_flwr.silos.streams import NOISE, SPLIT, TEST, stream

from .allocation import (
    check_nobody_empty,
    clusters_of,
    counts_of,
    deal,
    latent_clusters,
    made_once,
    parse_sizes,
)
from .images import load_cifar100

_PER_CLASS = {"train": 500, "test": 100}
# Mean and deviation of the training pixels in [0, 1], per channel.
_MEAN = torch.tensor([0.5070751592371323, 0.486548873314951, 0.4409178433670343])
_STD = torch.tensor([0.2673342858792401, 0.2564384629170883, 0.27615047132568404])


@dataclass(frozen=True)
class ClusterKeys:
    """Own keys of cifar100-clusters."""

    cluster_classes: str = key(
        "",
        "Classes of each latent cluster, in order, as 25,25,25,25; empty: the same number each, "
        "P = 100/C (paper, algorithm CIFAR-100 Partitioning).",
    )
    epsilon: float = key(
        10.0,
        "ε, the heterogeneity noise of the latent clusters (paper: 10 and 0.01, called sigma in "
        "its table; READING row 14).",
        least=0,
    )
    epsilon_is: str = key(
        "variance",
        "What ε is of the noise N(0, √ε): its variance (standard deviation √ε), its deviation "
        "(standard deviation ε, as 'sigma' suggests), or its fourth-power (√ε read as the "
        "variance, so standard deviation ε^¼) (READING row 14).",
        choices=("variance", "deviation", "fourth-power"),
    )
    normalise: str = key(
        "columns",
        "columns: each class is split in proportion to its column of X, as printed; rows: each "
        "silo's row is first scaled to sum to 1, which evens out their sizes (READING row 15).",
        choices=("columns", "rows"),
    )
    test_distribution: str = key(
        "target",
        "Test images of the latent clusters: target: all, weighted by the silo's own class "
        "distribution; split: dealt out by the training images' X; uniform: all, unweighted "
        "(READING row 13).",
        choices=("target", "split", "uniform"),
    )
    augmentation: bool = key(
        True,
        "CIFAR-100: train on random crops of the images padded by 4, and random mirror images "
        "(READING row 19).",
    )


class Cifar100Clusters(Setting):
    """CIFAR-100 in 4 latent clusters of 25 classes each, with noise ε (paper).

    The allocation matrix deals out all 50,000 training images (READING row 15). The test set is
    all 10,000 test images, weighted by the silo's own classes (READING row 13).
    """

    name = "cifar100-clusters"
    Keys = ClusterKeys
    # η = .1, largest norm 5: the paper's appendix; 100 epochs: its figures.
    defaults: ClassVar[Mapping[str, Any]] = {
        "cluster_sizes": "5,5,5,5",
        "samples_per_silo": 0,
        "input_scale": "standard",
        "eta": 0.1,
        "max_norm": 5.0,
        "epochs": 100,
        "model": "vgg16",
    }
    num_classes = 100
    input_shape = (3, 32, 32)
    group_kind = "cluster"

    def __init__(self, keys: PartitionKeys, seed: int) -> None:
        """Draw X and read no data; SpcacwError if classes cannot be divided or a silo gets none."""
        super().__init__(keys, seed)
        self._clusters = clusters_of(keys)
        own, named = self.own, self.own.cluster_classes
        self.allocation = latent_clusters(
            parse_sizes(keys.cluster_sizes), self.num_classes, own.epsilon, stream(seed, NOISE),
            class_sizes=parse_sizes(named, "cluster-classes") if named else None,
            epsilon_is=own.epsilon_is, normalise=own.normalise,
        )  # fmt: skip
        """X (N, 100): the share of each class that each silo gets."""
        self._counts = self._counts_of("train")
        check_nobody_empty(self._counts, self.name)
        if own.test_distribution == "split":
            check_nobody_empty(self._counts_of("test"), f"{self.name} for the test")
        self._dealt: dict[str, list[NDArray[np.int64]]] = {}

    @property
    def groups(self) -> list[float]:
        """The cluster number of each silo: 0 five times, 1 five times, …"""
        return [float(cluster) for cluster in self._clusters]

    @property
    def expected_sizes(self) -> list[int]:
        """The number of training images that X gives each silo."""
        return [int(size) for size in self._counts.sum(axis=1)]

    def prepare(self) -> None:
        """Find, fetch, decode and verify CIFAR-100; SpcacwError if that fails."""
        load_cifar100(self.keys.data_dir)

    @made_once
    def train(self, silo: int) -> SiloData:
        """Return the images of ``silo``, kept after the first call; no two silos share an image."""
        return self._view("train", self._rows("train", silo), self.keys.samples_per_silo)

    @made_once
    def test(self, silo: int) -> SiloData:
        """Return the test images of ``silo``, with the weights of its own class distribution."""
        how = self.own.test_distribution
        if how == "split":
            return self._view("test", self._rows("test", silo), self.keys.test_samples)
        x, y = self._tests.x, self._tests.y
        return SiloData(x, y, self._weights(silo, y) if how == "target" else None)

    def augment(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """Crop and mirror a batch at random, if ``augmentation`` is set (READING row 19)."""
        if not self.own.augmentation:
            return x
        # Padding is black, and standardising moves black away from 0.
        return crop_and_flip(x, rng, self._scaled(torch.zeros(1, 3, 1, 1)).flatten())

    @cached_property
    def _tests(self) -> SiloData:
        """The test images that all silos share: 123 MB."""
        return self._view("test", self._balanced(self._labels("test")), self.keys.test_samples)

    def _weights(self, silo: int, y: Tensor) -> Tensor:
        """Weight test images so that each class has its share in the silo's training data."""
        share = torch.from_numpy(self._counts[silo] / self._counts[silo].sum())
        tested = torch.bincount(y, minlength=self.num_classes).clamp(min=1)
        return (share / tested * len(y))[y].float()

    def _balanced(self, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """Order the test images so that the first n, for any n, hold all classes about equally."""
        order = stream(self.seed, TEST).permutation(len(labels))
        turn = np.empty(len(labels), dtype=np.int64)
        for label in range(self.num_classes):
            mine = labels[order] == label
            turn[mine] = np.arange(mine.sum())
        return order[np.argsort(turn, kind="stable")]

    def _counts_of(self, split: str) -> NDArray[np.int64]:
        return counts_of(self.allocation, np.full(self.num_classes, _PER_CLASS[split]))

    def _rows(self, split: str, silo: int) -> NDArray[np.int64]:
        if split not in self._dealt:
            rng = stream(self.seed, SPLIT if split == "train" else TEST)
            self._dealt[split] = deal(self.allocation, self._labels(split), rng)
        return self._dealt[split][silo]

    def _labels(self, split: str) -> NDArray[np.int64]:
        labels = getattr(load_cifar100(self.keys.data_dir), f"y_{split}")
        return labels.astype(np.int64)

    def _view(self, split: str, rows: NDArray[np.int64], most: int) -> SiloData:
        """Return the images of the first ``most`` rows (0: of all), and their labels."""
        rows = rows[: most or None]
        images = getattr(load_cifar100(self.keys.data_dir), f"x_{split}")[rows]
        x = torch.from_numpy(images.astype(np.float32)).div_(255)
        return SiloData(self._scaled(x), torch.from_numpy(self._labels(split)[rows]))

    def _scaled(self, x: Tensor) -> Tensor:
        if self.keys.input_scale == "standard":
            return (x - _MEAN[:, None, None]) / _STD[:, None, None]
        return x


def crop_and_flip(x: Tensor, rng: np.random.Generator, edge: Tensor, pad: int = 4) -> Tensor:
    """Pad each image by ``pad``, crop it at random to its size, and mirror it with chance ½.

    The result depends only on the images ``x`` (n, channels, height, width) and the generator
    (READING row 19): the same (seed, silo, round) sees the same images in every engine. For each
    image ``rng`` draws its offsets down and to the right, in 0 … 2·pad, and whether to mirror it.
    ``edge`` (channels,) is the colour of the padding: black in the units of ``x``.
    """
    n, _, height, width = x.shape
    padded = edge.to(x)[:, None, None].repeat(n, 1, height + 2 * pad, width + 2 * pad)
    padded[:, :, pad : pad + height, pad : pad + width] = x
    down, right, mirror = (rng.integers(0, high, size=n) for high in (2 * pad + 1, 2 * pad + 1, 2))
    rows = down[:, None] + np.arange(height)
    across = np.arange(width)
    columns = right[:, None] + np.where(mirror[:, None] == 1, across[::-1], across)
    each, rows_, columns_ = (
        torch.from_numpy(i).to(x.device) for i in (np.arange(n), rows, columns)
    )
    # Indices of images, rows and columns are broadcast together. This moves the channels, a slice
    # between them, to the last axis, and permute moves them back.
    picked = padded[each[:, None, None], :, rows_[:, :, None], columns_[:, None, :]]
    return picked.permute(0, 3, 1, 2).contiguous()
