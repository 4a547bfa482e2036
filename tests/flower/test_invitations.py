"""Flower's part in streams: one message to each node, a new one when its stream has ended.

The nodes are threads that run the real ClientApp; the grid hands messages to them and back.
"""

import json
import logging
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from flwr.app import Error, Message

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.recorder import Recorder
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.flower import client_app, invitations, records, server_app, service
from spcacw_flwr.flower.members import Members
from spcacw_flwr.flower.server_app import train
from spcacw_flwr.flower.service import server_credentials
from tests.flower.grid import LocalGrid
from tests.test_end_to_end import assert_same_training
from tests.watching import wait_until

NODES = 3


class StreamGrid(LocalGrid):
    """Answers the message that opens a stream in a thread, when the stream has ended."""

    def __init__(self, config: Config) -> None:
        super().__init__(config, NODES)
        self.invited: list[int] = []
        self.answered: list[Message] = []
        self.gone: set[int] = set()
        self.looks = 0
        self.handed: set[str] = set()
        self.again: set[str] = set()
        """Messages that a reply was asked for once more after it had been handed out."""

    def pull_messages(self, message_ids):
        self.looks += 1
        self.again |= self.handed & set(message_ids)
        replies = super().pull_messages(message_ids)
        self.handed |= {reply.metadata.reply_to_message_id for reply in replies}
        return replies

    def get_node_ids(self):
        return [node for node in self.contexts if node not in self.gone]

    def _answer(self, message: Message) -> Message | None:
        if message.metadata.message_type != f"train.{records.STREAM}":
            return super()._answer(message)
        self.invited.append(message.metadata.dst_node_id)
        threading.Thread(target=self._stream, args=(message,), daemon=True).start()
        return None

    def _stream(self, message: Message) -> None:
        reply = super()._answer(message)
        if message.metadata.dst_node_id in self.gone:  # as Flower says it, with another node's id
            reply = Message(Error(code=5, reason="node unavailable"), reply_to=message)
        self.answered.append(reply)
        self.replies[message.metadata.message_id] = reply


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    monkeypatch.setattr(invitations, "POLL_SECONDS", 0.02)
    create = service.Service.__init__

    def noted(self, *given) -> None:
        create(self, *given)
        services.append(self)

    monkeypatch.setattr(service.Service, "__init__", noted)
    client_app._pool.cache_clear()


def small(output, **keys) -> Config:
    keys = {"epochs": 3, "compare_alone": True, "exchange": "stream", "node_timeout": 30.0} | keys
    return Config.from_keys(output=str(output), **keys)


def run(grid: StreamGrid, config: Config, strike=None) -> Recorder:
    """Train; ``strike`` does something to the exchange service after round 5."""
    recorder = Recorder(Path(config.run.output), config, "deployment")
    progress = recorder.progress

    def striking(round_: int) -> None:
        progress(round_)
        if strike and round_ == 5:
            strike(services[-1])

    recorder.progress = striking
    with recorder.failing():
        train(grid, config, recorder)
        recorder.finish()
    assert len(recorder.epochs) == config.run.epochs
    return recorder


services: list[service.Service] = []


def test_one_message_to_each_node_trains_as_in_process(tmp_path):
    config = small(tmp_path / "run", participation=0.6)
    grid = StreamGrid(config)
    recorder = run(grid, config)
    bare = simulate(small("", participation=0.6))
    assert_same_training(tmp_path / "run", bare)
    assert recorder.alone["accuracy"] == pytest.approx(bare.accuracy_alone, abs=0.3)
    assert sorted(grid.invited) == sorted(grid.contexts)
    kinds = [m.metadata.message_type for m in grid.sent]
    assert (
        sorted(kinds) == ["evaluate.alone"] + ["query"] * 3 + ["train.alone"] + ["train.stream"] * 3
    )
    answered = [records.usable(m)[records.METRICS]["answered"] for m in grid.answered]
    assert len(answered) == NODES
    assert max(answered) == 21 + 3  # the target's node: every round, and an evaluation each epoch


@pytest.mark.slow
def test_a_node_whose_stream_broke_is_invited_anew_with_another_token(tmp_path, caplog):
    config = small(tmp_path / "run", compare_alone=False, round_timeout=20.0, epochs=6)
    grid, seen = StreamGrid(config), []
    victim = min(grid.contexts)

    def strike(made: service.Service) -> None:
        link = made.links[victim]
        made._break(link, "the cable was pulled")
        wait_until(lambda: made.alive(victim) not in (None, link))
        seen.extend([link, made.links[victim]])

    run(grid, config, strike)
    assert sorted(grid.invited) == sorted([*grid.contexts, victim])
    tokens = {
        str(m.content.config_records[records.CONFIG]["token"])
        for m in grid.sent if m.metadata.message_type == "train.stream"
    }  # fmt: skip
    assert len(tokens) == NODES + 1
    assert f"The stream of node {victim} ended" in caplog.text
    assert seen[0].silos == seen[1].silos


def start_again(grid, made: service.Service, old: int, new: int) -> None:
    """A node's process is killed, and started again under another id."""
    grid.contexts[new] = grid.contexts[old]
    grid.contexts[new].node_id = new
    grid.gone.add(old)
    made._break(made.links[old], "its process was killed")


def test_a_node_started_again_under_a_new_id_takes_its_place(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    config = small(tmp_path / "run", compare_alone=False, epochs=6)
    grid = StreamGrid(config)
    old, new = min(grid.contexts), 999

    def strike(made: service.Service) -> None:
        start_again(grid, made, old, new)
        wait_until(lambda: made.alive(new))
        looks = grid.looks
        wait_until(lambda: grid.looks > looks + 3)

    run(grid, config, strike)
    assert grid.invited.count(new) == 1
    assert not grid.again
    assert f"Node {new} holds silos" in caplog.text


def test_a_round_waits_for_a_target_that_comes_back_under_a_new_id(tmp_path, caplog):
    config = small(tmp_path / "run", compare_alone=False, round_timeout=10.0, epochs=6)
    grid = StreamGrid(config)
    old, new = max(grid.contexts), 999

    def strike(made: service.Service) -> None:
        start_again(grid, made, old, new)

    run(grid, config, strike)
    assert f"Node {new} holds silos" in caplog.text
    assert "goes on without" not in caplog.text


def test_the_stream_of_a_node_is_ended_whenever_it_is_revoked(tmp_path, monkeypatch):
    """Here while invitations are in the middle of a look at who is missing."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    config = small(tmp_path / "run", compare_alone=False, epochs=6)
    grid, known = StreamGrid(config), Members(tmp_path)
    missing, out = grid.contexts.keys() - {grid.node_of(0)}
    known.admit(str(out), "ecdsa-sha2-nistp384 AAAA")
    nodes = grid.get_node_ids

    def look() -> list[int]:
        if missing in grid.gone:
            known.shut_out(str(out))
        return nodes()

    def strike(made: service.Service) -> None:
        monkeypatch.setattr(grid, "get_node_ids", look)
        grid.gone.add(missing)
        made._break(made.links[missing], "its process was killed")
        wait_until(lambda: made.links[out].broken == "its key was revoked")

    run(grid, config, strike)
    assert grid.invited.count(out) == 1


def test_a_node_that_cannot_come_is_said_and_training_goes_on(tmp_path, caplog):
    config = small(tmp_path / "run", compare_alone=False, node_timeout=3.0)
    grid = StreamGrid(config)
    away = min(grid.contexts)  # the last silos: the target's node has the greatest id
    grid.contexts[away].node_config["root-certificates"] = "nothing.pem"
    run(grid, config)
    assert "has no TLS, and this node's config asks for it" in caplog.text
    said = r"Training begins without silos? [\d, and]+ \(node (\d+)\), which opened no stream"
    assert re.findall(said, caplog.text) == [str(away)]
    assert grid.invited.count(away) > 1


def test_without_the_target_no_training_begins(tmp_path):
    config = small(tmp_path / "run", node_timeout=2.0)
    grid = StreamGrid(config)
    grid.contexts[max(grid.contexts)].node_config["root-certificates"] = "nothing.pem"
    with pytest.raises(SpcacwError, match="Target silo 0 opened no stream"):
        run(grid, config)
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "failed"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"stream_address": "0.0.0.0:7000"}, "must not travel there in the clear"),
        ({"stream_address": "silo0.example.org:7000"}, "name stream-certificate"),
        ({"stream_address": "7000"}, "not of the form host:port"),
        ({"stream_certificate": "a.pem"}, "go together"),
        ({"stream_certificate": "a.pem", "stream_key": "b.pem"}, "cannot be read"),
    ],
)
def test_keys_that_do_not_allow_streams_are_refused_before_nodes_are_asked(keys, words, tmp_path):
    with pytest.raises(SpcacwError, match=words):
        server_app.run(SimpleNamespace(), small(tmp_path / "run", **keys))


def test_simulated_nodes_have_no_streams(tmp_path):
    with pytest.raises(SpcacwError, match="is for real silos"):
        server_app.run(SimpleNamespace(pull_interval=0.1), small(tmp_path / "run"))


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:7000", "[::1]:7000", "127.9.9.9:1"])
def test_plaintext_is_allowed_on_loopback(address):
    assert server_credentials(small("", stream_address=address).transport) is None
