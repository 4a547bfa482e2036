"""A guarded method under Flower and in the bare loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spcacw_flwr.engine.loop import History, train
from spcacw_flwr.flower.strategy import GradientStrategy
from tests.conftest import make_method, make_pool
from tests.flower.grid import LocalGrid
from tests.flower.test_strategy import initial_arrays, small


@pytest.mark.parametrize(
    ("keys", "accepted"),
    [
        ({"method": "spcacw", "epochs": 3, "participation": 0.6}, None),
        ({"method": "fedavg", "epochs": 3}, False),
        ({"method": "oracle-averaged", "epochs": 12, "guard_finish": 0.1}, True),
    ],
)
def test_flower_and_the_bare_loop_have_one_trajectory(keys, accepted):
    """Judgement, model, weights, costs, and the accuracy after every epoch."""
    config = small(guard=5, **keys)
    strategy = GradientStrategy(config, 7, History(config))
    strategy.start(
        grid=LocalGrid(config, 2), initial_arrays=initial_arrays(config),
        num_rounds=7 * config.run.epochs, timeout=5,
    )  # fmt: skip
    pool, history = make_pool(config), History(config)
    loop = make_method(config, pool)
    train(pool, loop, history)
    flower = strategy.method
    assert flower.accepted is loop.accepted
    assert accepted in (None, loop.accepted)
    torch.testing.assert_close(flower.personal, loop.personal, rtol=1e-4, atol=1e-6)
    for (at, one), (there, other) in zip(strategy.history.alphas, history.alphas, strict=True):
        assert at == there
        np.testing.assert_allclose(one, other, atol=1e-5)
    for one, other in zip(strategy.history.epochs, history.epochs, strict=True):
        for name in ("accuracy", "target_gradients", "floats", "accepted"):
            assert one[name] == pytest.approx(other[name], nan_ok=True)
