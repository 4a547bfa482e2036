"""The reading twin of Algorithm 1 and the package follow one trajectory."""

from __future__ import annotations

import numpy as np

from examples.algorithm1 import MOMENTUM, SMOOTHNESS, train
from spcacw_flwr import Config, simulate
from spcacw_flwr.silos.setup import setting_of


def test_the_twin_and_the_package_agree():
    config = Config.from_keys(epochs=6, smoothness=SMOOTHNESS, compare_alone=False)
    assert config.training.momentum == MOMENTUM
    found = simulate(config)
    model, alpha = train(setting_of(config), epochs=6)
    np.testing.assert_allclose(alpha, found.alpha, atol=2e-5)
    assert 0.01 < alpha[1] < alpha[0]
    ours = [part.numpy().ravel() for part in found.parameters.values()]
    twins = [part.detach().numpy().ravel() for part in model.parameters()]
    np.testing.assert_allclose(np.concatenate(twins), np.concatenate(ours), atol=1e-5)
