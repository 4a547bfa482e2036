"""A user's own model and loss: the worked example, and one sentence for every mistake."""

from __future__ import annotations

import logging
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.silos.models import make_loss, make_model
from spcacw_flwr.silos.protocol import Request
from spcacw_flwr.silos.setting import SiloData
from tests.conftest import make_pool, one_sentence
from tests.silos.test_gradients import plain
from tests.silos.test_models import assert_near

HERE = "tests.silos.test_own_model"
EXAMPLE = {"model": "examples.own_model:network", "loss": "examples.own_model:smoothed"}


@pytest.mark.parametrize("method", ["spcacw", "fedavg"])
def test_the_worked_example_learns(method):
    result = simulate(Config.from_keys(**EXAMPLE, epochs=3, method=method, compare_alone=False))
    assert result.accuracy[-1] > 40


def linear(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))


class Body(nn.Module):
    """A forward of its own, that draws random numbers or that vmap can trace."""

    def __init__(self, shape, classes, drawing):
        super().__init__()
        self.body, self.drawing = linear(shape, classes), drawing

    def forward(self, x):
        return self.body(nn.functional.dropout(x, 0.5) if self.drawing else x).tanh()


noisy, clear = partial(Body, drawing=True), partial(Body, drawing=False)


def squares(outputs, y):
    return (outputs - torch.eye(10)[y]).square().mean(1)


@pytest.mark.parametrize(("model", "way"), [("linear", "chain"), ("clear", "vmap"),
                                            ("noisy", "loop")])  # fmt: skip
def test_each_way_with_a_loss_of_ones_own(model, way, caplog):
    """Every way gives plain PyTorch's gradients; only the loop is told, and once."""
    own = {"model": f"{HERE}:{model}", "loss": f"{HERE}:squares"}
    pool = make_pool(Config.from_keys(**own, max_norm=0.0))
    vector = pool.initial_parameters()
    (batch,) = pool.data.batches(1, [2, 5])
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            found = pool.gradients(Request(1, (2, 5), vector))
    assert pool.compute.way == way
    assert len(caplog.records) == (way == "loop")
    expected, losses = plain(pool.model, vector, batch.x, batch.y, batch.seed_of,
                             lambda out, y: squares(out, y).mean())  # fmt: skip
    assert_near(found.rows, expected)
    torch.testing.assert_close(found.losses, losses)


# Mistakes


def three(shape):
    return 3


def raises(shape, classes):
    raise KeyError("no such\nlayer")


def number(shape, classes):
    return 3


def empty(shape, classes):
    return nn.Flatten()


def frozen(shape, classes):
    return linear(shape, classes).requires_grad_(False)


def double(shape, classes):
    return linear(shape, classes).double()


def lazy(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("three", ["cannot be made of the input shape (1, 8, 8) and 10", "TypeError"]),
        ("raises", ["KeyError", "no such"]),
        ("number", ["returned int", "no nn.Module"]),
        ("empty", ["no parameters that require a gradient"]),
        ("frozen", ["no parameters that require a gradient"]),
        ("double", ["'1.weight' in torch.float64", "float32"]),
        ("lazy", ["no values yet", "'1.weight'"]),
        ("nothing", ["cannot be imported"]),
    ],
)
def test_a_function_that_makes_no_model_is_one_sentence(model, words):
    with one_sentence(model, *words):
        make_model((1, 8, 8), 10, 64, 0, f"{HERE}:{model}")


def unflattened(shape, classes):
    return nn.Linear(3, classes)


def eleven(shape, classes):
    return linear(shape, 11)


def pair(shape, classes):
    class Pair(nn.Sequential):
        def forward(self, x):
            return super().forward(x), x

    return Pair(linear(shape, classes))


def normed(shape, classes):
    return nn.Sequential(linear(shape, 4), nn.BatchNorm1d(4), nn.Linear(4, classes))


def one_number(outputs, y):
    return cross_entropy(outputs, y)


def detached(outputs, y):
    return cross_entropy(outputs.detach(), y, reduction="none")


def nonsense(outputs, y):
    raise ValueError("no")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"model": "unflattened"}, ["cannot be applied to the data of silo 0", "(1, 8, 8)"]),
        ({"model": "eleven"}, ["outputs of shape (8, 11)", "silo 0", "have shape (8, 10)"]),
        ({"model": "pair"}, ["outputs of shape tuple", "silo 0"]),
        ({"model": "normed", "batch_size": 1}, ["silo 0", "more than 1 value per channel"]),
        ({"loss": "one_number"}, ["gives ()", "silo 0", "(8,)"]),
        ({"loss": "detached"}, ["through which gradients flow"]),
        ({"loss": "nonsense"}, ["cannot be applied to the data of silo 0 (ValueError: no)"]),
    ],
)
def test_what_cannot_be_applied_is_one_sentence_before_training(keys, words):
    named = {k: f"{HERE}:{v}" if isinstance(v, str) else v for k, v in keys.items()}
    state = torch.get_rng_state()
    pool = make_pool(Config.from_keys(**named))
    with one_sentence(*(v for v in named.values() if isinstance(v, str)), *words):
        pool.describe()
    assert torch.equal(torch.get_rng_state(), state)


def test_the_silo_with_a_single_sample_is_named(monkeypatch):
    pool = make_pool(Config.from_keys(model=f"{HERE}:normed"))
    train = pool.setting.train
    one = SiloData(train(4).x[:1], train(4).y[:1])
    monkeypatch.setattr(pool.setting, "train", lambda silo: one if silo == 4 else train(silo))
    with pytest.raises(SpcacwError, match="the data of silo 4"):
        pool.describe()


def test_the_name_of_a_loss():
    outputs, y = torch.zeros(2, 10), torch.tensor([1, 2])
    assert make_loss("cross-entropy")(outputs, y).shape == (2,)
    assert make_loss(f"{HERE}:squares") is squares
    for name, words in (
        ("crossentropy", "did you mean cross-entropy"),
        (f"{HERE}:nothing", "cannot be imported"),
        (f"{HERE}:HERE", "is no function"),
    ):
        with one_sentence(words):
            make_loss(name)
