"""Every method, by its name: finite, blind to test data, alike in every engine."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.registry import METHODS
from spcacw_flwr.engine.loop import play as play_for_real
from tests.baselines.by_hand import close, make, play, quadratics, shaped
from tests.conftest import make_method, make_pool
from tests.flower.grid import LocalGrid
from tests.flower.test_strategy import play as play_on

ROUNDS = 8  # two epochs of 100 samples in batches of 32, the last one short


def config_of(name: str) -> Config:
    """Momentum, weight decay, clipping and partial participation are all in it."""
    keys = {"epochs": 2, "samples_per_silo": 100, "participation": 0.6, "compare_alone": False}
    return Config.from_keys(method=name, **keys)


@cache
def trained(name: str):
    """Return the method after two epochs, and its report of each."""
    config = config_of(name)
    pool = make_pool(config)
    method = make_method(config, pool)
    pool.setting.test = None  # to read test data is a TypeError
    reports = []
    for t in range(1, ROUNDS + 1):
        play_for_real(pool, method, t)
        if method.ends_epoch(t):
            reports.append(method.epoch_report())
    return method, reports


@pytest.mark.parametrize("name", METHODS)
def test_two_epochs(name):
    method, (first, last) = trained(name)
    assert method.personal.isfinite().all()
    assert not torch.equal(method.personal, make_pool(config_of(name)).initial_parameters())
    assert all(isinstance(value, float | int) for value in last.values())
    assert np.isfinite(last["loss"])
    assert 0 < first["target_gradients"] < last["target_gradients"]
    assert last["target_gradients"] >= ROUNDS
    assert 0 <= first["floats"] <= last["floats"]
    assert (last["floats"] == 0) == (name == "local")
    if method.alpha is not None:
        assert method.alpha.shape == (7,)
        assert method.alpha.min() >= 0
        assert method.alpha.sum() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("name", METHODS)
def test_replies_that_the_next_question_overwrites_do_no_harm(name):
    """Engines keep gradients in one buffer."""
    layout = shaped(body=(1,), weight=(1, 1), bias=(1,))
    keys = {"start": (0.0,) * 3, "layout": layout, "oracle": (0, 1), "smoothness": 1.0}
    careful, careless = make(name, **keys), make(name, **keys)
    answer, last = quadratics([[1.0, 0, 0], [2.0, 1, 1], [-1.0, 3, 2]]), []

    def silo(request):
        for rows in last:
            rows.fill_(torch.nan)
        last[:] = [answer(request).gradients]
        return replace(answer(request), gradients=last[0])

    play(careful, 3, answer)
    play(careless, 3, silo)
    assert torch.equal(careful.personal, careless.personal)
    assert torch.equal(careful.parameters, careless.parameters)


@pytest.mark.parametrize("nodes", [7, 2])
@pytest.mark.parametrize("name", METHODS)
def test_flowers_messages_give_the_same_trajectory(name, nodes):
    config = config_of(name)
    strategy = play_on(config, LocalGrid(config, nodes), ROUNDS)
    method, (_, last) = trained(name)
    flower, line = strategy.method, strategy.history.epochs[-1]
    close(flower.personal, method.personal, rtol=1e-4, atol=1e-6)
    for cost in ("target_gradients", "floats"):
        assert line[cost] == last[cost]
    if method.alpha is None:
        assert flower.alpha is None
    else:
        np.testing.assert_allclose(flower.alpha, method.alpha, atol=1e-5)
        assert flower.alpha_round == method.alpha_round


@pytest.mark.parametrize("name", ["ditto", "apfl", "fedrep", "per-fedavg"])
@pytest.mark.parametrize(("kind", "alpha"), [("uniform", [1 / 3] * 3), ("size", [0.5, 0.25, 0.25])])
def test_the_key_weights_says_how_silos_count_in_the_shared_model(name, kind, alpha):
    layout = shaped(body=(1,), weight=(1, 1), bias=(1,))
    made = make(name, (0.0,) * 3, own={"weights": kind}, layout=layout)
    assert made.alpha == pytest.approx(alpha)


@pytest.mark.parametrize(
    ("name", "own", "sentence"),
    [
        ("fedamp", {"lambda": 10.0}, r"η λ/α_k = 1 must be below 1"),
        ("heurfedamp", {"lambda": 10.0}, r"heurfedamp.lambda = 10 is too much: η λ = 1 must be"),
        ("cobo", {"rho": 7.0}, r"cobo.rho = 7 is too much: η ρ M = 2.1 must be below"),
        ("ditto", {"lambda": -1.0}, r"ditto.lambda = -1.0"),
        ("ditto", {"weights": "equal"}, "one of uniform, size"),
        ("fesem", {"clusters": 4}, r"fesem.clusters = 4 is more than the 3 silos"),
        ("fedrep", {"head-tensors": 3}, r"head-tensors = 3 leaves nothing to share.*at most 2"),
        ("pfedsim", {"head-tensors": 0}, r"head-tensors = 0 names no matrix"),
        ("pfedsim", {"head-tensors": 1}, r"head-tensors = 1 names no matrix"),
    ],
)
def test_keys_that_it_refuses(name, own, sentence):
    with pytest.raises(SpcacwError, match=sentence):
        make(name, (0.0,) * 3, own=own, layout=shaped(a=(1,), b=(1, 1), c=(1,)), eta=0.1)
