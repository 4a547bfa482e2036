"""A user's own model and loss: the worked example, and one sentence for every mistake."""

import logging
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.parametrizations import spectral_norm

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import Given, SpcacwError
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.silos.models import make_loss, make_model
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.protocol import LOSSES, Request
from spcacw_flwr.silos.setting import SiloData
from tests.conftest import make_pool, one_sentence
from tests.silos.test_gradients import assert_near, plain

HERE = "tests.silos.test_own_model"
EXAMPLE = {"model": "examples.own_model:network", "loss": "examples.own_model:smoothed"}


@pytest.mark.parametrize("method", ["spcacw", "fedavg"])
def test_the_worked_example_learns(method):
    result = simulate(Config.from_keys(**EXAMPLE, epochs=3, method=method, compare_alone=False))
    assert result.accuracy[-1] > 40


def linear(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


class Body(nn.Module):
    """A forward of its own, that draws random numbers or that vmap can trace."""

    def __init__(self, shape, classes, drawing):
        super().__init__()
        self.body, self.drawing = linear(shape, classes), drawing

    def forward(self, x):
        return self.body(nn.functional.dropout(x, 0.5) if self.drawing else x).tanh()


clear, noisy = partial(Body, drawing=False), partial(Body, drawing=True)


def test_what_a_model_draws_in_evaluation_follows_from_the_seed():
    """Metrics, losses of whole folds and L: whatever was drawn before, and nothing is used up."""
    pool = pool_of(model=noisy)
    vector = pool.initial_parameters()
    whole = Request(1, (0,), vector.unsqueeze(0), LOSSES, whole=True)
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        figures = pool.evaluate(vector, 0).figures
        found.append((figures, pool.losses(whole).item(), pool.smoothness(vector, 1, 0)))
        assert torch.equal(torch.get_rng_state(), before)
    assert found[0] == found[1]
    assert pool.smoothness(vector, 2, 0) != found[0][2]  # another mini-batch, another start


def squares(outputs, y):
    return (outputs - torch.eye(10)[y]).square().mean(1)


def pool_of(batch_size=32, **own) -> SiloPool:
    """Silos with a model and a loss of one's own."""
    given = {name: Given(function) for name, function in own.items()}
    config = Config.from_keys(max_norm=0.0, batch_size=batch_size)
    return make_pool(replace(config, training=replace(config.training, **given)))


@pytest.mark.parametrize(("model", "way"), [(linear, "chain"), (clear, "vmap"), (noisy, "loop")])
def test_each_way_with_a_loss_of_ones_own(model, way, caplog):
    """Every way gives plain PyTorch's gradients; only the loop is told, and once."""
    pool = pool_of(model=model, loss=squares)
    vector = pool.initial_parameters()
    (batch,) = pool.data.batches(1, [2, 5])
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            found = pool.gradients(Request(1, (2, 5), vector))
    assert pool.compute.way == way
    assert pool.splits == (way == "chain")  # elsewhere no thread of PyTorch's is taken away
    assert [line.partition(",")[0] for line in caplog.messages] == (
        ["Body cannot be batched over silos"] if way == "loop" else []
    )
    expected, losses = plain(pool.model, vector, batch.x, batch.y, batch.seed_of,
                             lambda out, y: squares(out, y).mean())  # fmt: skip
    assert_near(found.rows, expected)
    torch.testing.assert_close(found.losses, losses)


def normed(shape, classes):
    return nn.Sequential(linear(shape, 4), nn.BatchNorm1d(4), nn.Linear(4, classes))


class Pair(nn.Linear):
    def forward(self, x):
        return super().forward(x), x


class Mute(Pair):
    @torch.no_grad()
    def forward(self, x):
        return super().forward(x)[0].mean((1, 2))


class Looking(nn.Module):
    """Looks pixels up in a table, as words."""

    def __init__(self, classes, **how):
        super().__init__()
        self.table, self.last = nn.Embedding(17, 4, **how), nn.Linear(256, classes)

    def forward(self, x):
        return self.last(self.table((16 * x.flatten(1)).long()).flatten(1))


def raising(*given):
    raise KeyError("no such\nlayer")


NO_MODEL = [
    (lambda shape: 3, ["cannot be made of the input shape (1, 8, 8) and 10", "TypeError"]),
    (raising, ["KeyError", "no such"]),
    (lambda shape, c: 3, ["returned int", "no nn.Module"]),
    (lambda shape, c: torch.jit.trace(nn.Linear(3, c), torch.ones(3)), ["returned TorchScript"]),
    (lambda shape, c: nn.Flatten(), ["no parameters that require a gradient"]),
    (lambda shape, c: linear(shape, c).requires_grad_(False), ["no parameters that require"]),
    (lambda shape, c: linear(shape, c).double(), ["'1.weight' in torch.float64", "float32"]),
    (lambda shape, c: nn.Sequential(nn.LazyLinear(c)), ["no values yet", "'0.weight'"]),
]


@pytest.mark.parametrize(("function", "words"), NO_MODEL)
def test_a_function_that_makes_no_model_is_one_sentence(function, words):
    own = Given(function)
    with one_sentence(own, *words):
        make_model((1, 8, 8), 10, 64, 0, own)


def test_a_model_that_is_not_there_is_one_sentence():
    with one_sentence(f"{HERE}:nothing", "cannot be imported"):
        make_model((1, 8, 8), 10, 64, 0, f"{HERE}:nothing")


def spectral(shape, classes):
    return nn.Sequential(nn.Flatten(), spectral_norm(nn.Linear(math.prod(shape), classes)))


def instances(shape, classes):
    return nn.Sequential(nn.InstanceNorm2d(1, track_running_stats=True), linear(shape, classes))


MISFITS = [
    *(({"model": model}, ["changes its buffer", "BatchNorm"]) for model in (spectral, instances)),
    ({"model": lambda shape, c: nn.Linear(3, c)}, ["applied to the data of silo 0", "(1, 8, 8)"]),
    ({"model": lambda shape, c: linear(shape, 11)}, ["of shape (8, 11)", "have shape (8, 10)"]),
    ({"model": lambda shape, c: Pair(8, c)}, ["outputs of shape tuple", "silo 0"]),
    ({"model": normed, "batch_size": 1}, ["silo 0", "more than 1 value per channel"]),
    ({"model": lambda shape, c: Mute(8, c)}, ["gives outputs", "through which no gradient flows"]),
    ({"model": lambda shape, c: Looking(c, max_norm=0.5)}, ["data of silo 0", "inplace"]),
    ({"model": lambda shape, c: Looking(c, sparse=True)}, ["no gradient", "silo 0", "sparse"]),
    ({"loss": cross_entropy}, ["gives ()", "silo 0", "(8,)"]),
    ({"loss": lambda out, y: squares(out.detach(), y)}, ["through which gradients flow"]),
    ({"loss": raising}, ["cannot be applied to the data of silo 0 (KeyError: 'no such"]),
    ({"loss": lambda out, y: squares(out, y) / 0}, ["loss that is not finite", "data of silo 0"]),
    ({"loss": lambda out, y: squares(out, y) * math.nan}, ["loss that is not finite"]),
]


@pytest.mark.parametrize(("keys", "words"), MISFITS)
def test_what_cannot_be_applied_is_one_sentence_before_training(keys, words):
    pool, state = pool_of(**keys), torch.get_rng_state()
    own = (Given(value) for value in keys.values() if callable(value))
    with one_sentence(*own, *words):
        pool.describe()
    assert torch.equal(torch.get_rng_state(), state)


def test_the_silo_with_a_single_sample_is_named(monkeypatch):
    pool = pool_of(model=normed)
    train = pool.setting.train
    one = SiloData(train(4).x[:1], train(4).y[:1])
    monkeypatch.setattr(pool.setting, "train", lambda silo: one if silo == 4 else train(silo))
    with pytest.raises(SpcacwError, match="the data of silo 4"):
        pool.describe()


@pytest.mark.parametrize(("kind", "words"), [
    (torch.int64, "whole numbers are tokens, so make features float."),
    (torch.float64, "features are torch.float64, so make them float32."),  # as those of a CSV file
])  # fmt: skip
def test_features_of_another_type_are_explained(monkeypatch, kind, words):
    pool = pool_of()
    train = pool.setting.train
    other = SiloData(train(0).x.to(kind), train(0).y)
    monkeypatch.setattr(pool.setting, "train", lambda silo: other)
    with one_sentence(words):
        pool.describe()


class Doubling(nn.Linear):
    def forward(self, x):
        return super().forward(x.flatten(1).double())


def test_features_of_another_precision_are_not_called_tokens():
    with one_sentence("cannot be applied", "dtype") as error:
        pool_of(model=lambda shape, classes: Doubling(math.prod(shape), classes)).describe()
    assert "whole numbers" not in str(error.value)


def test_a_token_beyond_the_models_is_named(monkeypatch):
    pool = pool_of(model=lambda: nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(8, 10)))
    whole = SiloData(torch.tensor([[0, 1, 2, 7]] * 4), torch.zeros(4, dtype=torch.int64))
    monkeypatch.setattr(pool.setting, "train", lambda silo: whole)
    with one_sentence("(IndexError: index out of range in self): tokens are up to 7 there."):
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
