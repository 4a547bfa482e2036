"""Replies that get lost are asked for again, once; the strategy sees one reply to each message."""

import threading
from collections.abc import Iterable
from functools import partial
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.server.superlink.fleet.vce.vce_api import add_messages_to_queue
from flwr.serverapp import ServerApp
from flwr.simulation.run_simulation import run_serverapp_th
from google.protobuf.message import DecodeError

from spcacw_flwr.config.config import Config
from spcacw_flwr.flower import grid as polling
from tests.flower.grid import LocalGrid

ALL = [101, 102, 103]
LOST, LATE, FAILS, GARBAGE = "lost", "late", "fails", "garbage"


class Losing(LocalGrid):
    """Nodes that answer every message, but for what befalls their first replies.

    One that is late comes together with the next.
    """

    def __init__(self, fates: dict[int, list[str]]) -> None:
        super().__init__(Config.from_keys(), 3)
        self.fates = {node: list(fate) for node, fate in fates.items()}
        self.asked, self.held, self.garbage = [], [], set()

    def _answer(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        self.asked.append(node)
        fate = self.fates[node].pop(0) if self.fates.get(node) else ""
        if fate == LATE:
            self.held.append(message)
        if fate in (LOST, LATE):
            return None
        for first in self.held:
            self.replies[first.metadata.message_id] = Message(first.content, reply_to=first)
        self.held.clear()
        what = Error(code=2, reason="broken") if fate == FAILS else message.content
        if fate == GARBAGE:
            self.garbage.add(message.metadata.message_id)
        return Message(what, reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Like Flower's HTTP grid it loses all of a pull of which one reply cannot be read."""
        came = super().pull_messages(message_ids)
        if any(reply.metadata.reply_to_message_id in self.garbage for reply in came):
            raise DecodeError("Error parsing message")
        return came


def exchange(grid: LocalGrid, timeout: float, ask: Any = None) -> dict[int, object]:
    """Return what each node said, by the message that was sent to it."""
    sent = {}
    for node in ALL:
        content = RecordDict({"what": ConfigRecord({"number": node}), "w": ArrayRecord()})
        sent[node] = Message(content, dst_node_id=node, message_type=MessageType.TRAIN)
    found = {}
    ask = ask or partial(polling.send_and_receive, grid)
    for reply in ask(list(sent.values()), timeout=timeout):
        node = reply.metadata.src_node_id
        assert node not in found
        assert reply.metadata.reply_to_message_id == sent[node].metadata.message_id
        found[node] = reply.error.reason if reply.has_error() else reply.content["what"]["number"]
    return found


@pytest.mark.parametrize(
    ("fates", "said", "again"),
    [
        ({}, {101: 101, 102: 102, 103: 103}, []),
        ({102: [LOST]}, {101: 101, 102: 102, 103: 103}, [102]),
        ({102: [LOST] * 9}, {101: 101, 103: 103}, [102]),
        ({103: [LATE]}, {101: 101, 102: 102, 103: 103}, [103]),
        ({102: [LOST, FAILS]}, {101: 101, 102: "broken", 103: 103}, [102]),
        (dict.fromkeys(ALL, [LOST] * 9), {}, []),
    ],
    ids=["all answer", "one is lost", "one is dead", "one twice", "one fails then", "nobody"],
)
def test_a_lost_reply_is_asked_for_again_once_if_others_came(
    fates, said, again, caplog, monkeypatch
):
    """It is waited for until the timeout; of two replies to one question one is returned."""
    monkeypatch.setattr(polling, "OVERDUE_SECONDS", 0.3)
    monkeypatch.setattr(polling, "PULL_SECONDS", 0.01)
    grid = Losing(fates)
    assert exchange(grid, timeout=1.5) == said
    assert grid.asked == ALL + again
    assert (f"Nodes {again} are asked again" in caplog.text) == bool(again)


@pytest.mark.parametrize("times", [1, 9])
def test_a_reply_that_cannot_be_read_costs_no_other_node_its_own(times):
    unread = {102: 102} if times == 1 else {102: "its reply cannot be read: Error parsing message"}
    grid = Losing({102: [GARBAGE] * times})
    assert exchange(grid, timeout=5.0) == {101: 101, 103: 103} | unread
    assert grid.asked == ALL + ALL


@pytest.mark.parametrize(("fate", "said"), [
    (LOST, {}), (GARBAGE, {102: "its reply cannot be read: Error parsing message"}),
])  # fmt: skip
def test_private_silos_are_asked_nothing_twice(fate, said, monkeypatch):
    """A second answer has fresh noise, and costs the silo as much ε as the first."""
    monkeypatch.setattr(polling, "OVERDUE_SECONDS", 0.1)
    monkeypatch.setattr(polling, "PULL_SECONDS", 0.01)
    grid = Losing({102: [fate]})
    polling.hurry(grid)
    polling.ask_once(grid)
    assert exchange(grid, 1.0, grid.send_and_receive) == {101: 101, 103: 103} | said
    assert grid.asked == ALL


def test_a_simulation_looks_for_questions_sooner():
    """In Flower's own threads: that of its ServerApp, and the one that hands questions to nodes."""
    waits, looks, queues = [], [], [Queue(), Queue(), Queue()]

    class End(threading.Event):
        def wait(self, timeout=None):
            waits.append(timeout)

    def look(node_id, limit):
        looks.append(node_id)
        if len(looks) == 3:
            end.is_set = lambda: True
        return []

    end, app = End(), ServerApp()
    app.main()(lambda grid, context: seen.append(polling.hurry(grid)))
    seen, context = [], Context(1, 0, {}, RecordDict(), {})
    grid = SimpleNamespace(pull_interval=0.1, set_run=lambda run: None)
    run_serverapp_th(None, app, context, grid, "", end, queues[0], False, queues[1]).join()
    end.clear()
    assert queues[0].empty()
    assert (seen, grid.pull_interval) == ([True], polling.SIMULATED_SECONDS)
    add_messages_to_queue(SimpleNamespace(get_message_ins=look), queues[2], {7: 0}, end)
    assert waits == [polling.SIMULATED_SECONDS] * 3
