"""Three ways to the same gradients, and the chain rule by hand: known answers, and autograd's."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from spcacw_flwr.alpha.crew import crew
from spcacw_flwr.silos import gradients
from spcacw_flwr.silos.chain import losses_and_gradient, steps_of
from spcacw_flwr.silos.curvature import ChainHessian, FrozenLoss, hessian
from spcacw_flwr.silos.gradients import SiloGradients
from spcacw_flwr.silos.layout import Layout, parameters_of
from spcacw_flwr.silos.models import losses_of

SILOS, BATCH = 3, 5
RELU = nn.ReLU()
"""One object in two places of a model."""
CHAINS = [
    nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)),
    nn.Sequential(nn.Linear(6, 4, bias=False), nn.ReLU(inplace=True), nn.Linear(4, 3, bias=False)),
    nn.Sequential(nn.ReLU(), nn.Linear(6, 4), nn.Flatten(), nn.ReLU(), nn.Linear(4, 3), nn.ReLU()),
    nn.Sequential(nn.Linear(6, 3)),
]
DEEP = nn.Sequential(
    nn.Sequential(nn.Flatten(), nn.Linear(6, 5)), RELU, nn.Linear(5, 4), RELU, nn.Linear(4, 3)
)
POSITIONS = nn.Sequential(
    nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2), nn.Flatten(), nn.Linear(6, 3)
)
"""Flattening between linear layers."""


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


def assert_near(found, expected):
    """Near for the length of the gradient: a bias before BatchNorm has none, but for rounding."""
    gap = torch.linalg.vector_norm(found - expected, dim=-1)
    assert (gap <= 1e-4 * torch.linalg.vector_norm(expected, dim=-1)).all()


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def layout_of(model) -> Layout:
    return Layout.of(parameters_of(model))


def batch(*shape, labels=(BATCH,)):
    draws = rng(0)
    x = torch.randn(SILOS, BATCH, *shape, generator=draws)
    return x, torch.randint(3, (SILOS, *labels), generator=draws)


close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-6)


def compare(model, x, y, way, near=close):
    """Gradients are plain PyTorch's, and nothing of the model, data or chance has changed."""
    layout, state = layout_of(model), torch.get_rng_state()
    vector = torch.randn(layout.size, generator=rng(1)) / 3
    compute, rows = SiloGradients(model, layout), torch.full((SILOS, layout.size), torch.nan)
    before, sent = {name: b.clone() for name, b in model.named_buffers()}, x.clone()
    losses = compute(vector, x, y, rows, lambda k: 10 + k)
    assert compute.way == way
    assert torch.equal(x, sent)
    assert torch.equal(torch.get_rng_state(), state)
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name])
    expected, expected_losses = plain(model, vector, x, y, lambda k: 10 + k)
    near(rows, expected)
    torch.testing.assert_close(losses, expected_losses)


@pytest.mark.parametrize(
    ("model", "way"),
    [
        (Custom(), "vmap"),  # with batch statistics
        (Custom(dropout=0.5), "loop"),
        (nn.Sequential(nn.Linear(6, 4, bias=False), nn.Tanh(), nn.Linear(4, 3)), "vmap"),
        (nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.3), nn.Linear(4, 3)), "loop"),
        *((model, "chain") for model in (*CHAINS, DEEP)),
    ],
)
def test_each_way(model, way):
    compare(model, *batch(6), way=way)


def test_sequences():
    chain = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3))
    for model, way in ((chain, "chain"), (Recurrent(), "loop")):
        compare(model, *batch(6, 2, labels=(BATCH, 6)), way=way)
    compare(POSITIONS, *batch(3, 2), way="chain")


def test_what_is_a_chain():
    class Loud(nn.Sequential):
        def forward(self, x):
            return super().forward(x) * 2

    shared = nn.Linear(4, 4)
    frozen, hooked = nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4))
    frozen[0].bias.requires_grad = False
    hooked[0].register_forward_hook(lambda *_: None)
    twice = nn.Sequential(shared, shared)  # one weight, two places
    mixing = nn.Sequential(nn.Flatten(0), nn.Linear(4, 4))  # its samples
    others = [nn.Sequential(nn.Linear(6, 4), one) for one in (nn.Tanh(), nn.Dropout())]
    assert steps_of(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    for model in (twice, mixing, *others, Custom(), Loud(nn.Linear(4, 4)), frozen, hooked):
        assert not steps_of(model)


def test_losses_by_hand():
    """Equal logits over 4 classes cost log 4; a sequence's loss is the mean over positions."""
    flat = losses_of(torch.zeros(2, 4), torch.tensor([0, 3]))
    torch.testing.assert_close(flat, torch.full((2,), 4.0).log())
    logits = torch.zeros(1, 2, 4)
    logits[0, 1, 2] = 100.0  # the second position is certain, and right
    found = losses_of(logits, torch.tensor([[1, 2]]))
    torch.testing.assert_close(found, torch.tensor([4.0]).log() / 2)


@pytest.mark.parametrize("samples", [1, 5, 30, 32])
def test_cross_entropy_bit_for_bit_as_autograd(samples):
    draws = rng(samples)
    outputs = 20 * torch.randn(3 * samples, 10, generator=draws)
    y = torch.randint(10, (3 * samples,), generator=draws)
    own = partial(losses_of)  # the same function, but not known to be
    found, expected = (losses_and_gradient(loss, outputs, y, 3) for loss in (losses_of, own))
    assert all(torch.equal(*both) for both in zip(found, expected, strict=True))


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
    layout = layout_of(model)
    models = torch.randn(SILOS, layout.size, generator=rng(1))
    compute, rows = SiloGradients(model, layout), torch.empty(SILOS, layout.size)
    x, y = batch(6)
    losses = compute(models, x, y, rows, int)
    for k in range(SILOS):
        one, row = slice(k, k + 1), torch.empty(1, layout.size)
        loss = compute(models[k], x[one], y[one], row, int)
        torch.testing.assert_close(rows[one], row)
        torch.testing.assert_close(losses[one], loss)


@pytest.mark.parametrize("size", [2, SILOS, SILOS + 2])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("model", CHAINS)
def test_a_crew_computes_what_one_thread_does(model, own, size):
    layout = layout_of(model)
    vector = torch.randn((SILOS, layout.size) if own else (layout.size,), generator=rng(1))
    compute = SiloGradients(model, layout)
    rows, expected = torch.empty(2, SILOS, layout.size)
    expected_losses = compute(vector, *batch(6), expected, int)
    with crew(size):
        losses = compute(vector, *batch(6), rows, int)
    torch.testing.assert_close(rows, expected)
    torch.testing.assert_close(losses, expected_losses)


def test_logistic_regression_by_hand():
    """One sample x = 2 of class 0, w = 0, two classes: H = x² (diag p - p pᵀ), and p = (.5, .5).

    With v = (1, 0): (diag p - p pᵀ) v = (.25, -.25), times x² = 4.
    """
    model = nn.Sequential(nn.Linear(1, 2, bias=False)).double()
    x, w = torch.tensor([[2.0]], dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    product = ChainHessian(steps_of(model), layout_of(model), w, x, torch.tensor([0]))
    assert product(torch.tensor([1.0, 0.0], dtype=torch.float64)).tolist() == [1.0, -1.0]


@pytest.mark.parametrize("model", [*CHAINS, DEEP, POSITIONS])
@pytest.mark.parametrize("samples", [1, 7])
def test_products_are_those_of_autograd_linear_and_symmetric(model, samples):
    layout = layout_of(model)
    draw = [torch.randn(layout.size, generator=rng(k), dtype=torch.float64) for k in range(3)]
    shape = (samples, 3, 2) if model is POSITIONS else (samples, 6)
    x = torch.randn(shape, generator=rng(8), dtype=torch.float64)
    y = torch.randint(3, (samples,), generator=rng(9))
    product = ChainHessian(steps_of(model), layout, draw[0], x, y)
    loss = FrozenLoss(model, layout, losses_of, draw[0], x, y)
    expected = hessian(model, loss, draw[0])
    u, v = draw[1:]
    for direction in (u, v):
        close(product(direction), expected(direction), rtol=1e-12, atol=1e-12)
        of_a_gpu = loss.product(*loss.inputs, direction)
        close(of_a_gpu, expected(direction), rtol=1e-12, atol=1e-12)
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
    layout = layout_of(model)
    compute = SiloGradients(model, layout, loss)
    assert compute.hessian(torch.zeros(layout.size), torch.zeros(2, 6), y) is None
