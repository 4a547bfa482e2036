"""A grid that looks for replies more often than Flower's own, and asks again when one is lost.

Flower's sleeps three seconds between two looks. Replies get lost where a SuperLink is busy: with
20 silos on two cores its database stayed locked for longer than its requests wait (five seconds),
and a SuperNode whose reply is refused so does not try again.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

log = logging.getLogger(__name__)
PULL_SECONDS = 0.1
OVERDUE_FACTOR, OVERDUE_SECONDS = 2.0, 15.0
"""A reply is overdue after twice the time in which the last of the others came, and seconds."""


class PromptGrid(Grid):
    """Passes everything on to ``grid``, but waits for replies itself."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def set_run(self, run: Any) -> None:
        """Set the run."""
        self.grid.set_run(run)

    @property
    def run(self) -> Any:
        """The run."""
        return self.grid.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Make a message, as Flower did once."""
        return self.grid.create_message(*args, **kwargs)

    def get_node_ids(self) -> Iterable[int]:
        """Return the connected nodes."""
        return self.grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; return their ids."""
        return self.grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that have come."""
        return self.grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and return the replies that come within ``timeout`` seconds.

        A message whose reply is long overdue is sent once more, since Flower loses replies at
        times; it asks the same, and silos have no state that being asked twice could change.
        """
        messages, start = list(messages), time.monotonic()
        waiting = dict(zip(self.push_messages(messages), messages, strict=True))
        overdue, again = math.inf, False
        replies: list[Message] = []
        while waiting and (timeout is None or time.monotonic() < start + timeout):
            came = list(self.pull_messages(list(waiting)))
            for reply in came:
                asked = waiting.get(reply.metadata.reply_to_message_id)
                if asked is not None:  # the other of two replies to one question is not waited for
                    waiting = {id_: one for id_, one in waiting.items() if one is not asked}
                    replies.append(_as_reply_to(asked, reply))
            now = time.monotonic()
            if came:
                overdue = OVERDUE_FACTOR * (now - start) + OVERDUE_SECONDS
            if waiting and not again and now - start > overdue:
                again = True
                lost = list(waiting.values())
                waiting |= dict(zip(self.push_messages(map(_copy, lost)), lost, strict=True))
                nodes = sorted(message.metadata.dst_node_id for message in lost)
                log.warning("Nodes %s are asked again: the others answered long ago.", nodes)
            if waiting:
                time.sleep(PULL_SECONDS)
        return replies


def _copy(message: Message) -> Message:
    told = message.metadata
    return Message(
        message.content, dst_node_id=told.dst_node_id, message_type=told.message_type,
        group_id=told.group_id,
    )  # fmt: skip


def _as_reply_to(message: Message, reply: Message) -> Message:
    """Return the reply to a message, or to its copy, as one to the message itself."""
    told, asked = reply.metadata, message.metadata
    if told.reply_to_message_id == asked.message_id or told.src_node_id != asked.dst_node_id:
        return reply
    what = reply.error if reply.has_error() else reply.content
    return Message(what, reply_to=message)
