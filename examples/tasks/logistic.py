"""Logistic regression, as in scikit-learn; use this file in place of hospitals/task.py."""

import torch
from sklearn.datasets import load_wine
from sklearn.preprocessing import StandardScaler
from torch import nn

HOSPITALS = 4


def load(silo):
    """Return training and test data, scaled by the hospital's own training data."""
    x, y = load_wine(return_X_y=True)
    x, y = x[silo::HOSPITALS], torch.from_numpy(y[silo::HOSPITALS])
    x = torch.from_numpy(StandardScaler().fit(x[::2]).transform(x)).float()
    if silo == 3:
        y = 2 - y
    return (x[::2], y[::2]), (x[1::2], y[1::2])


def network():
    """Return the linear model; the key ``weight_decay`` of SPCACW is the ridge penalty."""
    return nn.Linear(13, 3)
