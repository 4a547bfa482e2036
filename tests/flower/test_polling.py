"""Replies that get lost are asked for again, once; the strategy sees one reply to each message."""

from __future__ import annotations

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MessageType, RecordDict

from spcacw_flwr.config.config import Config
from spcacw_flwr.flower import grid as polling
from tests.flower.grid import LocalGrid


class Losing(LocalGrid):
    """Nodes that answer every message; what some of them say gets lost at first, or is late."""

    def __init__(self, lost: dict[int, int], late: int = 0) -> None:
        super().__init__(Config.from_keys(), 3)
        self.lost, self.late, self.asked, self.held = dict(lost), late, [], []

    def _answer(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        self.asked.append(node)
        if self.late == node and self.asked.count(node) == 1:
            self.held.append(message)
            return None
        if self.held and node == self.late:  # the first reply and the second come together
            first = self.held.pop()
            self.replies[first.metadata.message_id] = self.reply(first)
        if self.lost.get(node, 0):
            self.lost[node] -= 1
            return None
        return self.reply(message)

    def reply(self, message: Message) -> Message:
        number = message.content["what"]["number"]
        return Message(RecordDict({"what": ConfigRecord({"number": number})}), reply_to=message)


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    monkeypatch.setattr(polling, "OVERDUE_SECONDS", 0.3)
    monkeypatch.setattr(polling, "PULL_SECONDS", 0.01)


def questions() -> list[Message]:
    return [
        Message(
            RecordDict({"what": ConfigRecord({"number": node}), "w": ArrayRecord()}),
            dst_node_id=node,
            message_type=MessageType.TRAIN,
        )
        for node in (101, 102, 103)
    ]


def exchange(grid: LocalGrid, timeout: float) -> dict[int, int]:
    """Return what each node said, by the message that was sent to it."""
    sent = questions()
    replies = list(polling.send_and_receive(grid, sent, timeout=timeout))
    nodes = {message.metadata.message_id: message.metadata.dst_node_id for message in sent}
    found = {}
    for reply in replies:
        node = nodes[reply.metadata.reply_to_message_id]
        assert node not in found
        assert reply.metadata.src_node_id == node
        found[node] = reply.content["what"]["number"]
    return found


ALL = [101, 102, 103]


@pytest.mark.parametrize(
    ("lost", "late", "answer", "asked"),
    [
        ({}, 0, ALL, ALL),
        ({102: 1}, 0, ALL, [*ALL, 102]),
        ({102: 100}, 0, [101, 103], [*ALL, 102]),
        ({}, 103, ALL, [*ALL, 103]),
        (dict.fromkeys(ALL, 9), 0, [], ALL),
    ],
    ids=["all answer", "one is lost", "one is dead", "one comes twice", "nobody answers"],
)
def test_a_lost_reply_is_asked_for_again_once_if_others_came(lost, late, answer, asked, caplog):
    """It is waited for until the timeout; of two replies to one question one is returned."""
    grid = Losing(lost, late)
    assert exchange(grid, timeout=1.5) == {node: node for node in answer}
    assert grid.asked == asked
    assert (f"Nodes {asked[3:]} are asked again" in caplog.text) == (len(asked) > 3)


def test_an_error_in_answer_to_the_second_question_is_passed_on():
    class Failing(Losing):
        def reply(self, message: Message) -> Message:
            if self.asked.count(message.metadata.dst_node_id) == 2:
                return Message(Error(code=2, reason="broken"), reply_to=message)
            return super().reply(message)

    grid = Failing({102: 1})
    sent = questions()
    replies = list(polling.send_and_receive(grid, sent, timeout=3.0))
    (wrong,) = [reply for reply in replies if reply.has_error()]
    assert wrong.metadata.reply_to_message_id == sent[1].metadata.message_id
    assert wrong.error.reason == "broken"
