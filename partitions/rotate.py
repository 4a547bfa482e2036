"""Rotation: silos along a circle of angles, with no sharp clusters.

"We simulate a continuous manifold of 89 clients with sequential 4° angular rotations" (Kiselman &
Levy, SP-CACW, arXiv 2606.29322, "MNIST Rotation (Feature Shift)"). Labels mean the same everywhere;
silo i sees its images turned by i steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from partitions.keys import PartitionKeys
from partitions.pool import Pool, PooledSetting, mnist_pool
from partitions.sizes import counted_silos

Image = TypeVar("Image")
"""A tensor of images, or a PIL image."""


def rotated(x: Image, angle: float, interpolation: str = "bilinear") -> Image:
    """Turn images (n, channels, height, width), or a PIL image, counter-clockwise by degrees.

    Zeros beyond the edge, size kept (READING row 11). Multiples of 90° of square images (n, …) move
    pixels exactly, and 0° copies them. ``interpolation`` is "bilinear" or "nearest".
    """
    # Imported here since torchvision takes seconds, and other settings do without it.
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2.functional import rotate

    # No fill value: zeros, blended into the edge by the same bilinear weights as pixels.
    return rotate(x, angle, interpolation=InterpolationMode(interpolation))


class MnistRotate(PooledSetting):
    """Silo i holds images rotated by i · ``rotation_step``, and is tested on all 10,000 so turned.

    Images are rotated in [0, 1], before ``input_scale``, so that what enters at the edge is black.
    """

    name = "mnist-rotate"
    # 500 samples in [0, 1]: READING row 8. η = .01, 50 epochs: the paper's appendices.
    defaults: ClassVar[Mapping[str, Any]] = {
        "silos": 89,
        "samples_per_silo": 500,
        "input_scale": "unit",
        "eta": 0.01,
        "epochs": 50,
    }
    num_classes = 10
    input_shape = (1, 28, 28)
    group_kind = "angle"
    pool_size = 60_000

    def __init__(self, keys: PartitionKeys, seed: int) -> None:
        """Fix the angles; reads no data. SpcacwError without ``silos``, or for too many images."""
        silos = range(counted_silos(keys, self.name))
        self._angles = [silo * keys.rotation_step % 360 for silo in silos]
        super().__init__(keys, seed)

    @property
    def groups(self) -> list[float]:
        """The angle of each silo in degrees, in [0, 360)."""
        return self._angles

    def pool(self) -> Pool:
        """Return MNIST from ``data_dir``."""
        return mnist_pool(self.keys.data_dir)

    def transform(self, x: Tensor, y: Tensor, silo: int) -> tuple[Tensor, Tensor]:
        """Return the images turned by the silo's angle, and the labels as they are."""
        return rotated(x, self._angles[silo], self.keys.rotation_interpolation), y
