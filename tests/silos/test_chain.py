"""The chain rule by hand, once and twice: known answers, and what autograd gives."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from spcacw_flwr.alpha.crew import crew
from spcacw_flwr.silos import gradients
from spcacw_flwr.silos.chain import losses_and_gradient, steps_of
from spcacw_flwr.silos.curvature import ChainHessian, frozen_loss, hessian
from spcacw_flwr.silos.gradients import SiloGradients
from spcacw_flwr.silos.layout import Layout, parameters_of
from spcacw_flwr.silos.models import losses_of
from tests.silos.test_gradients import SILOS, batch, compare

CHAINS = [
    nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)),
    nn.Sequential(nn.Linear(6, 4, bias=False), nn.ReLU(inplace=True), nn.Linear(4, 3, bias=False)),
    nn.Sequential(nn.ReLU(), nn.Linear(6, 4), nn.Flatten(), nn.ReLU(), nn.Linear(4, 3), nn.ReLU()),
    nn.Sequential(nn.Linear(6, 3)),
]
POSITIONS = nn.Sequential(
    nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2), nn.Flatten(), nn.Linear(6, 3)
)
"""Flattening between linear layers."""


@pytest.mark.parametrize("model", [*CHAINS, POSITIONS])
def test_the_gradients_are_plain_pytorchs(model):
    compare(model, *batch(*((3, 2) if model is POSITIONS else (6,))), way="chain")


@pytest.mark.parametrize("samples", [1, 5, 30, 32])
def test_cross_entropy_bit_for_bit_as_autograd(samples):
    rng = torch.Generator().manual_seed(samples)
    outputs = 20 * torch.randn(3 * samples, 10, generator=rng)
    y = torch.randint(10, (3 * samples,), generator=rng)
    own = partial(losses_of)  # the same function, but not known to be
    losses, delta = losses_and_gradient(losses_of, outputs, y, 3)
    expected_losses, expected = losses_and_gradient(own, outputs, y, 3)
    assert torch.equal(losses, expected_losses)
    assert torch.equal(delta, expected)


def test_a_loss_of_ones_own_by_hand():
    """ℓ = (output − y)², two silos of two samples: its mean has the gradient (output − y)."""
    outputs, y = torch.tensor([[1.0], [2.0], [3.0], [5.0]]), torch.tensor([0, 2, 1, 1])
    losses, delta = losses_and_gradient(lambda o, y: (o[:, 0] - y) ** 2, outputs, y, 2)
    assert losses.tolist() == [0.5, 10.0]
    assert delta.flatten().tolist() == [1.0, 0.0, 2.0, 4.0]


@pytest.mark.parametrize("room", [gradients.ROOM, 1])
@pytest.mark.parametrize("model", CHAINS)
def test_a_model_for_each_silo(model, room, monkeypatch):
    monkeypatch.setattr(gradients, "ROOM", room)  # 1: a silo at a time
    layout = Layout.of(parameters_of(model))
    models = torch.randn(SILOS, layout.size, generator=torch.Generator().manual_seed(1))
    compute, rows = SiloGradients(model, layout), torch.empty(SILOS, layout.size)
    x, y = batch(6)
    losses = compute(models, x, y, rows, int)
    for k in range(SILOS):
        row = torch.empty(1, layout.size)
        loss = compute(models[k], x[k : k + 1], y[k : k + 1], row, int)
        torch.testing.assert_close(rows[k : k + 1], row)
        torch.testing.assert_close(losses[k : k + 1], loss)


@pytest.mark.parametrize("size", [2, SILOS, SILOS + 2])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("model", CHAINS)
def test_a_crew_computes_what_one_thread_does(model, own, size):
    layout = Layout.of(parameters_of(model))
    shape = (SILOS, layout.size) if own else (layout.size,)
    vector = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    compute = SiloGradients(model, layout)
    rows, expected = torch.empty(2, SILOS, layout.size)
    expected_losses = compute(vector, *batch(6), expected, int)
    with crew(size):
        losses = compute(vector, *batch(6), rows, int)
    torch.testing.assert_close(rows, expected)
    torch.testing.assert_close(losses, expected_losses)


def test_threads_share_the_silos_of_plain_perceptrons_only():
    """Elsewhere the threads are PyTorch's own, and none of them is taken away."""
    own = nn.Module()
    own.layer = nn.Linear(6, 3)
    for model, splits in [(CHAINS[0], True), (nn.Sequential(nn.Tanh()), False), (own, False)]:
        assert SiloGradients(model, Layout.of(parameters_of(model))).splits is splits


DEEP = nn.Sequential(
    nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)
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
