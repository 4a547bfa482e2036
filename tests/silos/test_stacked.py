"""A recurrent network's pass over all silos at once has the gradients of the loop."""

from functools import partial

import pytest
import torch
from torch import nn

from spcacw_flwr.silos import gradients
from spcacw_flwr.silos.curvature import SHORT, FrozenLoss, difference, hessian, twice_differentiable
from spcacw_flwr.silos.evaluation import evaluating
from spcacw_flwr.silos.gradients import SiloGradients
from spcacw_flwr.silos.layout import Layout, parameters_of
from spcacw_flwr.silos.models import SequenceLSTM, make_model
from spcacw_flwr.silos.stacked import stack_of

CLASSES, SILOS = 7, 3


def example(model):
    """The gradients of a model, its parameters, and mini-batches for each silo."""
    layout, rng = Layout.of(parameters_of(model)), torch.Generator().manual_seed(0)
    vector = layout.flatten(parameters_of(model))
    x, y = torch.randint(CLASSES, (2, SILOS, 4, 10), generator=rng)
    return SiloGradients(model, layout), vector, x, y


def network(*extra, **options):
    return nn.Sequential(nn.Embedding(CLASSES, 5), SequenceLSTM(5, 6, batch_first=True, **options),
                         nn.Linear(6, CLASSES), *extra)  # fmt: skip


@pytest.mark.parametrize("own", [False, True], ids=["one model", "a model for each silo"])
@pytest.mark.parametrize("layers", [1, 2])
def test_gradients_and_losses_are_those_of_the_loop(layers, own, monkeypatch):
    monkeypatch.setattr(gradients, "TOGETHER", 2)
    torch.manual_seed(layers)
    compute, vector, x, y = example(network(num_layers=layers))
    if own:
        vector = vector + 0.1 * torch.randn(SILOS, len(vector))
    rows, found = torch.empty(2, SILOS, vector.shape[-1])
    for length in (4, 3, 1):  # the second is filled up, as a short last batch is
        some = x[:, :length], y[:, :length]
        losses = compute(vector, *some, rows, int)
        alike = compute._together(compute._stack_pass, vector, *some, found)
        torch.testing.assert_close(alike, losses)
        torch.testing.assert_close(found, rows, rtol=1e-4, atol=1e-7)
    assert compute._longest == 4


def test_in_bf16_gradients_are_near_and_L_is_of_float32():
    compute, vector, x, y = example(network(num_layers=2))
    low = SiloGradients(compute.model, compute.layout, low=True)
    given = vector, x, y, torch.full((SILOS,), 4.0)
    (rows, losses), (found, some) = compute._stack_pass(*given), low._low_pass(*given)
    assert 1e-4 < (found - rows).norm() / rows.norm() < 0.02
    torch.testing.assert_close(some, losses, rtol=0.01, atol=0)
    points = torch.stack((vector, -vector))
    assert torch.equal(low._at_both(x[:2], y[:2], points), compute._at_both(x[:2], y[:2], points))


def test_differences_of_its_gradients_are_second_derivatives():
    compute, vector, x, y = example(network(num_layers=2))
    model, v = compute.model, torch.randn(len(vector), generator=torch.Generator().manual_seed(1))
    loss = FrozenLoss(model, compute.layout, compute.loss, vector, x[0], y[0])
    with evaluating(model), twice_differentiable(model):
        expected = hessian(nn.Identity(), loss, vector)(v)  # by autograd, not by differences
    twice = x[[0, 0]], y[[0, 0]]
    found = difference(partial(compute._at_both, *twice), vector, v, SHORT)
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02 * expected.abs().max().item())


@pytest.mark.parametrize(("model", "whole"), [
    (make_model((50,), 80, 64, 0, "char-lstm", 0.1), True),
    (network(), True),
    (network(dropout=0.5, num_layers=2), False),
    (network(bias=False), False),
    (network(nn.Dropout(0.5)), False),
    (nn.Sequential(nn.Embedding(7, 5, padding_idx=0), *network()[1:]), False),
    (nn.Sequential(nn.Embedding(7, 5), nn.LSTM(5, 6, batch_first=True)), False),
    (nn.Sequential(nn.Embedding(7, 5), nn.Linear(5, 7)), False),
])  # fmt: skip
def test_which_models_may_be_stacked(model, whole):
    assert bool(stack_of(model)) == whole
