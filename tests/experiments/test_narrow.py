"""The columns for a CPU: one of each large one, with a network that can be made, and small."""

from __future__ import annotations

import pytest
import torch

from spcacw_flwr.experiments import conf
from spcacw_flwr.silos.models import make_model

NARROW = sorted((conf.CONF / "narrow").glob("*.toml"))
#: What makes a column small, and what its larger step asks of a method.
MAY_DIFFER = {"epochs", "eta", "model", "width", "samples-per-silo", "test-samples"}
MAY_DIFFER |= {"fedamp.lambda"}
SHAPES = {"cifar100-clusters": ((3, 32, 32), 100), "shakespeare": ((50,), 80)}


@pytest.mark.parametrize("path", NARROW, ids=lambda path: path.stem)
def test_a_narrow_column_is_a_large_one_with_a_small_network(path):
    (column,) = conf.columns([str(path)])
    (full,) = conf.columns([path.stem.removesuffix("-narrow")])
    changed = {key for key, value in column.keys.items() if full.keys.get(key) != value}
    assert changed <= MAY_DIFFER
    (row,) = conf.rows(["local"])
    (job,) = conf.make_jobs([column], [row], [0], {})
    training = job.config().training
    shape, classes = SHAPES[column.keys["setting"]]
    model = make_model(shape, classes, training.hidden, 0, training.model, training.width)
    assert sum(part.numel() for part in model.parameters()) < 150_000


def test_there_is_one_of_each_large_column():
    names = {path.stem.removesuffix("-narrow") for path in NARROW}
    assert names == {c.name for c in conf.columns() if not c.name.startswith("mnist")}


def test_the_small_network_takes_images():
    model = make_model((3, 32, 32), 100, 64, 0, "spcacw_flwr.experiments.small:network", 1.0)
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 100)
