"""SP-CACW on the paper's own data, for a few epochs: it finds its cluster, and its neighbours."""

from __future__ import annotations

import numpy as np
import pytest

from spcacw_flwr.config.config import Config
from spcacw_flwr.engine.loop import History, train
from tests.conftest import make_method, make_pool


@pytest.fixture
def learn(mnist):
    def run(method, epochs, **keys):
        config = Config.from_keys(method=method, epochs=epochs, data_dir=str(mnist), **keys)
        pool = make_pool(config)
        made, history = make_method(config, pool), History(config)
        train(pool, made, history)
        return made, [line["accuracy"] for line in history.epochs]

    return run


def test_relabel(learn):
    """After three epochs the two silos of its cluster have all weight that matters beside it."""
    spcacw, accuracies = learn("spcacw", 3, setting="mnist-relabel")
    _, alone = learn("local", 3, setting="mnist-relabel")
    assert accuracies[-1] > alone[-1] + 0.4
    assert spcacw.alpha[:3].min() > 3 * spcacw.alpha[3:].max()


@pytest.mark.slow
def test_rotate(learn):
    """Half of the weight on peers goes to silos within 20°, which are a ninth of all."""
    spcacw, accuracies = learn("spcacw", 8, setting="mnist-rotate")
    _, alone = learn("local", 8, setting="mnist-rotate")
    assert accuracies[-1] > alone[-1] + 0.4
    angles = 4.0 * np.arange(89)
    near = np.minimum(angles, 360 - angles) <= 20
    peers = np.arange(89) > 0
    assert spcacw.alpha[near & peers].sum() > 0.5 * spcacw.alpha[peers].sum()
    assert (spcacw.alpha == 0).sum() > 30
