"""Networks and a setting that columns and studies name by their import path.

    spcacw run --engine in-process --set model=spcacw_flwr.experiments.own:resnet18
    spcacw run --engine in-process --setting spcacw_flwr.experiments.own:Photographs

The app that Flower ships has no experiments, so Ray's processes do not find them.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torchvision.models import resnet18 as torchvision_resnet18

from spcacw_flwr.config.declare import key
from spcacw_flwr.partitions.allocation import made_once
from spcacw_flwr.partitions.relabel import DigitsRelabel
from spcacw_flwr.silos.models import vgg16
from spcacw_flwr.silos.setting import SiloData

PHOTOGRAPHS = 103
"""Purpose of a setting's random stream, different from those of the core."""
WIDTHS = (16, 32, 64)
"""Channels of the convolutions of ``network``."""


def network(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return three blocks of convolution (stride 2), BatchNorm and ReLU, and a linear layer.

    For CIFAR-100 on a CPU. VGG16 with a sixteenth of its channels and the paper's dropout after
    every convolution is still at chance after 1,600 rounds. Three convolutions learn in a few
    hundred.
    """
    layers: list[nn.Module] = []
    channels, side = input_shape[0], input_shape[1]
    for width in WIDTHS:
        layers += [nn.Conv2d(channels, width, 3, stride=2, padding=1, bias=False)]
        layers += [nn.BatchNorm2d(width), nn.ReLU()]
        channels, side = width, (side + 1) // 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * side * side, num_classes))


def without_dropout(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return VGG16 with a quarter of its width, without the dropout after its convolutions."""
    model = vgg16(input_shape, num_classes, hidden=0, width=0.25)
    for layer in model.modules():
        if isinstance(layer, nn.Dropout2d):
            layer.p = 0.0
    return model


class Residual(nn.Module):
    """Adds a path of two convolutions with BatchNorm to its input, and applies the ReLU."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        halves = [(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels))
                  for _ in range(2)]  # fmt: skip
        self.path = nn.Sequential(*halves[0], nn.ReLU(), *halves[1])

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(x + path(x)), in the shape of x."""
        return nn.functional.relu(x + self.path(x))


def residual(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return a residual network of 16 channels with BatchNorm and dropout."""
    first = nn.Conv2d(input_shape[0], 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()
    last = nn.Dropout(0.2), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, num_classes)
    return nn.Sequential(*first, Residual(16), *last)


class Transformer(nn.Module):
    """Reads an image of (channels, rows, columns) as a sentence of its rows."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        channels, rows, columns = input_shape
        self.tokens = nn.Linear(channels * columns, 32)
        self.places = nn.Embedding(rows, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(32, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores (n, classes) of images (n, channels, rows, columns)."""
        tokens = self.tokens(x.transpose(1, 2).flatten(2)) + self.places.weight
        return self.head(self.encoder(tokens).mean(1))


def resnet18(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return torchvision's ResNet-18 with first layers that suit small images."""
    model = torchvision_resnet18(num_classes=num_classes)
    model.conv1 = nn.Conv2d(input_shape[0], 64, 3, padding=1, bias=False)
    model.maxpool = nn.Identity()
    return model


@dataclass(frozen=True)
class PhotographsKeys:
    """Own keys of photographs."""

    told: bool = key(True, "Whether a silo tells how many of its samples are independent.")


class Photographs(DigitsRelabel):
    """The digits, where a silo has four noisy photographs of each digit, as of a patient."""

    name = "photographs"
    Keys = PhotographsKeys

    @made_once
    def train(self, silo: int) -> SiloData:
        """Return four samples per digit, each pixel with noise of .1 standard deviations."""
        digits = super().train(silo)
        x, y = (part.repeat_interleave(4, 0) for part in (digits.x, digits.y))
        noise = 0.1 * np.random.default_rng((PHOTOGRAPHS, self.seed, silo)).standard_normal(x.shape)
        independent = float(len(digits.y)) if self.own.told else None
        return SiloData(x + torch.from_numpy(noise).float(), y, independent=independent)
