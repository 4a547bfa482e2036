"""The gate by hand: what passes, strikes, quarantine, probes, and what is said of them."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.registry import method_class
from spcacw_flwr.engine.gate import LONGEST, REASONS, Gate, judge, norm_bound, nothing, sizes_asked
from spcacw_flwr.engine.loop import play
from spcacw_flwr.flower.grid import Gathering
from spcacw_flwr.methods.base import Method
from spcacw_flwr.silos.batches import Fold
from spcacw_flwr.silos.protocol import (
    LOSSES,
    Answers,
    Fault,
    Federation,
    Replies,
    Request,
    SiloInfo,
)
from tests.conftest import make_method, make_pool
from tests.engine.test_simulate import spoil
from tests.flower.test_fuzz import BAD, TamperingGrid
from tests.flower.test_strategy import play as by_flower

INF, NAN = float("inf"), float("nan")


def gate(silos=4, **keys) -> Gate:
    return Gate(Config.from_keys(**keys), silos)


def judged(rows, losses=None, want="gradients", **keys):
    """Return who passes, and why the others do not."""
    rows = torch.tensor(rows, dtype=torch.float32)
    silos = tuple(range(len(rows)))
    losses = torch.ones(len(rows)) if losses is None else torch.tensor(losses)
    request = Request(1, silos, torch.zeros(2), want)
    bound = norm_bound(Config.from_keys(**keys))
    replies, faults = judge(request, Answers(Replies(silos, rows, losses)), bound)
    assert len(replies.gradients) == len(replies.losses) == len(replies.silos)
    return replies.silos, {silo: fault.reason for silo, fault in faults.items()}


def test_an_answer_is_finite_and_no_longer_than_it_may_be():
    rows = [[0, 1], [NAN, 0], [0, INF], [0.8, 0.8], [1 + 1e-5, 0], [1e30, 0]]
    assert judged(rows) == (
        (0, 4), {1: "not-finite", 2: "not-finite", 3: "too-long", 5: "too-long"},
    )  # fmt: skip
    assert judged(rows, norm_bound=2.0)[0] == (0, 3, 4)
    assert judged([[1, 0]] * 3, [NAN, 1.0, INF]) == ((1,), {0: "not-finite", 2: "not-finite"})
    for keys in ({"max_norm": 0.0}, {"clip": "aggregate"}):
        assert judged([[3, 4], [6, 8]], norm_bound=5.0, **keys) == ((0,), {1: "too-long"})
        # Without a bound of one's own nothing may overflow: neither a product nor a norm.
        assert judged([[LONGEST / 2] * 2, [2e18, 0], [3e38] * 2], **keys)[0] == (0,)


@pytest.mark.parametrize(("size", "round_", "keys", "more", "asked"), [
    (70, 1, {}, {}, (32, 32)), (70, 3, {}, {}, (6, 32)), (65, 3, {}, {}, (2, 32)),
    (65, 2, {}, {}, (31, 32)),
    (20, 1, {}, {}, (20, 20)), (70, 3, {"local_batches": 4}, {}, (24, 128)),
    (70, 1, {}, {"samples": (9, 5)}, (5, 5)), (70, 2, {}, {"fold": Fold(0, 2)}, (32, 32)),
    (70, 2, {"target": 1}, {"fold": Fold(0, 2)}, (3, 32)),
])  # fmt: skip
def test_of_how_many_samples_a_gradient_must_be(size, round_, keys, more, asked):
    """Batches of 32; 70 = 32 + 32 + 6, and 65 = 32 + 31 + 2, for none is of a single sample."""
    config, request = Config.from_keys(**keys), Request(round_, (0, 1), torch.zeros(2), **more)
    infos = (SiloInfo(0, 999, ()), SiloInfo(1, size, ()))
    method = SimpleNamespace(config=config, federation=Federation(infos, 0, 32))
    assert sizes_asked(method, request, 1) == asked


def test_a_models_loss_may_be_infinite_but_not_minus_infinity():
    losses = [[1.0, INF], [-INF, 0.0], [NAN, 1.0]]
    assert judged(torch.zeros(3, 0).tolist(), losses, LOSSES)[0] == (0,)


def test_norms_that_an_engine_knows_are_looked_at_again_where_they_are_not_finite():
    rows = torch.tensor([[1.0, 0.0], [0.0, 0.0], [NAN, 0.0]])
    replies = Replies((0, 1, 2), rows, torch.ones(3))
    answers = Answers(replies, norms=torch.tensor([1.0, INF, INF]))
    found, faults = judge(Request(1, (0, 1, 2), torch.zeros(2)), answers, bound=1.0)
    assert (found.silos, list(faults)) == ((0, 1), [2])


# What a node says


def gathered(request, **changes):
    """Gather an answer of silos 1 and 3, changed somewhere."""
    fine = {
        "round": 5, "draw": 0, "silos": [1, 3], "loss": [0.1, 0.3],
        "gradients": np.array([[1, 1], [3, 3]], dtype=np.float32),
    }  # fmt: skip
    said = fine | changes
    gathering = Gathering(request, 0)
    gathering.add([1, 3], said, {"gradients": said.pop("gradients")})
    answers = gathering.answers(torch.zeros(4, request.points.shape[-1]))
    return answers.replies, {silo: fault.reason for silo, fault in answers.faults.items()}


def test_an_honest_answer_is_gathered():
    request = Request(5, (0, 1, 3), torch.zeros(2))
    found, faults = gathered(request)
    assert not faults
    assert found.silos == (1, 3)
    assert found.gradients.tolist() == [[1, 1], [3, 3]]
    assert found.losses.tolist() == pytest.approx([0.1, 0.3])
    rows = np.eye(4, 2, dtype=np.float32)
    found, faults = gathered(request, silos=[7, 1, 1, 3], gradients=rows, loss=[0.0] * 4)
    assert (found.silos, faults) == ((3,), {1: "silo"})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"round": 4}, "round"), ({"draw": 1}, "round"), ({"silos": [3, 1]}, "silo"),
        ({"silos": [1]}, "shape"), ({"loss": [1.0]}, "shape"),
        ({"gradients": np.zeros((2, 3), np.float32)}, "shape"),
        ({"gradients": np.zeros((2, 2))}, "dtype"),
        ({"gradients": np.zeros((2, 2), ">f4")}, "dtype"),
        ({"loss": "low"}, "malformed"), ({"silos": [1.0, 3.0]}, "malformed"),
    ],
)  # fmt: skip
def test_what_is_no_answer_is_a_fault_of_all_its_silos(changes, reason):
    found, faults = gathered(Request(5, (0, 1, 3), torch.zeros(2)), **changes)
    assert not found.silos
    assert faults == {1: reason, 3: reason}
    assert reason in REASONS


def test_losses_at_several_models_come_by_silo():
    request = Request(5, (1, 3), torch.zeros(2, 9), LOSSES)
    none, losses = np.zeros((2, 0), np.float32), [1.0, NAN, 3.0, 4.0]
    found, _ = gathered(request, gradients=none, loss=losses)
    assert found.losses.tolist() == [[1, INF], [3, 4]]


# Strikes and quarantine


class Listening(Method):
    """Asks everybody, twice a round, and notes who was heard."""

    name = "listening"

    def __init__(self, silos=4, target=0, **keys):
        config = Config.from_keys(target=target, **keys)
        infos = tuple(SiloInfo(i, 32, (32,)) for i in range(silos))
        super().__init__(config, Federation(infos, target, 32), torch.zeros(2))
        self.heard: list[tuple[int, ...]] = []
        self.told: list[tuple[int, list[bool]]] = []

    def initial_weights(self):
        return None

    def quarantine(self, silos, round_):
        self.told.append((round_, silos.tolist()))

    def round(self, round_):
        everyone = tuple(range(self.federation.num_silos))
        for draw in (0, 1):
            replies = yield Request(round_, everyone, self.parameters, draw=draw)
            self.heard.append(replies.silos)


def ask(gate: Gate, method: Method, round_: int, bad=(), silent=()) -> list[tuple[int, ...]]:
    """Play a round in which some silos answer badly; return who was asked."""
    asked = []

    def answer(request: Request) -> Answers:
        asked.append(request.silos)
        good = tuple(i for i in request.silos if i not in bad and i not in silent)
        replies = Replies(good, torch.ones(len(good), 2) / 2, torch.ones(len(good)))
        return Answers(replies, {i: Fault("malformed", "it is mud") for i in bad})

    gate.play(method, round_, answer)
    return asked


def test_strikes_lead_into_quarantine_and_good_probes_out_of_it(caplog):
    keys = {"max_strikes": 2, "quarantine_probe": 1.0}
    method, door = Listening(**keys), gate(**keys)
    caplog.set_level(logging.INFO)
    # What is bad once in a round is not asked again in it, and is one strike.
    assert ask(door, method, 1, bad=[2]) == [(0, 1, 2, 3), (0, 1, 3)]
    assert door.strikes.tolist() == [0, 0, 1, 0]
    ask(door, method, 2)  # a good round takes a strike away
    assert door.strikes.tolist() == [0, 0, 0, 0]
    ask(door, method, 3, bad=[2])
    ask(door, method, 4, silent=[2])  # silence is neither good nor bad
    assert door.strikes.tolist() == [0, 0, 1, 0]
    ask(door, method, 5, bad=[2])
    assert door.quarantined.tolist() == [False, False, True, False]
    assert method.told == [(5, [False, False, True, False])]
    assert "Silo 2 is in quarantine from round 5 on: 2 strikes." in caplog.text
    # A probe reaches it; its answers are judged, and the method does not hear them.
    assert ask(door, method, 6) == [(0, 1, 2, 3)] * 2
    assert method.heard[-1] == method.heard[-2] == (0, 1, 3)
    ask(door, method, 7, bad=[2])
    assert door.strikes.tolist() == [0, 0, 2, 0]
    for round_ in (8, 9):
        ask(door, method, round_)
        assert 2 not in method.heard[-1]
    assert not door.quarantined.any()
    assert method.told[1:] == [(9, [False] * 4)]
    assert "Silo 2 is out of quarantine after round 9." in caplog.text
    ask(door, method, 10)
    assert method.heard[-1] == (0, 1, 2, 3)
    assert door.rejections() == {"2": {"malformed": 4}}
    assert door.report() == {"rejected": 4, "quarantined": 0}


def test_in_quarantine_a_silo_is_asked_by_chance_alone():
    def probed(seed: int) -> list[int]:
        keys = {"max_strikes": 1, "quarantine_probe": 0.3, "seed": seed}
        method, door = Listening(**keys), gate(**keys)
        ask(door, method, 1, bad=[2])
        found = [t for t in range(2, 302) if 2 in ask(door, method, t, silent=[2])[0]]
        cost = method.epoch_report()["floats"]  # both ways; nobody is charged for the others
        assert cost == 2 * 2 * (3 + 2 + 300 * 2 * 2 + 2 * len(found))
        return found

    assert 60 < len(probed(0)) < 120
    assert probed(0) == probed(0) != probed(1)


def test_zero_strikes_is_never_and_no_probe_is_for_ever():
    method, door = Listening(), gate(max_strikes=0)
    for t in range(1, 30):
        assert ask(door, method, t, bad=[2])[0] == (0, 1, 2, 3)
    assert not door.quarantined.any()
    keys = {"max_strikes": 1, "quarantine_probe": 0.0}
    method, door = Listening(**keys), gate(**keys)
    ask(door, method, 1, bad=[1, 2, 3])
    assert all(ask(door, method, t) == [(0,), (0,)] for t in range(2, 30))


def test_the_target_is_never_in_quarantine():
    keys = {"max_strikes": 1, "target": 2}
    method, door = Listening(**keys), gate(**keys)
    with pytest.raises(SpcacwError, match=r"Target silo 2 did not answer round 1 \(it is mud\)"):
        ask(door, method, 1, bad=[2])
    door.strikes[2] = 1
    ask(door, method, 2, bad=[1])
    assert door.quarantined.tolist() == [False, True, False, False]


class Deaf(Listening):
    """Asks one peer only, and a model for each."""

    def round(self, round_):
        replies = yield Request(round_, (1, 3), torch.eye(2), samples=(10, 30))
        self.heard.append(replies.silos)


def test_a_question_is_cut_to_those_who_are_asked_and_to_nobody_is_none():
    keys = {"max_strikes": 1, "quarantine_probe": 0.0}
    method, door = Deaf(**keys), gate(**keys)
    assert ask(door, method, 1, bad=[1]) == [(1, 3)]
    cut: list[Request] = []
    door.play(method, 2, lambda request: cut.append(request) or Answers(nothing(request)))
    (request,) = cut
    assert (request.silos, request.samples) == ((3,), (30,))
    assert request.points.tolist() == [[0, 1]]
    assert ask(door, method, 3, bad=[3]) == [(3,)]
    assert ask(door, method, 4) == []
    assert method.heard[-1] == ()


def test_the_log_does_not_flood(caplog):
    method, door = Listening(), gate(max_strikes=0)
    for t in range(1, 101):
        ask(door, method, t, bad=[3])
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "Round 1 goes on without silo 3: it is mud (malformed; no. 1 of this silo)."
    assert len(said) == 3 + len([4, 8, 16, 32, 64])


def test_it_is_counted_who_is_silent_and_since_when():
    """Two questions a round; a bad answer is no silence."""
    method, door = Listening(), gate()
    for t, silent in enumerate(([], [3], [2, 3], [3]), 1):
        ask(door, method, t, bad=[1], silent=silent)
    assert door.silent == {
        "2": {"unanswered": 2, "since": 0}, "3": {"unanswered": 6, "since": 2},
    }  # fmt: skip


class Sometimes:
    """Silos of a pool, of which one stays silent in some rounds."""

    def __init__(self, pool, silo, rounds):
        self.pool, self.silo, self.rounds = pool, silo, rounds

    def answer(self, request):
        speaks = request.round not in self.rounds
        return self.pool.answer(
            request.only(tuple(i for i in request.silos if i != self.silo or speaks))
        )


def test_a_run_without_bad_answers_is_one_in_which_their_silo_was_silent(monkeypatch):
    """Under guard the target's mini-batches are not of the samples that go with its size."""
    config = Config.from_keys(max_strikes=0, epochs=5, guard=5)
    pool, rounds = make_pool(config), range(2, 99, 3)
    bad, silent = make_method(config, pool), make_method(config, pool)
    for t in range(1, 29):
        play(Sometimes(pool, BAD, rounds), silent, t)
    spoil(monkeypatch, BAD, rounds, pool)
    for t in range(1, 29):
        play(pool, bad, t)
    assert bad.alpha.tolist() == silent.alpha.tolist()
    assert torch.equal(bad.personal, silent.personal)


# SP-CACW: no weight, and as silent in the costs


@pytest.mark.parametrize("keys", [{"seed": 1}, {"method": "spcacw", "solver": "eg"}])
def test_weights_in_quarantine_are_zero_and_are_earned_again(keys, monkeypatch):
    config = Config.from_keys(update_every=4, max_strikes=2, quarantine_probe=1.0, **keys)
    peer, pool = 2, make_pool(config)
    spoil(monkeypatch, peer, range(10, 14), pool)
    method, door = make_method(config, pool), gate(7, max_strikes=2, quarantine_probe=1.0)
    alphas = {}
    for t in range(1, 41):
        play(pool, method, t, door)
        alphas[t] = method.alpha.copy()
    assert alphas[10][peer] > 0.01
    # Round 11 is the second strike; 12 and 13 are bad probes, 14 and 15 good ones.
    kept = np.delete(alphas[10], peer)
    np.testing.assert_allclose(np.delete(alphas[11], peer), kept / kept.sum())
    assert all(alphas[t][peer] == 0 for t in range(11, 16))
    assert alphas[12].sum() == pytest.approx(1)
    assert not np.array_equal(alphas[12], alphas[11])  # round 12 learns
    assert alphas[16][peer] > 0
    assert not door.quarantined.any()


def test_if_nobody_else_has_weight_the_target_has_it_all():
    config = Config.from_keys()
    infos = tuple(SiloInfo(i, 32, (32,)) for i in range(3))
    method = method_class("spcacw")(config, Federation(infos, 1, 32), torch.zeros(2))
    method.set_weights(np.array([0.0, 0.0, 1.0]), 3)
    method.quarantine(np.array([False, False, True]), 4)
    assert method.alpha.tolist() == [0, 1, 0]
    assert method.alpha_round == 4


@pytest.mark.parametrize("name", ["spcacw", "fedavg", "ditto"])
def test_the_loop_and_flower_have_one_quarantine(name, monkeypatch):
    config = Config.from_keys(
        method=name, max_strikes=2, quarantine_probe=0.6, update_every=3, epochs=2,
        compare_alone=False,
    )  # fmt: skip
    rounds, pool = (2, 3, 5, 9), make_pool(config)
    spoil(monkeypatch, BAD, rounds, pool)
    method, door = make_method(config, pool), Gate(config, 7)
    for t in range(1, 15):
        play(pool, method, t, door)

    def tamper(message, reply):
        for array in reply.content.array_records.values():
            for name, one in array.items():
                array[name] = type(one)(np.full_like(one.numpy(), NAN))
        return [reply]

    strategy = by_flower(config, TamperingGrid(config, tamper, rounds))
    assert strategy.history.gate.counts.tolist() == door.counts.tolist()
    assert strategy.history.gate.strikes.tolist() == door.strikes.tolist()
    assert door.counts.sum() >= 3
    np.testing.assert_allclose(strategy.method.alpha, method.alpha, atol=1e-5)
    torch.testing.assert_close(strategy.method.personal, method.personal, rtol=1e-4, atol=1e-6)
