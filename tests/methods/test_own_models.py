"""The default method with its default keys does not end far below training alone, on any model.

A small form of `python -m spcacw_flwr.experiments studies own-models`.
"""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes

from spcacw_flwr import simulate
from spcacw_flwr.config.config import Config
from spcacw_flwr.experiments.own import without_dropout
from spcacw_flwr.silos.models import vgg16

HERE = "tests.methods.test_own_models"


def patients(silo):
    """Four silos of 30 patients with diabetes; silo 3 writes it down the other way round."""
    x, y = load_diabetes(return_X_y=True)
    x, y = x / x.std(0), (y - y.mean()) / y.std() * (-1 if silo == 3 else 1)
    mine = np.random.default_rng(0).permutation(len(x))[silo::4]
    x, y = torch.from_numpy(x[mine]).float(), torch.from_numpy(y[mine]).float()
    return (x[:30], y[:30]), (x[30:], y[30:])


REGRESSION = {
    "setting": "own", "silo": f"{HERE}:patients", "silos": 4, "classes": 1, "metric": "r2",
    "model": "logistic", "loss": "squared-error", "epochs": 40, "eta": 0.02,
}  # fmt: skip
OWN = {"epochs": 12, "model": "spcacw_flwr.experiments.own:"}


def gain(score, seeds, **keys):
    """Return by how much the default method ends better than training alone, in the mean."""
    found = []
    for seed in range(seeds):
        result = simulate(Config.from_keys(engine="in-process", seed=seed, **keys))
        found.append(result.epochs[-1][score] - result.alone[score][-1])
    return np.mean(found)


def test_linear_regression():
    assert gain("r2", 5, **REGRESSION) > -0.01


def test_logistic_regression():
    assert gain("accuracy", 5, model="logistic", epochs=20) > -1


def test_only_the_dropout_of_its_convolutions_differs_from_vgg16():
    shape, classes = (3, 32, 32), 100
    plain, paper = without_dropout(shape, classes), vgg16(shape, classes, 64, 0.25)
    dropouts = {type(layer): layer.p for layer in plain.modules() if hasattr(layer, "p")}
    assert dropouts == {torch.nn.Dropout2d: 0.0, torch.nn.Dropout: 0.5}
    plain.load_state_dict(paper.state_dict())
    x = torch.randn(2, *shape)
    assert torch.equal(plain.eval()(x), paper.eval()(x))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["residual", "Transformer"])
def test_networks(model):
    assert gain("accuracy", 2, **OWN | {"model": OWN["model"] + model}) > -1
