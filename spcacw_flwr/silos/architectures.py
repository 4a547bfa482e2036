"""The paper's networks (appendix Network Architectures), as sequences of layers.

``width`` scales every hidden layer, for runs on a CPU; 1 is the
paper's network, and no width changes the architecture.
"""

from __future__ import annotations

from torch import Tensor, nn

VGG16_CHANNELS = (64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)
"""Output channels of the convolutions; a pooling layer follows each group."""
VGG16_SIDE = 32
"""Five poolings make one pixel of 32 × 32."""


def scaled(units: int, width: float) -> int:
    """Return the units of a hidden layer in a network of ``width``, at least one."""
    return max(1, round(units * width))


class MLP(nn.Sequential):
    """The paper's network for MNIST: flattened input, one hidden ReLU layer (784-64-10)."""

    def __init__(self, inputs: int, hidden: int, classes: int) -> None:
        super().__init__(
            nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes)
        )


class VGG16(nn.Sequential):
    """The paper's network for CIFAR-100 (its Table VGG16-CIFAR100), for images of 32 × 32.

    Convolution, BatchNorm, in-place ReLU and spatial dropout .3, thirteen times, with max-pooling
    after each group; then a classifier with one hidden layer, BatchNorm and dropout .5. The ReLU of
    the classifier is not in the table, and its place is ours. K. Simonyan and A. Zisserman, Very
    Deep Convolutional Networks for Large-Scale Image Recognition, ICLR 2015.
    """

    def __init__(self, channels: int, classes: int, width: float = 1.0) -> None:
        layers: list[nn.Module] = []
        for group in VGG16_CHANNELS:
            for units in group:
                layers += self._convolution(channels, scaled(units, width))
                channels = scaled(units, width)
            layers.append(nn.MaxPool2d(2))
        hidden = scaled(512, width)
        super().__init__(
            nn.Sequential(*layers), nn.Flatten(),
            nn.Linear(channels, hidden), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True),
            nn.Dropout(0.5), nn.Linear(hidden, classes),
        )  # fmt: skip

    @staticmethod
    def _convolution(below: int, above: int) -> list[nn.Module]:
        return [
            nn.Conv2d(below, above, 3, padding=1), nn.BatchNorm2d(above), nn.ReLU(inplace=True),
            nn.Dropout2d(0.3),
        ]  # fmt: skip


class SequenceLSTM(nn.LSTM):
    """An LSTM that returns its outputs at all positions and nothing else, as a sequence needs."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Return h at every position; h_0 = c_0 = 0."""
        return super().forward(x)[0]


class CharLSTM(nn.Sequential):
    """The paper's network for Shakespeare (its Table CharLSTM): the next symbol at every position.

    Embedding of 256, two LSTM layers of 256, a linear layer to the symbols.
    """

    def __init__(self, symbols: int, width: float = 1.0) -> None:
        units = scaled(256, width)
        super().__init__(
            nn.Embedding(symbols, units),
            SequenceLSTM(units, units, num_layers=2, batch_first=True),
            nn.Linear(units, symbols),
        )
