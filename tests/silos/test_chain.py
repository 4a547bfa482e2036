"""The chain rule by hand gives what autograd gives, to the last bit."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from spcacw_flwr.alpha.crew import crew
from spcacw_flwr.silos import gradients
from spcacw_flwr.silos.chain import steps_of
from spcacw_flwr.silos.gradients import SiloGradients
from spcacw_flwr.silos.layout import Layout, parameters_of
from spcacw_flwr.silos.losses import losses_and_gradient, losses_of
from tests.silos.test_gradients import BATCH, SILOS, batch, compare

CHAINS = [
    nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)),
    nn.Sequential(nn.Linear(6, 4, bias=False), nn.ReLU(inplace=True), nn.Linear(4, 3, bias=False)),
    nn.Sequential(nn.ReLU(), nn.Linear(6, 4), nn.Flatten(), nn.ReLU(), nn.Linear(4, 3), nn.ReLU()),
    nn.Sequential(nn.Linear(6, 3)),
]


@pytest.mark.parametrize("model", CHAINS)
def test_the_gradients_are_plain_pytorchs(model):
    compare(model, *batch(6), way="chain")


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


def test_flattening_between_linear_layers():
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3))
    compare(model, *batch(6, 2), way="chain")


def test_other_layers_make_no_chain():
    assert not steps_of(nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)))
    assert not steps_of(nn.Sequential(nn.Linear(6, 4), nn.Dropout(), nn.Linear(4, 3)))


def test_threads_share_the_silos_of_plain_perceptrons_only():
    """Elsewhere the threads are PyTorch's own, and none of them is taken away."""
    own = nn.Module()
    own.layer = nn.Linear(6, 3)
    for model, splits in [(CHAINS[0], True), (nn.Sequential(nn.Tanh()), False), (own, False)]:
        assert SiloGradients(model, Layout.of(parameters_of(model))).splits is splits


def test_a_batch_is_not_written_to():
    x, y = batch(6)
    before = x.clone()
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(inplace=True), nn.Linear(4, 3))
    compare(model, x, y, way="chain")
    assert torch.equal(x, before)
    assert x.shape == (SILOS, BATCH, 6)
