"""The guard: what is kept apart stays apart, the judgement, and what a refused run ends with."""

import numpy as np
import pytest
import torch
from torch import nn

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.loop import play, train
from spcacw_flwr.engine.recorder import Recorder
from spcacw_flwr.methods.guard import Guarded, make_method
from spcacw_flwr.silos.batches import Fold
from spcacw_flwr.silos.protocol import LOSSES, Federation, Request, SiloInfo
from tests.baselines.by_hand import PLAIN, converse, quadratics
from tests.conftest import make_method as make_on
from tests.conftest import make_pool, played


def digits(**keys) -> Config:
    return Config.from_keys(**{"epochs": 5, "compare_alone": False, "guard": 5, **keys})


def by_hand(centres, epochs=5) -> tuple[Guarded, list]:
    """FedAvg of two silos ½‖w − c_i‖², 64 samples each; 2 rounds an epoch, the last one alone."""
    config = Config.from_keys(method="fedavg", eta=0.1, epochs=epochs, guard=4, **PLAIN)
    infos = tuple(SiloInfo(i, 64, (64,)) for i in range(2))
    method = make_method(config, Federation(infos, 0, 32), torch.tensor([8.0]))
    silo, asked = quadratics(torch.tensor(centres)), []
    for t in range(1, 2 * epochs + 1):
        asked += [(t, request) for request in converse(method, t, silo)]
    return method, asked


@pytest.mark.parametrize(("peer", "accepted"), [(-4.0, True), (-0.5, False), (2.0, False)])
def test_the_judgement_by_hand(peer, accepted):
    """From w = 8 towards 0, a peer at −4 helps on the way, one at −½ hardly, and one at 2 harms.

    A step of FedAvg is w ← .9 w + .05 c. After 8 rounds v = 3.44 and w = 3.44 + .285 c, so that
    ℓ(w)/ℓ(v) = .45, .92 and 1.36; F = 4 asks for ¾. Of 10 rounds the last 2 are the target's
    alone, ×.9 each; a refused run has had 10 of them.
    """
    method, asked = by_hand([[0.0], [peer]])
    assert method.accepted is accepted
    w = 8.0
    for t in range(10):
        w = 0.9 * w + 0.05 * peer * (accepted and t < 8)
    assert float(method.personal) == pytest.approx(w, rel=1e-5)
    late = [request for t, request in asked if t > 8]
    assert [request.want for request in late] == [LOSSES, "gradients", "gradients"]
    assert all(request.silos == (0,) for request in late)
    np.testing.assert_array_equal(method.alpha, [1, 0])


def test_what_is_asked_of_whom():
    """W and v without V, u with all data; then V alone judges, whole; peers never see a fold."""
    _, asked = by_hand([[0.0], [1.0]])
    first = [(request.silos, request.fold) for t, request in asked if t == 1]
    assert first == [((0, 1), Fold(0, 4)), ((0,), Fold(0, 4)), ((0,), None)]
    (judging,) = (request for _, request in asked if request.want == LOSSES)
    assert (judging.fold, judging.whole) == (Fold(0, 4, within=True), True)


@pytest.mark.parametrize("method", ["spcacw", "meritfed", "median", "fedfomo", "ditto"])
def test_nothing_that_is_judged_depends_on_what_is_kept_apart(method):
    """Spoil the labels of V: after T_f rounds w and v are the same, bit for bit, and u is not."""
    config = digits(method=method)
    spoilt, kept = make_pool(config), Fold(0, 5, within=True).rows(0, 0, 200)
    spoilt.data.of(0)[1][torch.from_numpy(kept)] = 0
    one, other = played(config, 28), played(config, 28, spoilt)
    assert one.judged_at == 28
    assert torch.equal(one.guarded.personal, other.guarded.personal)
    assert torch.equal(one.unaided.parameters, other.unaided.parameters)
    assert not torch.equal(one.alone.parameters, other.alone.parameters)


def test_until_the_judgement_and_when_refused_the_model_is_locals():
    """FedAvg over silos that name digits otherwise does harm; bit for bit what Local ends with."""
    config = digits(method="fedavg")
    for rounds in (20, 35):
        guarded = played(config, rounds)
        alone = played(Config.from_keys(method="local", epochs=5), rounds)
        assert torch.equal(guarded.personal, alone.personal)
    assert guarded.accepted is False
    assert guarded.epoch_report()["accepted"] == 0


def test_samples_that_are_not_independent_cannot_be_kept_apart():
    infos = (SiloInfo(0, 64, (64,), independent=13.0), SiloInfo(1, 64, (64,)))
    with pytest.raises(SpcacwError, match=r"of the 64 .* target silo 0 only 13 are independent"):
        make_method(digits(), Federation(infos, 0, 32), torch.zeros(2))
    infos = (SiloInfo(0, 64, (64,)), SiloInfo(1, 64, (64,), independent=13.0))
    make_method(digits(), Federation(infos, 0, 32), torch.zeros(2))


def test_an_accepted_model_goes_on_alone_with_all_data():
    config = digits(method="oracle-averaged", epochs=20)
    before, after = played(config, 112), played(config, 113)
    assert after.accepted
    assert after.epoch_report()["floats"] == before.epoch_report()["floats"]
    pool = make_pool(config)
    gradient = pool.gradients(Request(113, (0,), before.guarded.personal)).rows[0]
    keys = config.training
    step = gradient + keys.weight_decay * before.guarded.personal
    expected = before.guarded.personal - keys.eta * step  # no momentum is carried over
    torch.testing.assert_close(after.personal, expected)
    np.testing.assert_array_equal(after.alpha, np.eye(7)[0])
    assert before.alpha[0] == pytest.approx(1 / 3)


def test_losses_of_a_whole_part_are_the_mean_over_its_samples():
    pool = make_pool(digits())
    points = torch.stack([pool.initial_parameters(), 2 * pool.initial_parameters()])
    fold = Fold(0, 5, within=True)
    found = pool.losses(Request(1, (0,), points, LOSSES, fold=fold, whole=True))
    data, at = pool.setting.train(0), torch.from_numpy(fold.rows(0, 0, 200))
    for k, point in enumerate(points):
        state = pool.layout.unflatten(point)
        outputs = torch.func.functional_call(pool.model, state, (data.x[at],))
        expected = torch.nn.functional.cross_entropy(outputs, data.y[at])
        torch.testing.assert_close(found[0, k], expected.detach())


def normed(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, affine=False), nn.Linear(64, classes))


def test_samples_that_are_judged_are_judged_each_by_itself():
    """BatchNorm's statistics are those of the rest, 5 batches of 32, and of no sample of V."""
    pool, kept = make_pool(digits(model=f"{__name__}:normed")), Fold(0, 5, within=True)
    point, data = pool.initial_parameters(), pool.setting.train(0)
    found = pool.losses(Request(1, (0,), point[None], LOSSES, fold=kept, whole=True))
    rest, judged = (torch.from_numpy(one.rows(0, 0, 200)) for one in (Fold(0, 5), kept))
    batches = [part.flatten(1) for part in pool.data.shuffled(0, Fold(0, 5))]
    assert sorted(torch.cat(batches).tolist()) == sorted(data.x[rest].flatten(1).tolist())
    mean, variance = (torch.stack([*map(of, batches)]).mean(0)
                      for of in (lambda x: x.mean(0), lambda x: x.var(0)))  # fmt: skip
    inputs = (data.x[judged].flatten(1) - mean) / (variance + 1e-5).sqrt()
    weights = pool.layout.unflatten(point)
    outputs = inputs @ weights["2.weight"].T + weights["2.bias"]
    torch.testing.assert_close(found[0, 0], nn.functional.cross_entropy(outputs, data.y[judged]))


def test_local_is_not_guarded_and_no_guard_is_the_method_itself():
    for keys in ({"method": "local"}, {"guard": 0}):
        config = digits(**keys)
        assert not isinstance(make_on(config, make_pool(config)), Guarded)


def test_a_model_that_peers_have_blown_up_is_refused(tmp_path):
    """Its loss is infinite, and the run's files can be written."""
    config = digits(method="fedavg", epochs=2, output=str(tmp_path / "run"))
    pool, history = make_pool(config), Recorder(tmp_path / "run", config, "in-process")
    honest = pool.gradients

    def blown_up(*asked):
        found = honest(*asked)
        found.rows[1:] = 1e18
        return found

    pool.gradients = blown_up
    method = make_on(config, pool)
    train(pool, method, history)
    assert method.accepted is False
    assert history.epochs[-1]["accepted"] == history.summary()["accepted"] == 0


class Eager:
    """Silos elsewhere, which would take the next round's question early."""

    def __init__(self, pool) -> None:
        self.pool, self.asked = pool, []

    def answer(self, request):
        answers = self.pool.answer(request)
        answers.replies.early = self.asked.append
        return answers


@pytest.mark.parametrize(("keys", "early"), [({}, 5), ({"guard": 5}, 0)], ids=str)
def test_no_question_is_asked_early_where_more_are_asked_in_the_round(keys, early):
    """They would find their silos busy, which then counted as silent."""
    config = Config.from_keys(epochs=2, **keys)
    pool = make_pool(config)
    silos, method = Eager(pool), make_on(config, pool)
    for round_ in range(1, 6):
        play(silos, method, round_)
    assert len(silos.asked) == early
