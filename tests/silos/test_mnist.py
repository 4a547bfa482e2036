"""SP-CACW on the paper's own data, for a few epochs: it finds its cluster, and its neighbours."""

import numpy as np
import pytest

from spcacw_flwr.config.config import Config
from spcacw_flwr.engine.simulate import simulate


@pytest.fixture
def learn(mnist):
    """SP-CACW's α on a setting, after it has gained .4 points or more on training alone."""

    def run(setting, epochs):
        accuracy = {}
        for method in ("local", "spcacw"):
            config = Config.from_keys(
                method=method, setting=setting, epochs=epochs, data_dir=mnist, compare_alone=False
            )
            history = simulate(config)
            accuracy[method] = history.accuracy[-1]
        assert accuracy["spcacw"] > accuracy["local"] + 0.4
        return history.alpha

    return run


def test_relabel(learn):
    """After three epochs the two silos of its cluster have all weight that matters beside it."""
    alpha = learn("mnist-relabel", 3)
    assert alpha[:3].min() > 3 * alpha[3:].max()


@pytest.mark.slow
def test_rotate(learn):
    """Half of the weight on peers goes to silos within 20°, which are a ninth of all."""
    alpha = learn("mnist-rotate", 8)
    angles = 4.0 * np.arange(89)
    near = np.minimum(angles, 360 - angles) <= 20
    peers = np.arange(89) > 0
    assert alpha[near & peers].sum() > 0.5 * alpha[peers].sum()
    assert (alpha == 0).sum() > 30
