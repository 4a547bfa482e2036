"""A run without a silo equals one in which that silo never was."""

import numpy as np
import pytest
import torch

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.registry import METHODS
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.methods.base import Optimiser
from spcacw_flwr.partitions.relabel import DigitsRelabel
from spcacw_flwr.report.leave_one_out import Remaining, train_without
from spcacw_flwr.silos.protocol import Request
from tests.conftest import make_pool

KEYS = {"epochs": 2, "compare_alone": False}
EXCLUDED = 3


class FirstSix(DigitsRelabel):
    """Digits without the seventh silo: the numbers of the others, and so their batches, stay."""

    name = "first-six"

    def __init__(self, keys, seed):
        self.seven = DigitsRelabel(keys, seed)
        super().__init__(keys, seed)

    @property
    def groups(self):
        """Return the true clusters of six silos."""
        return self.seven.groups[:6]

    def train(self, silo):
        """Return what the silo has among seven."""
        return self.seven.train(silo)


@pytest.mark.parametrize("method", METHODS)
def test_without_the_last_silo_the_run_is_that_of_the_first_six(method):
    own = {"krum": {"krum": {"byzantine": 1}}}.get(method, {})
    keys = {"method": method, **KEYS, **own}
    found = train_without(make_pool(Config.from_keys(**keys)), [6])
    by_hand = simulate(Config.from_keys(setting=f"{__name__}:FirstSix", **keys))
    assert [line["accuracy"] for line in found.epochs] == by_hand.accuracy
    assert found.epochs[-1]["loss"] == by_hand.epochs[-1]["loss"]
    for (_, one), (_, other) in zip(found.alphas, by_hand.alphas, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("more", [{}, {"local_batches": 2}])
def test_with_all_silos_the_run_is_the_run(more):
    config = Config.from_keys(**KEYS, **more)
    whole, found = simulate(config), train_without(make_pool(config), [])
    assert [line["accuracy"] for line in found.epochs] == whole.accuracy
    np.testing.assert_array_equal(found.alphas[-1][1], whole.alpha)


def test_fedavg_without_a_silo_in_the_middle_by_hand():
    """The others keep their batches, and share its weight: all are of one size here."""
    config = Config.from_keys(method="fedavg", epochs=1, compare_alone=False)
    pool = make_pool(config)
    found = train_without(pool, [EXCLUDED])
    w, optimiser = pool.initial_parameters().clone(), Optimiser(config.training)
    others = [silo for silo in range(7) if silo != EXCLUDED]
    for round_ in range(1, 8):
        rows = pool.gradients(Request(round_, others, w)).rows
        optimiser.step(w, rows.mean(dim=0))
    assert found.epochs[-1]["accuracy"] == pool.evaluate(w, 0).figures["accuracy"]
    for name, part in pool.layout.unflatten(w).items():
        torch.testing.assert_close(found.parameters[name], part, rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", ["spcacw", "oracle-averaged"])
def test_the_target_may_have_any_number(method):
    """A target behind the absent silo gets a new number, and remains the target."""
    keys = {"target": 6, "method": method}
    pool = make_pool(Config.from_keys(**KEYS, **keys))
    remaining = Remaining(pool, [1])
    assert (remaining.config.run.target, remaining.kept) == (5, (0, 2, 3, 4, 5, 6))
    found = train_without(pool, [1])
    assert found.epochs[0]["target_gradients"] == 7
    if method == "spcacw":
        assert np.argmax(found.alphas[0][1]) == 5
    # The oracle of silo 6 is its true cluster, {5, 6}, under new numbers {4, 5}.
    assert remaining.describe()[5].oracle == (4, 5)
    with pytest.raises(ValueError, match="not in tuple"):
        Remaining(pool, [6])
