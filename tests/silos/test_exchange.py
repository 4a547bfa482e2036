"""Questions of every kind, in process and through Flower's messages: one answer."""

import numpy as np
import pytest
import torch

from spcacw_flwr.config.config import Config
from spcacw_flwr.methods.base import Method
from spcacw_flwr.silos.protocol import LOSSES, Request
from tests.conftest import answer, make_pool, played
from tests.flower.grid import LocalGrid
from tests.flower.test_strategy import ROUNDS, play


class Curious(Method):
    """Asks for everything that can be asked for, and evaluates a model of its own."""

    name = "curious"

    def initial_weights(self):
        return None

    @property
    def personal(self):
        return self.models[self.target]

    def __init__(self, config, federation, parameters):
        super().__init__(config, federation, parameters)
        self.models = parameters.repeat(federation.num_silos, 1)

    def round(self, round_):
        silos = self.sampled(round_)
        own = yield Request(round_, silos, self.models[list(silos)][:, None], want=LOSSES)
        silos = own.silos
        judged = yield Request(round_, silos, self.models, want=LOSSES)
        for row, silo in enumerate(silos):
            torch.testing.assert_close(judged.losses[row, silo], own.losses[row, 0])
        best = judged.losses.argmin(dim=1).tolist()
        replies = yield Request(round_, judged.silos, self.models[best], draw=1)
        for silo, gradient in zip(replies.silos, replies.gradients, strict=True):
            self.optimiser.step(self.models[silo], gradient.clone(), silo)
        counts = tuple(3 + silo for silo in silos)
        more = yield Request(round_, silos, self.parameters, samples=counts, traffic=(5, 1))
        self.optimiser.step(self.parameters, more.gradients.mean(dim=0))
        alone = yield Request(round_, (self.target,), self.personal, draw=2)
        self.models[self.target] -= 0.01 * alone.gradients[0]


CURIOUS = f"{__name__}:Curious"


def small(**keys) -> Config:
    return Config.from_keys(**{"method": CURIOUS, "epochs": 2, "compare_alone": False} | keys)


@pytest.mark.parametrize("nodes", [7, 2])
@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_flower_and_the_loop_have_one_trajectory(nodes, participation):
    config = small(participation=participation)
    strategy, pool = play(config, LocalGrid(config, nodes)), make_pool(config)
    method = played(config, ROUNDS, pool)
    torch.testing.assert_close(strategy.method.models, method.models, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(strategy.method.parameters, method.parameters, rtol=1e-4, atol=1e-6)
    first, last = strategy.history.epochs
    assert last["accuracy"] == pool.evaluate(method.personal, 0).figures["accuracy"]
    assert first["accuracy"] != last["accuracy"]
    report = method.epoch_report()
    assert {name: last[name] for name in ("target_gradients", "floats")}.items() <= report.items()
    assert report["target_gradients"] == 3 * 14
    assert strategy.history.alphas == []
    if participation == 1:
        d = len(method.parameters)
        assert report["floats"] == 14 * 6 * ((d + 1) + (7 * d + 7) + 2 * d + 6)


def test_points_of_each_silo_are_as_asking_them_one_by_one():
    pool = make_pool(small())
    points = torch.randn(3, pool.layout.size, generator=torch.Generator().manual_seed(0)) / 9
    together = answer(pool, Request(4, (1, 2, 5), points, draw=3))
    rows, losses = together.gradients.clone(), together.losses.clone()
    for k, silo in enumerate((1, 2, 5)):
        one = answer(pool, Request(4, (silo,), points[k], draw=3))
        torch.testing.assert_close(one.gradients[0], rows[k], rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(one.losses[0], losses[k])


def test_losses_are_those_of_the_gradients_batches():
    pool = make_pool(small())
    points = torch.randn(2, pool.layout.size, generator=torch.Generator().manual_seed(0)) / 9
    judged = answer(pool, Request(2, (0, 3), points, want=LOSSES, draw=1))
    assert judged.gradients.shape == (2, 0)
    for column in range(2):
        asked = answer(pool, Request(2, (0, 3), points[column], draw=1))
        torch.testing.assert_close(judged.losses[:, column], asked.losses)
    assert pool.losses(Request(1, (0,), points * torch.nan, LOSSES)).tolist() == [[np.inf, np.inf]]


def test_some_samples_are_the_first_of_the_batch_and_draws_are_other_samples():
    data = make_pool(small()).data
    (whole,), (some,), (other,) = (data.batches(1, [4], *more) for more in ((), (0, [5]), (1,)))
    assert torch.equal(some.x[0], whole.x[0, :5])
    assert torch.equal(some.y[0], whole.y[0, :5])
    assert not torch.equal(other.x, whole.x)


class Deaf(Curious):
    """Never asks the target anything."""

    name = "deaf"

    def round(self, round_):
        yield Request(round_, (1, 2), self.parameters)


def test_accuracy_of_a_target_that_is_asked_nothing():
    config = small(method=f"{__name__}:Deaf")
    epochs = play(config, LocalGrid(config, 7)).history.epochs
    assert [line["round"] for line in epochs] == [7, 14]
    assert epochs[0]["accuracy"] == epochs[1]["accuracy"] > 0
