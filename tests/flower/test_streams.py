"""Silos in processes of their own: one trajectory with the in-process engine, over TLS.

And silos that die, come back, are late or lie, and streams that are not let in.
"""

import logging
import os
import signal
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
import torch

from benchmarks.separate import NODE, RUN, Separate, certificate, separate
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.gate import judge, norm_bound
from spcacw_flwr.engine.loop import History, train
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.flower import audit, frames, service
from spcacw_flwr.flower.service import Link, Service
from spcacw_flwr.flower.silo import channel_of, talk
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.protocol import Fault
from spcacw_flwr.silos.setup import setting_of
from tests.flower.test_strategy import small
from tests.watching import wait_until

SHARES = [[0], [1, 4], [2, 3, 5, 6]]
ALL, WITHOUT = (0, 1, 2, 3, 4, 5, 6), (0, 2, 3, 5, 6)
TARGET, PEERS = NODE, NODE + 1
ONE_BY_ONE = {"update_every": 1}
"""α is learned in every round, so that no question goes out before the round it belongs to."""


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"method": "ditto"},
        {"method": "ifca"},  # asks for losses, and at models of the silos' own
        {"wire": "int8", "local_batches": 2, "probe": 0.5},
        {"wire": "bfloat16"},
        {"local_batches": 2, "privacy_noise": 0.02},
        {"wire": "float16", "target": 3},
        {"guard": 5, "epochs": 3},  # asks for losses on all of a fold
    ],
    ids=str,
)
def test_streams_follow_the_in_process_trajectory(keys, tmp_path):
    """With momentum, weight decay, clipping, L estimated and peers sampled (p = .6)."""
    config = small(participation=0.6, update_every=5, **keys)
    with separate(config, SHARES, tls=tmp_path) as made:
        method, history = made.method(), History(config)
        train(made.asker, method, history)
    bare = simulate(config)
    assert [line["accuracy"] for line in history.epochs] == pytest.approx(bare.accuracy, abs=0.3)
    assert [line["bytes"] for line in history.epochs] == [line["bytes"] for line in bare.epochs]
    for (round_, alpha), (other, expected) in zip(history.alphas, bare.alphas, strict=True):
        assert round_ == other
        assert alpha == pytest.approx(expected, abs=1e-4)
    for name, part in bare.parameters.items():
        torch.testing.assert_close(history.parameters[name], part, rtol=1e-3, atol=1e-5)


def test_questions_go_out_while_the_target_learns_unless_something_may_change_them():
    """Not before α is learned (every fifth round), nor before an epoch's model is evaluated.

    And not after a fault: here in round 8, as the gate is told.
    """
    config = small(method="spcacw-plus", update_every=5)
    early = {}
    with separate(config, SHARES) as made:
        method, answer, now = made.method(), made.asker.answer, []
        costs = method.costs

        def told(request):
            answers = answer(request)
            if request.round == 8:
                answers = replace(answers, faults={4: Fault("round", "it answers another round")})
            now.append(request.round)
            return answers

        def reckoned(request, replies):
            waiting, _ = made.asker._early
            early[now[-1]] = waiting.round if waiting else None
            return costs(request, replies)

        made.asker.answer, method.costs = told, reckoned
        train(made.asker, method, History(config))
    epoch = method.federation.rounds_per_epoch
    assert len(early) == 2 * epoch
    assert 8 % epoch
    silent = {t for t, asked in early.items() if asked is None}
    assert silent == {t for t in early if t % 5 == 0 or t % epoch == 0 or t == 8}
    assert all(asked == t + 1 for t, asked in early.items() if asked)


def test_a_stream_that_opens_while_the_service_closes_is_no_error():
    """Closing went over the streams, of which one more was no longer allowed."""
    made = Service("127.0.0.1:0", None, 2, 1 << 20)
    first = made.links[1] = Link(1, (0,))
    first.outgoing = SimpleNamespace(put=lambda _: made.links.setdefault(2, Link(2, (1,))))
    made.close()


def kill(made: Separate, node: int) -> None:
    os.kill(made.processes[node].pid, signal.SIGKILL)
    wait_until(lambda: made.service.alive(node) is None)


def come_back(made: Separate, node: int) -> None:
    made.start(node)
    wait_until(lambda: made.service.alive(node))


class Events(History):
    """Does something after some rounds, and notes who was heard in each."""

    def __init__(self, made: Separate, after: dict) -> None:
        super().__init__(made.config)
        self.after, self.heard, self.seconds_of = after, {}, {}
        ask, bound = made.asker.answer, norm_bound(made.config)

        def answer(request):
            start = time.monotonic()
            answers = ask(request)
            replies, _ = judge(request, answers, bound)
            self.heard[request.round] = replies.silos
            self.seconds_of[request.round] = time.monotonic() - start
            return answers

        made.asker.answer = answer

    def progress(self, round_: int) -> None:
        super().progress(round_)
        self.after.get(round_, lambda: None)()


def run(made: Separate, after: dict):
    method, events = made.method(), Events(made, after)
    train(made.asker, method, events)
    return method, events


@pytest.mark.parametrize("early", [False, True])
def test_a_killed_silo_is_silent_and_is_heard_again_when_it_returns(early, caplog):
    """With questions sent early it may have answered round 5, and misses round 10's question."""
    with separate(small(round_timeout=30.0, **({} if early else ONE_BY_ONE)), SHARES) as made:
        after = {4: lambda: kill(made, PEERS), 9: lambda: come_back(made, PEERS)}
        method, events = run(made, after)
    silent = {t: s for t, s in events.heard.items() if s != ALL and not (early and t == 5)}
    assert silent == dict.fromkeys(range(6, 11) if early else range(5, 10), WITHOUT)
    assert max(events.heard) > 11
    gone = "goes on without silos 1 and 4 (node 101), whose stream is gone"
    assert caplog.text.count(gone) == 1
    assert sum(events.seconds_of.values()) < 20  # nobody waited for the dead
    assert method.alpha.sum() == pytest.approx(1)
    assert len(events.epochs) == 2


@pytest.mark.parametrize("early", [False, True])
def test_the_target_is_waited_for_and_asked_again(early):
    """Its batches are a function of the round, so that its death changes no number."""
    config = small(round_timeout=40.0)
    with separate(config, SHARES, pauses={0: {5: 30.0}} if early else None) as made:
        link = made.service.alive(TARGET)

        def strike() -> None:
            if early:  # it was asked for round 5 already
                wait_until(lambda: link.waiting_for is not None)
            kill(made, TARGET)
            threading.Timer(0.0 if early else 1.0, made.start, (TARGET,)).start()

        method, events = run(made, dict.fromkeys([4] if early else [4, 9], strike))
    bare = simulate(config)
    assert set(events.heard.values()) == {ALL}
    np.testing.assert_allclose(method.alpha, bare.alpha, atol=1e-4)
    assert [line["accuracy"] for line in events.epochs] == pytest.approx(bare.accuracy, abs=0.3)


def test_a_silo_that_dies_within_a_round_does_not_hold_it_up():
    config = small(round_timeout=60.0, **ONE_BY_ONE)
    with separate(config, SHARES, pauses={1: {5: 30.0}}) as made:
        link = made.service.alive(PEERS)

        def strike() -> None:
            wait_until(lambda: link.waiting_for is not None)
            os.kill(made.processes[PEERS].pid, signal.SIGKILL)

        after = {4: lambda: threading.Thread(target=strike).start()}
        _, events = run(made, after)
    assert events.heard[4] == ALL
    assert events.heard[5] == WITHOUT
    assert events.seconds_of[5] < 20


def test_a_silo_that_comes_back_while_the_target_learns_does_not_hold_up_the_round():
    """It was asked for round 5 in the stream before."""
    with separate(small(round_timeout=60.0), SHARES, pauses={1: {5: 30.0}}) as made:

        def strike() -> None:
            link = made.service.alive(PEERS)
            wait_until(lambda: link.waiting_for is not None)
            kill(made, PEERS)
            come_back(made, PEERS)

        _, events = run(made, {4: strike})
    assert {t: s for t, s in events.heard.items() if s != ALL} == {5: WITHOUT}
    assert events.seconds_of[5] < 20


def test_a_silo_that_hangs_is_noticed_by_pings(monkeypatch):
    """Its process is stopped, and its machine still holds the connection."""
    hurried = tuple((n, 1000 if n.endswith("_ms") else v) for n, v in frames.OPTIONS)
    monkeypatch.setattr("spcacw_flwr.flower.frames.OPTIONS", hurried)
    with separate(small(), SHARES) as made:
        process = made.processes[PEERS]
        os.kill(process.pid, signal.SIGSTOP)
        wait_until(lambda: made.service.alive(PEERS) is None)
        _, events = run(made, {})
        process.kill()
    assert set(events.heard.values()) == {WITHOUT}


def test_a_late_silo_is_not_waited_for_twice_and_its_late_answer_is_ignored(caplog):
    config = small(round_timeout=1.5, **ONE_BY_ONE)
    with separate(config, SHARES, pauses={1: {3: 4.0}}) as made:
        link = made.service.alive(PEERS)
        after = {6: lambda: wait_until(lambda: link.waiting_for is None)}
        _, events = run(made, after)
    assert {t: s for t, s in events.heard.items() if s != ALL} == dict.fromkeys(
        range(3, 7), WITHOUT
    )
    assert events.seconds_of[3] == pytest.approx(1.5, abs=0.4)
    assert max(events.seconds_of[t] for t in (4, 5, 6)) < 1.4
    said = "goes on without silos 1 and 4 (node 101), which did not answer within 1.5 s"
    assert said in caplog.text


@pytest.mark.parametrize(("round_", "words"), [(8, "round 9"), (7, "when asked to evaluate")])
def test_without_the_target_the_run_ends_with_a_sentence(round_, words):
    """Within an epoch, and before its model is evaluated."""
    gone = pytest.raises(SpcacwError, match=f"Target silo 0 did not answer {words}")
    with separate(small(round_timeout=1.0, **ONE_BY_ONE), SHARES) as made, gone:
        assert made.method().federation.rounds_per_epoch == 7
        run(made, {round_: lambda: kill(made, TARGET)})


def test_what_a_lying_node_sends_is_dropped():
    """Not finite, of another shape, for silos of others, in another round, or of another type."""
    config = small(epochs=1, max_strikes=0, round_timeout=5.0)
    with separate(config, SHARES) as made:
        size = made.pool.layout.size
        lies = {
            1: ([1, 4], 0, np.full((2, size), np.nan, np.float32)),
            2: ([1, 4], 0, np.zeros((2, size - 1), np.float32)),
            3: ([2, 3], 0, np.zeros((2, size), np.float32)),
            4: ([1, 4], 1, np.zeros((2, size), np.float32)),
            5: ([1, 4], 0, np.zeros((2, size), np.float16)),
        }

        def lie(question: frames.Exchange):
            round_ = question.told["round"]
            silos, off, rows = lies.get(round_, lies[1])
            said = {"round": round_ + off, "draw": 0, "silos": silos, "loss": [0.0, 0.0]}
            answer = frames.Exchange(frames.ANSWER, question.id, said, {"gradients": rows})
            return frames.frames(answer)

        events, thread = run_with_a_liar(made, lie)
    thread.join(10)
    assert set(events.heard.values()) == {WITHOUT}
    counts = {"not-finite": 3, "shape": 1, "dtype": 1, "round": 1, "silo": 1}
    assert events.gate.rejections() == {"1": counts, "4": counts}


def opened(channel: grpc.Channel, outgoing: SimpleQueue, token: str, node: int, silos: str):
    """A stream opened by hand."""
    metadata = ((frames.TOKEN, token), (frames.NODE, str(node)), (frames.SILOS, silos))
    return channel.stream_stream(frames.METHOD)(iter(outgoing.get, None), metadata=metadata)


def run_with_a_liar(made: Separate, answer) -> tuple[Events, threading.Thread]:
    """Train; instead of the node PEERS a function answers questions, in a stream opened by hand."""
    kill(made, PEERS)
    token = made.service.invite(PEERS, [1, 4])
    outgoing = SimpleQueue()

    def talk_to_it() -> None:
        with grpc.insecure_channel(made.service.address, frames.OPTIONS) as channel:
            call = opened(channel, outgoing, token, PEERS, "1,4")
            with suppress(grpc.RpcError):
                for message in frames.heard(call, 1 << 30):
                    if message.kind == frames.END:
                        break
                    for frame in answer(message):
                        outgoing.put(frame)
            outgoing.put(None)

    thread = threading.Thread(target=talk_to_it)
    thread.start()
    wait_until(lambda: made.service.alive(PEERS))
    return run(made, {})[1], thread


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (b"\xff\xff\xff", "cannot be read"),
        (next(frames.frames(frames.Exchange(frames.ANSWER, id=77))), "no answer to what was asked"),
        (next(frames.frames(frames.Exchange(frames.END))), "no answer to what was asked"),
    ],
    ids=["garbage", "unasked", "an end"],
)
def test_a_node_that_breaks_the_protocol_is_put_out(frame, words, caplog):
    with separate(small(epochs=1), SHARES) as made:
        events, thread = run_with_a_liar(made, lambda question: [frame])
        thread.join(10)
    assert not thread.is_alive()
    assert set(events.heard.values()) == {WITHOUT}
    assert words in caplog.text


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    """A service with TLS, a node that has a stream, and a pool of one silo."""
    home = tmp_path_factory.mktemp("tls")
    torch.set_num_threads(1)
    with separate(
        small(setting="benchmarks.workload:RandomImages", silos=2), [[0], [1]], tls=home
    ) as made:
        yield made


def attempt(made: Separate, token: str, node: int, silos: list[int], root: str) -> str:
    pool = SiloPool(made.config, setting_of(made.config), silos)
    with pytest.raises(SpcacwError) as caught:
        talk(pool, channel_of(made.service.address, root, bool(root)), token, node, RUN)
    return str(caught.value)


def test_streams_without_a_good_token_are_refused_and_logged(secured, caplog, monkeypatch):
    made, root = secured, secured.root
    caplog.set_level(logging.WARNING)
    good = made.service.invite(NODE + 1, [1])
    bad = [
        ("", NODE + 1, [1], "it shows no token"),
        ("guessed", NODE + 1, [1], "its token is not known"),
        (good, NODE, [1], "its token is of node 101, not of node 100"),
        (good, NODE + 1, [0], "its token is for silos 1, not for silos 0"),
    ]
    for token, node, silos, words in bad:
        assert f"refused the stream: {words}" in attempt(made, token, node, silos, root)
    said = [line for line in caplog.messages if line.startswith("A stream from ipv4:127.0.0.1")]
    assert len(said) == len(bad)
    for line, (*_, words) in zip(said, bad, strict=True):
        assert words in line
    monkeypatch.setattr(audit.Strangers, "came", lambda self: None)  # there were too many
    caplog.clear()
    assert "its token is not known" in attempt(made, "guessed", NODE + 1, [1], root)
    assert not caplog.messages


def test_a_node_that_breaks_the_protocol_and_reads_nothing_holds_no_place(monkeypatch):
    """It is invited again each time, and would leave no place for others."""
    monkeypatch.setattr(service, "GRACE_SECONDS", 0.5)
    made, places = service.Service("127.0.0.1:0", None, 1, 1 << 20), 2 * 1 + 8
    long = frames.Exchange(frames.QUESTION, 1, {}, {"points": np.zeros(1 << 23, np.float32)})

    def let_in(channel: grpc.Channel, node: int, outgoing: SimpleQueue) -> bool | None:
        calls.append(opened(channel, outgoing, made.invite(node, [0]), node, "0"))
        with suppress(AssertionError):
            return bool(wait_until(lambda: made.alive(node), 1))

    calls = []
    with grpc.insecure_channel(made.address, frames.OPTIONS) as channel:
        for node in range(places):
            outgoing = SimpleQueue()
            assert let_in(channel, node, outgoing)
            made.alive(node).ask(1, frames.frames(long))
            outgoing.put(b"garbage")
            wait_until(lambda node=node: made.alive(node) is None)
        wait_until(lambda: let_in(channel, places, SimpleQueue()), 20)
        for call in calls:
            call.cancel()
    made.close()


def test_a_token_opens_one_stream_only(secured):
    made, node = secured, NODE + 1
    token = made.service.invite(node, [1])
    before = made.service.links[node]
    credentials = grpc.ssl_channel_credentials(Path(made.root).read_bytes())
    with grpc.secure_channel(made.service.address, credentials, frames.OPTIONS) as channel:
        call = opened(channel, SimpleQueue(), token, node, "1")
        wait_until(lambda: made.service.links[node] is not before)
        assert before.broken == "the node opened another one"
        said = attempt(made, token, node, [1], made.root)
        call.cancel()
    assert "its token was used before" in said


def test_another_ca_plaintext_and_missing_certificates_do_not_connect(secured, tmp_path):
    made = secured
    token = made.service.invite(NODE + 1, [1])
    certificate(tmp_path)
    other = attempt(made, token, NODE + 1, [1], str(tmp_path / "certificate.pem"))
    assert "cannot be reached" in other
    assert "root-certificates is the CA" in other
    assert "cannot be reached" in attempt(made, token, NODE + 1, [1], "")
    with pytest.raises(SpcacwError, match="has TLS: name the file of its CA"):
        channel_of(made.service.address, "", tls=True)
    with pytest.raises(SpcacwError, match="has no TLS, and this node's config asks for it"):
        channel_of(made.service.address, made.root, tls=False)
    with pytest.raises(SpcacwError, match="on another machine, in clear"):
        channel_of("10.0.0.1:5000", "", tls=False)
