"""What kinds of models work, two epochs of each in process: the table in docs/models.md."""

import logging
import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from spcacw_flwr.config.config import Config
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.silos import curvature
from spcacw_flwr.silos.layout import others_of, parameters_of
from spcacw_flwr.silos.models import SequenceLSTM
from spcacw_flwr.silos.protocol import Request
from tests.conftest import make_pool

HERE = "tests.silos.test_what_works"
PAGE = Path(__file__).parents[2] / "docs" / "models.md"


class Attention(nn.Module):
    """Reads an image of the digits as eight tokens, its rows."""

    def __init__(self, shape, classes):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 1), nn.Linear(8, classes)

    def forward(self, x):
        return self.head(self.encoder(x.squeeze(1)).mean(1))


class Tokens(nn.Module):
    """Reads the brightness of each pixel as a token."""

    def __init__(self, table, shape, classes):
        super().__init__()
        self.table, self.head = table(17 * 64, 4), nn.Linear(64 * 4, classes)

    def forward(self, x):
        tokens = (x.flatten(1) * 16).round().long() + 17 * torch.arange(64)
        bags = isinstance(self.table, nn.EmbeddingBag)
        return self.head(self.table(tokens.view(-1, 1) if bags else tokens).reshape(len(x), -1))


embedding, embedding_bag = partial(Tokens, nn.Embedding), partial(Tokens, nn.EmbeddingBag)


class Scores(nn.Module):
    """Returns an object with ``logits``, as Hugging Face's classifiers do."""

    def __init__(self, shape, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, classes))

    def forward(self, x):
        return SimpleNamespace(loss=None, logits=self.body(x))


def recurrent(shape, classes):
    """An LSTM over the rows of an image."""
    rows = nn.Flatten(1, 2), SequenceLSTM(shape[-1], 8, batch_first=True)
    return nn.Sequential(*rows, nn.Flatten(), nn.Linear(8 * shape[-2], classes))


def group_norm(shape, classes):
    norm = nn.GroupNorm(2, 8)
    return nn.Sequential(nn.Conv2d(1, 8, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(288, classes))


def frozen_backbone(shape, classes):
    backbone = nn.Sequential(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten())
    return nn.Sequential(backbone.requires_grad_(False), nn.Linear(576, classes))


class LowRank(nn.Module):
    """A frozen layer, to which the product of two thin matrices is added."""

    def __init__(self, shape, classes):
        super().__init__()
        self.frozen = nn.Linear(64, classes).requires_grad_(False)
        self.thin = nn.Sequential(nn.Linear(64, 4, bias=False), nn.Linear(4, classes, bias=False))

    def forward(self, x):
        return self.frozen(x.flatten(1)) + self.thin(x.flatten(1))


class Halves(nn.Module):
    """Reads the upper and the lower half of an image by a layer each."""

    def __init__(self, shape, classes):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(32, 16) for _ in range(2))
        self.head = nn.Linear(32, classes)

    def forward(self, x):
        inputs = zip(self.parts, x.flatten(1).chunk(2, 1), strict=True)
        return self.head(torch.cat([part(half).relu() for part, half in inputs], 1))


def parities(silo):
    """Digits with three labels: odd, prime, more than 4; of silo 2 the opposite."""
    digits = load_digits()
    d, x = torch.from_numpy(digits.target), torch.from_numpy(digits.images).float()[:, None] / 16
    y = torch.stack([d % 2 == 1, torch.isin(d, torch.tensor([2, 3, 5, 7])), d > 4], 1)
    here = slice(silo * 100, silo * 100 + 100)
    tested = slice(1000, None)
    return (x[here], y[here] ^ (silo == 2)), (x[tested], y[tested])


@pytest.mark.parametrize("model", ["mlp", f"{HERE}:group_norm", f"{HERE}:embedding"])
def test_several_labels_a_sample(model):
    assert "several labels a sample" in PAGE.read_text()
    result = simulate(Config.from_keys(
        setting="own", silo=f"{HERE}:parities", silos=3, classes=3, model=model, epochs=8, eta=0.2
    ))  # fmt: skip
    _, same, opposite = result.alpha
    assert same > 0.2 > 0.05 > opposite
    last, first = result.epochs[-1], result.epochs[0]
    assert last["accuracy"] > first["accuracy"]
    assert {"log-loss", "brier"} <= set(last)
    assert "auroc" not in last


WORKS = {
    "examples.own_model:network": ("residual CNN with BatchNorm", "loop"),
    f"{HERE}:Attention": ("`nn.TransformerEncoder`, dropout", "loop"),
    f"{HERE}:group_norm": ("CNN with GroupNorm", "loop"),
    f"{HERE}:embedding": ("`nn.Embedding`", "vmap"),
    f"{HERE}:embedding_bag": ("`nn.EmbeddingBag`", "vmap"),
    f"{HERE}:frozen_backbone": ("trained head on a frozen backbone", "loop"),
    f"{HERE}:LowRank": ("low-rank adapters (LoRA) on frozen layers", "vmap"),
    f"{HERE}:Halves": ("several inputs", "vmap"),
    f"{HERE}:Scores": ("outputs with `.logits` (Hugging Face)", "vmap"),
}


@pytest.mark.parametrize("model", WORKS)
def test_it_learns(model):
    keys = {"model": model, "epochs": 2, "eta": 0.2, "compare_alone": False}
    result = simulate(Config.from_keys(**keys))
    assert result.epochs[1]["loss"] < result.epochs[0]["loss"]
    assert 0 < result.epochs[-1]["L"] < math.inf
    pool = make_pool(Config.from_keys(**keys))
    pool.gradients(Request(1, (0, 1), pool.initial_parameters()))
    assert set(result.parameters) == set(pool.model.state_dict())
    assert f"| {WORKS[model][0]} | {pool.compute.way} |" in PAGE.read_text()
    assert pool.compute.way == WORKS[model][1]


def test_only_what_is_trained_travels():
    pool = make_pool(Config.from_keys(model=f"{HERE}:frozen_backbone"))
    assert list(parameters_of(pool.model)) == ["1.weight", "1.bias"]
    assert pool.layout.size == 5770
    assert "0.0.weight" in others_of(pool.model, {}, {})


def smoothness(model: str) -> float:
    """L at w_0."""
    pool = make_pool(Config.from_keys(model=f"{HERE}:{model}"))
    return pool.smoothness(pool.initial_parameters(), 1, 0)


@pytest.mark.parametrize(("model", "step", "near"), [
    ("Attention", curvature.STEP, 0.1), ("group_norm", curvature.STEP, 0.1),
    ("recurrent", curvature.SHORT, 0.001),
])  # fmt: skip
def test_differences_measure_the_same_curvature(model, step, near, monkeypatch):
    """They are the rule for recurrent models, of which second derivatives take longer."""
    chosen = smoothness(model)
    monkeypatch.setattr(curvature, "SHORT", step)
    for by_differences in (False, True):
        monkeypatch.setattr(curvature, "by_differences", lambda _, yes=by_differences: yes)
        found = smoothness(model)
        assert found == pytest.approx(chosen, rel=near)
        assert (found == chosen) == (by_differences == (model == "recurrent"))


def test_differences_are_said_once(caplog):
    curvature._say_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert smoothness("embedding_bag") > 0
    assert [r for r in caplog.messages if "differences of gradients" in r] == [
        "L is measured by differences of gradients: PyTorch cannot derive the model twice "
        "(the derivative for '_embedding_bag_backward' is not implemented.)"
    ]


def test_another_error_of_the_second_derivative_is_not_hidden():
    class Broken(torch.autograd.Function):
        """The identity, whose second derivative fails."""

        @staticmethod
        def forward(ctx, x, order):
            ctx.order = order
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            if ctx.order == 2:
                raise RuntimeError("out of memory")
            return Broken.apply(g, 2), None

    w = torch.ones(3)
    product = curvature.hessian(nn.Identity(), lambda w: Broken.apply(w, 1).square().sum(), w)
    with pytest.raises(RuntimeError, match="out of memory"):
        product(w)
