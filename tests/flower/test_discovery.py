"""Nodes that go and come while a run is on: who is a silo, and who only says so."""

import re

import pytest
from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from google.protobuf.message import DecodeError

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.flower import records
from spcacw_flwr.flower.discovery import Found, discover
from spcacw_flwr.flower.members import Members
from spcacw_flwr.flower.records import VERSION
from tests.flower.grid import LocalGrid
from tests.flower.test_strategy import ONE_EACH, play, small


@pytest.fixture
def server(tmp_path, monkeypatch):
    """The members of the server that this process belongs to."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    return Members(tmp_path)


class Changing(LocalGrid):
    """Nodes that change in some rounds: {round: what to do to the grid}."""

    def __init__(self, config: Config, changes: dict) -> None:
        super().__init__(config, 7, ONE_EACH)
        target = self.node_of(0)

        def note(message, content):
            config = message.content.config_records.get("config", {})
            if change := changes.get(config.get("round")):
                change(self)
            return content

        self.spoil[target] = note

    def _answer(self, message: Message) -> Message | None:
        if message.metadata.dst_node_id in self.contexts:
            return super()._answer(message)
        return Message(Error(code=ErrorCode.NODE_UNAVAILABLE, reason="gone"), reply_to=message)

    def leave(self, silo: int) -> tuple[int, Context]:
        """Let a silo's node go; return it."""
        node = self.node_of(silo)
        return node, self.contexts.pop(node)

    def add(self, node: int, silo: int) -> None:
        run_config = next(iter(self.contexts.values())).run_config
        config = {"silos": str(silo)}
        self.contexts[node] = Context(1, node, config, RecordDict(), run_config)

    def asked(self, node: int) -> list[int]:
        """The rounds in which a node was asked for a gradient."""
        trains = [m for m in self.sent if m.metadata.message_type == "train"]
        mine = [m for m in trains if m.metadata.dst_node_id == node]
        return [m.content.config_records["config"]["round"] for m in mine]


class Garbling(Changing):
    """Flower cannot read what node 900 says, and loses what it pulled with it."""

    def pull_messages(self, message_ids):
        came = super().pull_messages(message_ids)
        if any(reply.metadata.src_node_id == 900 for reply in came):
            raise DecodeError("Error parsing message")
        return came


@pytest.mark.parametrize("begins", [1, 4])
def test_a_stranger_that_cannot_be_read_ends_nothing(begins, caplog):
    config = small()
    grid = Garbling(config, {2: lambda grid: grid.leave(6), begins: lambda grid: grid.add(900, 6)})
    expected = {silo: grid.node_of(silo) for silo in range(7)}
    if begins == 1:  # before the first question
        grid.add(900, 6)
    assert play(config, grid, rounds=8).nodes.found.nodes == expected
    told = "Node 900 does not take part: its reply cannot be read: Error parsing message."
    assert caplog.text.count(told) == 1


def test_a_node_whose_program_crashes_at_each_question_is_named_with_flowers_reason():
    class Crashing(Changing):
        def _answer(self, message: Message) -> Message | None:
            if message.metadata.dst_node_id != self.node_of(6):
                return super()._answer(message)
            why = Error(code=ErrorCode.CLIENT_APP_CRASHED, reason="ClientApp stopped responding.")
            return Message(why, reply_to=message)

    grid = Crashing(small(), {})
    with pytest.raises(SpcacwError) as caught:
        discover(grid, 7, timeout=0.5)
    why = f"; Flower of node {grid.node_of(6)}: ClientApp stopped responding."
    why += "; Flower gives a program 30 s to start: too many nodes on one machine take longer"
    assert f"7 nodes are connected, 1 of them did not answer{why}; start" in str(caught.value)
    assert len(grid.sent) > 8  # it was asked again


def test_a_silo_that_comes_back_as_another_node_takes_part_again(caplog):
    """As one without a key does: node 900 holds silo 6 from round 5 on."""
    config = small(update_every=1)
    grid = Changing(config, {2: lambda grid: grid.leave(6), 5: lambda grid: grid.add(900, 6)})
    gone = grid.node_of(6)
    strategy = play(config, grid, rounds=10)
    assert strategy.nodes.found.nodes[6] == 900
    assert f"Node 900 holds silos [6] now, in the place of node {gone}." in caplog.text
    assert grid.asked(gone)[-1] < grid.asked(900)[0] <= 7
    assert grid.asked(900)[-1] == 10


def test_a_silo_that_comes_back_as_the_same_node_is_simply_asked_again():
    config = small()
    kept = []
    changes = {
        2: lambda grid: kept.append(grid.leave(6)), 5: lambda grid: grid.contexts.update(kept)
    }  # fmt: skip
    grid = Changing(config, changes)
    strategy = play(config, grid, rounds=10)
    assert strategy.nodes.found.nodes[6] == kept[0][0]
    heard = strategy.method.bias.reports
    assert 5 <= heard[6] < heard[0] == 10
    assert strategy.history.gate.report()["rejected"] == 0  # nobody is blamed for being away


def test_a_silo_that_comes_back_before_flower_has_missed_it_takes_part_again(caplog):
    """Flower finds out in round 7 that a node is gone; node 900 holds its silo from round 4 on."""
    config = small(update_every=1)
    online = []

    class Slow(Changing):
        def get_node_ids(self):
            return {*super().get_node_ids(), *online}

    changes = {
        2: lambda grid: online.append(grid.leave(6)[0]), 4: lambda grid: grid.add(900, 6),
        7: lambda grid: online.clear(),
    }  # fmt: skip
    grid = Slow(config, changes)
    strategy = play(config, grid, rounds=10)
    assert strategy.nodes.found.nodes[6] == 900
    assert 7 < grid.asked(900)[0] <= 9
    assert caplog.text.count("Node 900 does not take part") == 1


def test_a_node_that_left_and_returned_is_asked_again(caplog):
    """Node 900 holds no silo of the run at first; its owner mends that, and starts it again."""
    config = small(update_every=1)
    changes = {
        2: lambda grid: grid.leave(6), 3: lambda grid: grid.add(900, 99),
        5: lambda grid: grid.contexts.pop(900), 7: lambda grid: grid.add(900, 6),
    }  # fmt: skip
    strategy = play(config, Changing(config, changes), rounds=12)
    assert "Node 900 does not take part" in caplog.text
    assert strategy.nodes.found.nodes[6] == 900


def test_a_query_that_could_not_be_sent_is_sent_again(monkeypatch):
    """Streams live on while Flower's SuperLink is away, and look again later."""
    grid = Changing(small(), {})
    found, (old, _) = discover(grid, 7, 5.0), grid.leave(6)
    grid.add(900, 6)

    def fails(messages):
        raise ConnectionError

    with monkeypatch.context() as patch:
        patch.setattr(grid, "push_messages", fails)
        with pytest.raises(ConnectionError):
            found.look()
    assert found.look() == [(900, old, [6])]


def test_a_node_that_is_there_all_the_same_keeps_its_silos():
    """As one whose stream lives on while Flower misses it."""
    grid = Changing(small(), {})
    found, (old, _) = discover(grid, 7, 5.0), grid.leave(6)
    grid.add(900, 6)
    assert found.look(gone=lambda node: node != old) == []
    assert found.look() == [(900, old, [6])]
    assert found.nodes[6] == 900


@pytest.mark.parametrize("silo", [0, 6, 99])
def test_a_silo_is_never_taken_from_a_node_that_is_there(silo, caplog):
    """Silo 5 is gone; a new node claims to be another one, or one that does not exist."""
    config = small()

    def change(grid):
        grid.leave(5)
        grid.add(900, silo)

    grid = Changing(config, {2: change})
    before = dict(play(config, LocalGrid(config, 7, ONE_EACH), rounds=1).nodes.found.nodes)
    strategy = play(config, grid, rounds=6)
    assert strategy.nodes.found.nodes == before
    assert grid.asked(900) == []
    why = f"that it holds, [{silo}], are not missing" if silo < 7 else "Node 900 cannot take part"
    assert "Node 900 does not take part" in caplog.text
    assert why in caplog.text


def test_a_node_that_was_just_killed_is_asked_again_when_it_is_back(monkeypatch):
    """Flower believes it to be there for a while, and then answers in its place."""
    config = small(node_timeout=5)
    grid = LocalGrid(config, 7, ONE_EACH)
    answer, dead = grid._answer, []

    def unavailable(message):
        if message.metadata.dst_node_id == 103 and len(dead) < 2:
            dead.append(message)
            return Message(Error(code=ErrorCode.NODE_UNAVAILABLE, reason="gone"), reply_to=message)
        return answer(message)

    monkeypatch.setattr(grid, "_answer", unavailable)
    strategy = play(config, grid, rounds=1)
    assert len(dead) == 2
    assert 103 in strategy.nodes.found.nodes.values()


def test_a_key_that_was_admitted_for_a_silo_claims_no_other(server):
    grid = LocalGrid(small(), 7, ONE_EACH)
    for silo in range(7):
        server.admit(str(grid.node_of(silo)), f"ecdsa-sha2-nistp384 AAAA{silo} silo-{silo}")
    assert set(discover(grid, 7, 5.0).nodes) == set(range(7))
    node = grid.node_of(2)
    server.admit(str(node), "ecdsa-sha2-nistp384 AAAA2 silo-5,6")
    words = f"Node {node} claims silo 2, and its key was admitted for silo 5, 6: its owner"
    with pytest.raises(SpcacwError, match=words):
        discover(grid, 7, 5.0)


@pytest.mark.parametrize("unregistered", [True, False])
def test_a_run_goes_on_without_a_silo_that_was_revoked_and_says_so(unregistered, server, caplog):
    """At once, though Flower may still know its node."""
    config = small()

    def revoke(grid):
        if unregistered:
            grid.leave(6)
        server.admit(str(node), "ecdsa-sha2-nistp384 AAAA silo-6")
        server.shut_out(str(node))

    grid = Changing(config, {2: revoke})
    node = grid.node_of(6)
    strategy = play(config, grid, rounds=8)
    assert [one.metadata.dst_node_id for one in grid.sent].count(node) == 3  # a query first
    assert caplog.text.count(f"Silo 6 was revoked (node {node}): the run goes on without it") == 1
    heard = strategy.method.bias.reports
    assert heard[6] <= 2 < heard[0]
    assert strategy.history.gate.report()["rejected"] == 0


def test_a_run_that_resumes_knows_what_a_revoked_silo_had_told(server):
    """Another run does not begin without it; one that resumes takes its silo with a new key."""
    grid = Changing(small(), {})
    node = grid.node_of(6)
    server.admit(str(node), "ecdsa-sha2-nistp384 AAAA silo-6")
    infos = discover(grid, 7, 5.0).infos
    grid.leave(6)
    with pytest.raises(SpcacwError, match="No node holds silo 6"):
        discover(grid, 7, 0.2, resumes=True)
    server.shut_out(str(node))
    with pytest.raises(SpcacwError, match="No node holds silo 6"):
        discover(grid, 7, 0.2)
    found = discover(grid, 7, 5.0, resumes=True)
    assert found.infos == infos
    assert found.nodes[6] == node
    grid.add(900, 6)
    assert found.look() == [(900, node, [6])]


@pytest.mark.parametrize("version", ["0.0.9 (protocol 1)", None])
def test_a_target_of_another_version_is_refused_before_training(version, monkeypatch, caplog):
    config = small()
    query = Found._query

    def other(self, node):
        message = query(self, node)
        if version:
            message.content.config_records["config"][VERSION] = version
        else:
            del message.content.config_records["config"][VERSION]
        return message

    monkeypatch.setattr(Found, "_query", other)
    grid = LocalGrid(config, 7, ONE_EACH)
    words = f"the target has spcacw-flwr {version or 'an older one'}, and this silo "
    with pytest.raises(SpcacwError, match=re.escape(words)):
        discover(grid, 7, 5.0)


@pytest.mark.parametrize("failed", [False, True])
def test_a_nodes_words_cannot_control_a_terminal(failed):
    words, query = (
        "\x1b[2J\nSilo 3 is best" + 9000 * "!",
        Message(RecordDict(), 7, MessageType.QUERY),
    )
    told = RecordDict({records.CONFIG: ConfigRecord({records.ERROR: words})})
    with pytest.raises(SpcacwError) as error:
        records.usable(Message(Error(0, words) if failed else told, reply_to=query))
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 2100
