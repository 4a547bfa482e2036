"""A model with BatchNorm and dropout through Flower's messages: the same run, the same file."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from spcacw_flwr.config.config import Config
from spcacw_flwr.engine.recorder import Recorder
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.flower import records
from spcacw_flwr.flower.strategy import GradientStrategy
from spcacw_flwr.silos.layout import Layout, parameters_of
from spcacw_flwr.silos.models import make_model
from tests.conftest import make_pool
from tests.flower.grid import LocalGrid

ROUNDS = 14


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


@pytest.mark.parametrize("nodes", [1, 7])
def test_both_engines_evaluate_and_save_the_same_model(nodes, tmp_path):
    """One node computes in one pooled pass, as in process: the same bits; seven round apart."""
    strategy = flower(LocalGrid(CONFIG, nodes), tmp_path / "flower")
    result = simulate(replace(CONFIG, run=replace(CONFIG.run, output=str(tmp_path / "process"))))
    files = [tmp_path / name / "model.safetensors" for name in ("flower", "process")]
    saved, expected = map(load_file, files)
    accuracies = [line["accuracy"] for line in strategy.history.epochs]
    model = make_model((1, 8, 8), 10, 64, 5, CONFIG.training.model)
    assert set(saved) == set(expected) == set(model.state_dict()) == set(result.parameters)
    assert all(torch.equal(expected[name], part) for name, part in result.parameters.items())
    if nodes == 1:
        assert accuracies == result.accuracy
        np.testing.assert_array_equal(strategy.method.alpha, result.alpha)
        assert files[0].read_bytes() == files[1].read_bytes()
    else:
        assert accuracies == pytest.approx(result.accuracy, abs=0.3)
        np.testing.assert_allclose(strategy.method.alpha, result.alpha, atol=1e-4)
        for name in expected:
            torch.testing.assert_close(saved[name], expected[name], rtol=1e-2, atol=1e-3)

    # The file is a model: loaded into the architecture, it is as accurate as the run says.
    model.load_state_dict(saved)
    data = make_pool(CONFIG).setting.test(0)
    right = model.eval()(data.x).argmax(1) == data.y
    assert 100 * right.double().mean().item() == pytest.approx(accuracies[-1])


def test_a_clientapp_without_buffers_is_as_good(tmp_path):
    """Of a user's own ClientApp no buffers are asked."""
    grid = LocalGrid(CONFIG, 1)

    def without(message, content):
        content.pop(records.BUFFERS, None)
        return content

    grid.spoil[101] = without
    layout = flower(grid, tmp_path).nodes.layout
    assert set(load_file(tmp_path / "model.safetensors")) == set(dict(layout.shapes))
