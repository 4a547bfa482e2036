"""A network that columns name by its import path: convolutions for CIFAR-100 on a CPU.

There VGG16, however narrow, wants more rounds: at a sixteenth of its channels, with the dropout
that the paper puts behind every convolution, it has not left chance after 1,600 rounds; here three
convolutions learn in a few hundred::

    spcacw run --setting cifar100-clusters --data-dir DIR \\
        --set model=spcacw_flwr.experiments.own:network
"""

from __future__ import annotations

from torch import nn

WIDTHS = (16, 32, 64)
"""Channels of the convolutions."""


def network(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return three times convolution (every second place), BatchNorm and ReLU; a linear layer."""
    layers: list[nn.Module] = []
    channels, side = input_shape[0], input_shape[1]
    for width in WIDTHS:
        layers += [nn.Conv2d(channels, width, 3, stride=2, padding=1, bias=False)]
        layers += [nn.BatchNorm2d(width), nn.ReLU()]
        channels, side = width, (side + 1) // 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * side * side, num_classes))
