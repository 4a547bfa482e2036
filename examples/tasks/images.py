"""Images, and a network of torchvision layers; use this file in place of hospitals/task.py."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torchvision.ops import Conv2dNormActivation

HOSPITALS = 4


def load(silo):
    """Return 200 training and 200 test images; hospital 3 labels each digit as the next one."""
    data = load_digits()
    x = torch.from_numpy(data.images).float()[silo::HOSPITALS, None] / 16
    y = torch.from_numpy(data.target)[silo::HOSPITALS]
    if silo == 3:
        y = (y + 1) % 10
    return (x[:200], y[:200]), (x[200:400], y[200:400])


def network():
    """Return convolutions with BatchNorm and ReLU, and a linear layer."""
    layers = [Conv2dNormActivation(i, o, stride=s) for i, o, s in ((1, 16, 1), (16, 32, 2))]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10))
