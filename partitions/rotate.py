"""Rotation: silos along a circle of angles, with no sharp clusters.

"We simulate a continuous manifold of 89 clients with sequential 4° angular rotations" (Kiselman &
Levy, SP-CACW, arXiv 2606.29322, "MNIST Rotation (Feature Shift)"). Labels mean the same at
all silos; the images of silo i are turned by i steps.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from spcacw_flwr.config.declare import key
from spcacw_flwr.config.keys import PartitionKeys

from .allocation import counted_silos
from .pool import PooledSetting


def rotated(x: Tensor, angle: float, interpolation: str = "bilinear") -> Tensor:
    """Turn images (n, channels, height, width) counter-clockwise by ``angle`` degrees.

    The size stays. Beyond the edge are zeros, which have the same weights as pixels (READING row
    11). Multiples of 90° of square images (n, …) move pixels exactly, and 0° copies them.
    ``interpolation`` is "bilinear" or "nearest". The result is that of torchvision's ``rotate`` on
    tensors, bit for bit (tested), without its import of some seconds.
    """
    height, width = x.shape[-2:]
    if angle % 180 == 0 or (angle % 90 == 0 and height == width):
        return torch.rot90(x, round(angle / 90), (-2, -1)).clone()
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    across = torch.linspace(0.5 - width / 2, width / 2 - 0.5, width)
    down = torch.linspace(0.5 - height / 2, height / 2 - 0.5, height)
    places = torch.stack(
        torch.broadcast_tensors(across, down[:, None], torch.ones(())), dim=-1
    ).view(1, -1, 3)
    turn = torch.tensor([[[cos, sin], [-sin, cos], [0.0, 0.0]]])
    seen = places @ (turn / torch.tensor([width / 2, height / 2]))
    grid = seen.view(1, height, width, 2).expand(len(x), -1, -1, -1)
    return grid_sample(x, grid, mode=interpolation, padding_mode="zeros", align_corners=False)


@dataclass(frozen=True)
class RotateKeys:
    """Own keys of mnist-rotate."""

    rotation_step: float = key(
        4.0,
        "Degrees: silo i of the rotation setting sees its images turned counter-clockwise by "
        'i · rotation-step (READING row 11; paper: "sequential 4° angular rotations").',
        least=0,
        below=360,
    )
    rotation_interpolation: str = key(
        "bilinear",
        "How a turned image is read off the old one; zeros enter at the edge (READING row 11).",
        choices=("bilinear", "nearest"),
    )
    oracle_radius: float = key(
        12.0,
        "Degrees: the Oracles of the rotation setting learn from the silos within this angle of "
        "the target, bound included; the paper reports no Oracle there (READING row 16).",
        least=0,
        most=180,
    )


class MnistRotate(PooledSetting):
    """Silo i's training images and its 10,000 test images are rotated by i · ``rotation_step``.

    Images are rotated in [0, 1], before ``input_scale``, so that new pixels at the edge are black.
    """

    name = "mnist-rotate"
    Keys = RotateKeys
    # 500 samples in [0, 1]: READING row 8. η = .01, 50 epochs: the paper's appendices.
    defaults: ClassVar[Mapping[str, Any]] = {
        "silos": 89,
        "samples_per_silo": 500,
        "input_scale": "unit",
        "eta": 0.01,
        "epochs": 50,
    }
    group_kind = "angle"

    def __init__(self, keys: PartitionKeys, seed: int) -> None:
        """Fix the angles, read no data; SpcacwError without ``silos`` or with too few images."""
        super().__init__(keys, seed)
        self.oracle_radius = self.own.oracle_radius

    @cached_property
    def groups(self) -> list[float]:
        """The angle of each silo in degrees, in [0, 360)."""
        silos = range(counted_silos(self.keys, self.name))
        return [silo * self.own.rotation_step % 360 for silo in silos]

    def transform(self, x: Tensor, y: Tensor, silo: int) -> tuple[Tensor, Tensor]:
        """Return the images turned by the silo's angle, and the labels unchanged."""
        return rotated(x, self.groups[silo], self.own.rotation_interpolation), y
