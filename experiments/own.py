"""A network and a method that studies and columns name by their import paths.

:func:`network` is a convolutional network for CIFAR-100 on a CPU, where VGG16, however narrow,
wants more rounds: at a sixteenth of its channels, with the dropout that the paper puts behind every
convolution, it has not left chance after 1,600 rounds; here three convolutions learn in a few
hundred::

    spcacw run --setting cifar100-clusters --data-dir DIR \\
        --set model=spcacw_flwr.experiments.own:network
"""

from __future__ import annotations

from torch import Tensor, nn

from spcacw_flwr.config.config import Config
from spcacw_flwr.methods.spcacw import SPCACWMethod
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.protocol import Federation, Replies, Request
from spcacw_flwr.silos.setup import setting_of

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


class FreshReference(SPCACWMethod):
    """SP-CACW whose biases are relative to a mini-batch gradient of the target's *test* data.

    It is no method to use: it shows what such data would give.
    """

    def __init__(self, config: Config, federation: Federation, parameters: Tensor) -> None:
        super().__init__(config, federation, parameters)
        setting, target = setting_of(config), federation.target
        setting.prepare()
        unseen = setting.test(target)
        setting.train = lambda silo: unseen  # type: ignore[method-assign]
        self.unseen = SiloPool(config, setting, [target])
        self.fresh = parameters[:0]

    def observe(self, request: Request, replies: Replies) -> None:
        """Take L, and the reference at the model that the silos were asked at, before the step."""
        super().observe(request, replies)
        at = request.points, request.round, [self.target]
        self.fresh = self.unseen.gradients(*at).rows[0]

    def track(self, replies: Replies) -> Tensor:
        """Update b̂ relative to the reference."""
        self.bias.update(replies.gradients, replies.silos, self.fresh)
        return replies.gradients
