"""The two Oracles: pooled mini-batches, and averaged gradients."""

import numpy as np
import pytest
import torch

from spcacw_flwr.baselines.oracle import Oracle, draw_counts
from spcacw_flwr.silos.protocol import Replies
from tests.baselines.by_hand import close, converse, heard, make, sending
from tests.conftest import answer, make_method, make_pool, played
from tests.flower.grid import LocalGrid
from tests.flower.test_strategy import ROUNDS, play, small

SILOS = sending([[1.0], [9.0], [3.0]])


def built(name="oracle", **keys):
    """Return a method whose target has the cluster {0, 2}, of sizes 64 and 32."""
    return make(name, [0.0], oracle=(0, 2), eta=1.0, **keys)


def draws(sizes, room, batch=32, times=4000):
    rng = np.random.default_rng(0)
    found = [draw_counts(np.array(sizes), np.array(room), batch, rng) for _ in range(times)]
    counts = np.array(found)
    assert (counts.sum(axis=1) == min(batch, sum(room))).all()
    assert (counts <= room).all()
    return counts


@pytest.mark.parametrize(
    ("sizes", "room"),
    [([200, 200, 200], [32, 32, 32]), ([10, 990, 1000], [10, 32, 32]), ([50] * 16, [32] * 16)],
)
def test_every_sample_of_the_pool_has_one_chance_and_none_comes_alone(sizes, room):
    """A mean of n draws of a count ≤ 32 around b · size/Σ; 4 standard errors of at most 3/√4000."""
    counts = draws(sizes, room)
    assert (counts != 1).all()
    np.testing.assert_allclose(counts.mean(axis=0), 32 * np.array(sizes) / sum(sizes), atol=0.19)


def test_what_a_short_batch_cannot_give_others_do():
    draws([200, 200], [8, 32], times=200)
    assert draws([200, 200, 200], [8, 8, 8], times=1).tolist() == [[8, 8, 8]]


@pytest.mark.parametrize(
    ("room", "batch"), [([1, 1], 2), ([2, 2], 1), ([1], 1), ([1, 2, 2], 3), ([2, 1], 3)]
)
def test_a_single_sample_stays_where_there_is_no_way_out(room, batch):
    draws([9] * len(room), room, batch, times=50)


def test_the_step_weighs_silos_by_their_samples():
    """Two thirds and a third of 32, on average."""
    method = built()
    np.testing.assert_allclose(method.alpha, [2 / 3, 0, 1 / 3])
    (asked,) = converse(method, 1, SILOS)
    assert asked.silos == (0, 2)
    first, second = asked.samples
    assert first + second == 32
    assert float(method.parameters) == pytest.approx(-(first + 3 * second) / 32)
    counts = [method.counts(t, (0, 2))[0] for t in range(1, 2001, 2)]
    assert np.mean(counts) == pytest.approx(64 / 3, abs=0.3)


def test_the_step_is_the_gradient_of_the_pooled_batch():
    """Without clipping, Σ (b_i/b) g_i is the gradient at all the samples together."""
    pool = make_pool(small(method="oracle", max_norm=0.0))
    method = make_method(pool.config, pool)
    asked = next(method.play(1))
    assert min(asked.samples) > 1
    whole = torch.tensor(asked.samples) / 32.0 @ answer(pool, asked).gradients
    parts = sorted(
        (place, x, y)
        for batch in pool.data.batches(1, asked.silos, samples=asked.samples)
        for place, x, y in zip(batch.at, batch.x, batch.y, strict=True)
    )
    x, y = (torch.cat([part[i] for part in parts])[None] for i in (1, 2))
    together = torch.empty(1, len(whole))
    pool.compute(method.parameters, x, y, together, lambda _: 0)
    close(whole, together[0], rtol=1e-4, atol=1e-6)


def test_a_target_without_a_part_in_a_round_is_not_asked(monkeypatch):
    """Neither engine minds, and no accuracy is lost."""
    fair = Oracle.counts

    def unfair(self, round_, pool):
        counts = fair(self, round_, pool)
        return counts | {0: 0} if round_ % 3 else counts

    monkeypatch.setattr(Oracle, "counts", unfair)
    config = small(method="oracle")
    strategy = play(config, LocalGrid(config, 7))
    method = played(config, ROUNDS)
    close(strategy.method.parameters, method.parameters)
    assert len(strategy.history.epochs) == 2
    assert method.epoch_report()["target_gradients"] == 14 // 3


def test_a_silent_silo_leaves_its_part_out():
    method = built()
    converse(method, 1, lambda request: heard(SILOS(request), (0,)))
    assert float(method.parameters) == -1


def test_a_round_that_nobody_answers_takes_no_step(monkeypatch):
    """It can happen where the target has no part; momentum alone must not move the model."""
    method = built(momentum=0.9)
    converse(method, 1, sending([[1.0]] * 3))
    monkeypatch.setattr(method, "counts", lambda *_: {0: 0, 2: 32})
    nothing = Replies((), torch.empty(0, 1), torch.empty(0))
    (asked,) = converse(method, 2, lambda _: nothing)
    assert (asked.silos, asked.samples) == ((2,), (32,))
    assert float(method.parameters) == -1


def test_averaged_is_uniform_on_the_cluster():
    method = built("oracle-averaged")
    (asked,) = converse(method, 1, SILOS)
    assert (asked.silos, asked.samples) == ((0, 2), None)
    assert float(method.parameters) == -2
