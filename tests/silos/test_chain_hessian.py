"""The Hessian of a plain perceptron by hand: a known answer, autograd, symmetry."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from spcacw_flwr.silos.chain import steps_of
from spcacw_flwr.silos.curvature import ChainHessian, frozen_loss, hessian
from spcacw_flwr.silos.gradients import SiloGradients
from spcacw_flwr.silos.layout import Layout, parameters_of
from spcacw_flwr.silos.losses import losses_of
from tests.silos.test_chain import CHAINS

DEEP = nn.Sequential(
    nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)
)
POSITIONS = nn.Sequential(
    nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2), nn.Flatten(), nn.Linear(6, 3)
)


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_logistic_regression_by_hand():
    """One sample x = 2 of class 0, w = 0, two classes: H = x² (diag p - p pᵀ), and p = (.5, .5).

    With v = (1, 0): (diag p - p pᵀ) v = (.25, -.25), times x² = 4.
    """
    model = nn.Sequential(nn.Linear(1, 2, bias=False)).double()
    layout = Layout.of(parameters_of(model))
    x, y = torch.tensor([[2.0]], dtype=torch.float64), torch.tensor([0])
    product = ChainHessian(steps_of(model), layout, torch.zeros(2, dtype=torch.float64), x, y)
    assert product(torch.tensor([1.0, 0.0], dtype=torch.float64)).tolist() == [1.0, -1.0]


@pytest.mark.parametrize("model", [*CHAINS, DEEP, POSITIONS])
@pytest.mark.parametrize("samples", [1, 7])
def test_products_are_those_of_autograd(model, samples):
    layout = Layout.of(parameters_of(model))
    vector = torch.randn(layout.size, generator=rng(0), dtype=torch.float64)
    shape = (samples, 3, 2) if model is POSITIONS else (samples, 6)
    x = torch.randn(shape, generator=rng(1), dtype=torch.float64)
    y = torch.randint(3, (samples,), generator=rng(2))
    by_hand = ChainHessian(steps_of(model), layout, vector, x, y)
    expected = hessian(frozen_loss(model, layout, losses_of, vector, x, y), vector)
    for seed in range(3, 6):
        v = torch.randn(layout.size, generator=rng(seed), dtype=torch.float64)
        torch.testing.assert_close(by_hand(v), expected(v), rtol=1e-12, atol=1e-12)


def test_products_are_linear_and_symmetric():
    layout = Layout.of(parameters_of(DEEP))
    draw = [torch.randn(layout.size, generator=rng(k), dtype=torch.float64) for k in range(3)]
    x, y = torch.randn(9, 6, generator=rng(8), dtype=torch.float64), torch.arange(9) % 3
    product = ChainHessian(steps_of(DEEP), layout, draw[0], x, y)
    u, v = draw[1:]
    torch.testing.assert_close(product(2 * u - 3 * v), 2 * product(u) - 3 * product(v))
    torch.testing.assert_close(u @ product(v), v @ product(u))


@pytest.mark.parametrize(
    ("model", "loss", "y"),
    [
        (nn.Sequential(nn.Linear(6, 3), nn.Tanh()), losses_of, torch.tensor([0, 1])),
        (CHAINS[3], lambda outputs, y: outputs[:, 0], torch.tensor([0, 1])),
        (CHAINS[3], losses_of, torch.tensor([[0], [1]])),
    ],
)
def test_other_models_losses_and_labels_are_left_to_autograd(model, loss, y):
    layout = Layout.of(parameters_of(model))
    compute = SiloGradients(model, layout, loss)
    assert compute.hessian(torch.zeros(layout.size), torch.zeros(2, 6), y) is None
