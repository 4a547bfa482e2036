"""An epoch of the paper's four larger columns on real data, with networks in narrow width."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from spcacw_flwr.config.config import Config
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.silos.models import make_model


@pytest.fixture
def root() -> Path:
    beside = Path(__file__).parents[3] / "shared" / "data"
    path = Path(os.environ.get("SPCACW_DATA_DIR", beside))
    if not (path / "cifar100").is_dir() or not (path / "shakespeare").is_dir():
        pytest.skip(f"no cifar100 and shakespeare in {path}; name it in SPCACW_DATA_DIR")
    return path


@pytest.mark.parametrize("keys", [
    {"setting": "cifar100-clusters", "epsilon": 10.0},
    {"setting": "cifar100-clusters", "epsilon": 0.01},
    {"setting": "shakespeare", "silos": 15, "roles_per_silo": 7},
    {"setting": "shakespeare", "silos": 30, "roles_per_silo": 3},
])  # fmt: skip
def test_an_epoch_of_each_column(keys, root, tmp_path):
    config = Config.from_keys(
        **keys, width=1 / 32, epochs=1, samples_per_silo=70, test_samples=200,
        data_dir=str(root), output=str(tmp_path / "run"), compare_alone=False,
    )  # fmt: skip
    images = keys["setting"] == "cifar100-clusters"
    assert config.training.model == ("vgg16" if images else "char-lstm")
    result = simulate(config)
    assert len(result.alpha) == (20 if images else keys["silos"])
    assert result.alpha.sum() == pytest.approx(1)
    assert 0 <= result.accuracy[0] <= 100
    line = result.epochs[0]
    assert line["L"] > 0
    assert torch.tensor(line["loss"]).isfinite()
    shape, classes = ((3, 32, 32), 100) if images else ((50,), 80)
    model = make_model(shape, classes, 64, 0, config.training.model, 1 / 32)
    saved = load_file(tmp_path / "run" / "model.safetensors")
    model.load_state_dict(saved)
