"""A model with BatchNorm and dropout through Flower's messages: the same run, the same file."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from spcacw_flwr.config.config import Config
from spcacw_flwr.engine.loop import play as play_round
from spcacw_flwr.engine.recorder import Recorder
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.flower import records
from spcacw_flwr.flower.strategy import GradientStrategy
from spcacw_flwr.silos.layout import Layout, parameters_of
from spcacw_flwr.silos.models import make_model
from tests.conftest import make_method, make_pool
from tests.flower.grid import LocalGrid

ROUNDS, EPOCH = 14, 7


def normed(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout2d(0.3),
        nn.Flatten(), nn.Linear(144, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True),
        nn.Dropout(0.5), nn.Linear(16, classes),
    )  # fmt: skip


CONFIG = Config.from_keys(
    model="tests.flower.test_batchnorm:normed", epochs=2, compare_alone=False, update_every=5
)


def flower(grid: LocalGrid, directory) -> GradientStrategy:
    model = parameters_of(make_model((1, 8, 8), 10, 64, 0, CONFIG.training.model))
    layout = Layout.of(model)
    arrays = records.model_to_arrays(layout, layout.flatten(model))
    strategy = GradientStrategy(CONFIG, 7, Recorder(directory, CONFIG, "test"))
    strategy.start(grid, arrays, num_rounds=ROUNDS, timeout=5)
    return strategy


def bare():
    """The same training as a loop over the core; the evaluation after each epoch."""
    pool = make_pool(CONFIG)
    method, found = make_method(CONFIG, pool), []
    for t in range(1, ROUNDS + 1):
        play_round(pool, method, t)
        if t % EPOCH == 0:
            found.append(pool.evaluate(method.parameters, 0))
    return pool, method, found


@pytest.mark.parametrize("nodes", [1, 7])
def test_flower_and_the_bare_loop_evaluate_and_save_the_same_model(nodes, tmp_path):
    """One node computes in one pooled pass, as the loop does: the same bits; seven round apart."""
    pool, method, found = bare()
    strategy = flower(LocalGrid(CONFIG, nodes), tmp_path)
    accuracies = [line["accuracy"] for line in strategy.history.epochs]
    saved = load_file(tmp_path / "model.safetensors")
    expected = pool.layout.unflatten(method.parameters) | found[-1].buffers
    assert set(saved) == set(expected) == set(pool.model.state_dict())
    if nodes == 1:
        assert accuracies == [one.figures["accuracy"] for one in found]
        np.testing.assert_array_equal(strategy.method.alpha, method.alpha)
        assert all(torch.equal(saved[name], expected[name]) for name in expected)
    else:
        assert accuracies == pytest.approx([one.figures["accuracy"] for one in found], abs=0.3)
        np.testing.assert_allclose(strategy.method.alpha, method.alpha, atol=1e-4)
        for name in expected:
            torch.testing.assert_close(saved[name], expected[name], rtol=1e-2, atol=1e-3)

    # The file is a model: loaded into the architecture, it is as accurate as the run says.
    model = make_model((1, 8, 8), 10, 64, 5, CONFIG.training.model)
    model.load_state_dict(saved)
    data = pool.setting.test(0)
    right = model.eval()(data.x).argmax(1) == data.y
    assert 100 * right.double().mean().item() == pytest.approx(accuracies[-1])


def test_both_engines_save_the_same_file(tmp_path):
    strategy = flower(LocalGrid(CONFIG, 1), tmp_path / "flower")
    result = simulate(replace(CONFIG, run=replace(CONFIG.run, output=str(tmp_path / "process"))))
    files = [tmp_path / name / "model.safetensors" for name in ("flower", "process")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert result.accuracy == [line["accuracy"] for line in strategy.history.epochs]
    saved = load_file(files[1])
    assert set(saved) == set(result.parameters)
    assert all(torch.equal(saved[name], part) for name, part in result.parameters.items())


def test_a_clientapp_without_buffers_is_as_good(tmp_path):
    """Of a user's own ClientApp no buffers are asked."""
    grid = LocalGrid(CONFIG, 1)

    def without(message, content):
        content.pop(records.BUFFERS, None)
        return content

    grid.spoil[101] = without
    layout = flower(grid, tmp_path).nodes.layout
    assert set(load_file(tmp_path / "model.safetensors")) == set(dict(layout.shapes))
