"""Your own data in about 30 lines: four hospitals and the Wisconsin breast cancer data.

    spcacw run --setting own --set silo=examples.own_data:load --set silos=4 --set classes=2 \\
        --set epochs=20

You write one function. It gets a silo's number and returns the silo's training and test data, each
a pair of tensors or a PyTorch Dataset. Hospital 3 swaps the labels malign and benign, and the
target, hospital 0, does not know this.
"""

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor
from torch.utils.data import TensorDataset

HOSPITALS = 4
Pair = tuple[Tensor, Tensor]


def load(silo: int) -> tuple[TensorDataset, Pair]:
    """Return the training and test data of one hospital: 30 features, 2 classes."""
    data = load_breast_cancer()
    features = (data.data - data.data.mean(axis=0)) / data.data.std(axis=0)
    mine = np.random.default_rng(0).permutation(len(features))[silo::HOSPITALS]
    x = torch.from_numpy(features[mine]).float()
    y = torch.from_numpy(data.target[mine])
    if silo == 3:
        y = 1 - y
    return TensorDataset(x[:40], y[:40]), (x[40:], y[40:])
