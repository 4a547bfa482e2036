"""Three ways to the same gradients: one pass of a chain, vmap, and a silo at a time."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from spcacw_flwr.silos.chain import steps_of
from spcacw_flwr.silos.gradients import SiloGradients, losses_of
from spcacw_flwr.silos.layout import Layout, parameters_of
from spcacw_flwr.silos.models import make_model

SILOS, BATCH = 3, 5
RELU = nn.ReLU()
"""One object in two places of a model."""


class Custom(nn.Module):
    """A forward of its own, so that it is no chain; BatchNorm has buffers."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, x):
        return self.last(self.dropout(torch.tanh(self.norm(self.first(x)))))


class Recurrent(nn.Module):
    """An LSTM over six steps; a label for each."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.last = nn.LSTM(2, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.lstm(x)[0])


def mean_cross_entropy(outputs, y):
    return cross_entropy(outputs.flatten(0, -2), y.flatten())


def plain(model, vector, x, y, seed_of=None, mean_loss=mean_cross_entropy):
    """Each silo by itself, in plain PyTorch."""
    rows, losses = [], []
    torch.nn.utils.vector_to_parameters(vector, model.parameters())
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    for k in range(len(x)):
        if seed_of:
            torch.manual_seed(seed_of(k))
        model.zero_grad()
        loss = mean_loss(model(x[k]), y[k])
        loss.backward()
        rows.append(torch.nn.utils.parameters_to_vector([p.grad for p in model.parameters()]))
        losses.append(loss.detach())
    model.load_state_dict(buffers, strict=False)
    return torch.stack(rows), torch.stack(losses)


def compare(model, x, y, way):
    layout = Layout.of(parameters_of(model))
    vector = torch.randn(layout.size, generator=torch.Generator().manual_seed(1)) / 3
    compute, rows = SiloGradients(model, layout), torch.full((SILOS, layout.size), torch.nan)
    before, sent = {name: b.clone() for name, b in model.named_buffers()}, x.clone()
    state = torch.get_rng_state()
    losses = compute(vector, x, y, rows, lambda k: 10 + k)
    assert compute.way == way
    assert torch.equal(x, sent)
    assert torch.equal(torch.get_rng_state(), state)
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name])
    expected, expected_losses = plain(model, vector, x, y, lambda k: 10 + k)
    torch.testing.assert_close(rows, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(losses, expected_losses)


def batch(*shape, labels=(BATCH,)):
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(SILOS, BATCH, *shape, generator=rng)
    return x, torch.randint(3, (SILOS, *labels), generator=rng)


@pytest.mark.parametrize(
    ("model", "way"),
    [
        (Custom(), "vmap"),  # with batch statistics
        (Custom(dropout=0.5), "loop"),
        (make_model((6,), 3, 4, 0), "chain"),
        (nn.Sequential(nn.Linear(6, 4, bias=False), nn.Tanh(), nn.Linear(4, 3)), "vmap"),
        (nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(6, 4)), nn.ReLU()), "chain"),
        (nn.Sequential(nn.Linear(6, 4), RELU, nn.Linear(4, 4), RELU, nn.Linear(4, 3)), "chain"),
        (nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.3), nn.Linear(4, 3)), "loop"),
    ],
)
def test_each_way(model, way):
    compare(model, *batch(6), way=way)


def test_sequences():
    chain = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3))
    for model, way in ((chain, "chain"), (Recurrent(), "loop")):
        compare(model, *batch(6, 2, labels=(BATCH, 6)), way=way)


class Noisy(Custom):
    """Draws without a layer that says so."""

    def forward(self, x):
        return super().forward(nn.functional.dropout(x, 0.5))


def test_what_vmap_refuses_falls_back_to_the_loop_and_says_so_once(caplog):
    with caplog.at_level(logging.WARNING):
        compare(Noisy(), *batch(6), way="loop")
    assert "Noisy cannot be batched over silos" in caplog.text


def test_what_is_a_chain():
    shared = nn.Linear(4, 4)
    assert steps_of(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    assert not steps_of(nn.Sequential(shared, shared))  # one weight, two places
    assert not steps_of(Custom())
    for other in (nn.Tanh(), nn.Dropout()):
        assert not steps_of(nn.Sequential(nn.Linear(6, 4), other, nn.Linear(4, 3)))
    assert not steps_of(nn.Sequential(nn.Flatten(0), nn.Linear(4, 4)))  # would mix samples

    class Loud(nn.Sequential):
        def forward(self, x):
            return super().forward(x) * 2

    assert not steps_of(Loud(nn.Linear(4, 4)))
    frozen, hooked = nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4))
    frozen[0].bias.requires_grad = False
    hooked[0].register_forward_hook(lambda *_: None)
    assert not steps_of(frozen)
    assert not steps_of(hooked)


def test_losses_by_hand():
    """Equal logits over 4 classes cost log 4; a sequence's loss is the mean over positions."""
    flat = losses_of(torch.zeros(2, 4), torch.tensor([0, 3]))
    torch.testing.assert_close(flat, torch.full((2,), 4.0).log())
    logits = torch.zeros(1, 2, 4)
    logits[0, 1, 2] = 100.0  # the second position is certain, and right
    found = losses_of(logits, torch.tensor([[1, 2]]))
    torch.testing.assert_close(found, torch.tensor([4.0]).log() / 2)
