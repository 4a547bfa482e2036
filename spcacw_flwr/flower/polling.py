"""How replies are waited for: sooner than Flower would look, and again where one was lost."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable
from functools import partial

from flwr.app import Message
from flwr.common.logger import log
from flwr.serverapp import Grid

SIMULATED_SECONDS, PULL_SECONDS = 0.005, 0.1
"""Between two looks for replies, which would be most of a round: a tenth of a second in Flower's
simulation, three in its deployment."""
OVERDUE_FACTOR, OVERDUE_SECONDS = 2.0, 15.0
"""A reply is overdue after twice the time in which the last of the others came, and seconds.

Replies get lost where a SuperLink is busy: with 20 silos on two cores its database stayed locked
for longer than its requests wait (five seconds), and a SuperNode whose reply is refused so does not
try again.
"""


def hurry(grid: Grid) -> bool:
    """Let a grid look for replies more often; say whether its nodes are simulated."""
    simulated = hasattr(grid, "pull_interval")
    if simulated:
        setattr(grid, "pull_interval", SIMULATED_SECONDS)  # noqa: B010  only simulation has it
    else:
        grid.send_and_receive = partial(send_and_receive, grid)  # type: ignore[method-assign]
    return simulated


def send_and_receive(
    grid: Grid, messages: Iterable[Message], *, timeout: float | None = None
) -> Iterable[Message]:
    """Send messages and return the replies that come within ``timeout`` seconds.

    A message whose reply is long overdue is sent once more, since Flower loses replies at times; it
    asks the same, and silos have no state that being asked twice could change.
    """
    messages, start = list(messages), time.monotonic()
    waiting = dict(zip(grid.push_messages(messages), messages, strict=True))
    overdue, again = math.inf, False
    replies: list[Message] = []
    while waiting and (timeout is None or time.monotonic() < start + timeout):
        came = list(grid.pull_messages(list(waiting)))
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
            waiting |= dict(zip(grid.push_messages(map(_copy, lost)), lost, strict=True))
            nodes = sorted(message.metadata.dst_node_id for message in lost)
            log(logging.WARNING, "Nodes %s are asked again: the others answered long ago.", nodes)
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
