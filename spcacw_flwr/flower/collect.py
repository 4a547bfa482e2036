"""From the messages of a round to what the gate judges.

A reply must come from a node that was asked, to the message that it was sent, be readable, and
answer what was asked for the silos that were asked. Whatever is wrong is a fault of the silos that
its node was asked for, never an exception, and costs no other silo its answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from logging import WARNING

from flwr.app import Message, RecordDict
from flwr.common.logger import log
from torch import Tensor

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.flower import records
from spcacw_flwr.flower.bundle import Answer, for_all, opened, stacked
from spcacw_flwr.silos.protocol import Answers, Fault, Request
from spcacw_flwr.silos.wire import FLOAT32


def collect(
    messages: Iterable[Message],
    sent: Iterable[Message],
    asked: Mapping[int, list[int]],
    request: Request,
    rows: Tensor,
    target: int,
    how: str = FLOAT32,
) -> Answers:
    """Read the messages that answer a request and put them together.

    Parameters
    ----------
    messages : iterable of Message
        The replies; those that are missing are simply not there.
    sent : iterable of Message
        The messages that they answer.
    asked : mapping
        The silos that each node was asked for.
    request : Request
        What was asked.
    rows : Tensor
        (M, d) float32, overwritten: the gradients come in its first rows, in silo order.
    target : int
        The target silo.
    how : str
        The key ``wire``: what gradients travel as.
    """
    nodes = {one.metadata.message_id: one.metadata.dst_node_id for one in sent}
    found: dict[int, Answer] = {}
    faults: dict[int, Fault] = {}
    smoothness: float | None = None
    answered = set()
    for message in messages:
        node = nodes.get(message.metadata.reply_to_message_id)
        # An error may be the SuperLink's own, which then stands in for the node.
        if node is None or not (message.has_error() or node == message.metadata.src_node_id):
            stranger = message.metadata.src_node_id
            log(WARNING, "Node %s answers in round %s and was not asked.", stranger, request.round)
            continue
        silos = asked[node]
        if node in answered:
            faults |= for_all(silos, "silo", "its node answers twice")
            continue
        answered.add(node)
        if records.gone(message):
            reason = message.error.reason or message.error.code
            log(WARNING, "Round %s goes on without silos %s: %s", request.round, silos, reason)
            continue
        try:
            content = records.usable(message)
        except SpcacwError as error:
            faults |= for_all(silos, "error", str(error))
            continue
        try:
            answers, wrong = opened(records.content_to_bundle(content, how), request, silos)
            found |= answers
            faults |= wrong
        except Exception as error:  # a stranger's bytes may make a parser raise anything
            faults |= for_all(silos, "malformed", str(error))
            continue
        if target in silos and request.smoothness:
            try:
                smoothness = _smoothness(content)
            except Exception as error:
                faults |= for_all([target], "malformed", str(error))
    usable = {silo: answer for silo, answer in found.items() if silo not in faults}
    return Answers(stacked(usable, request, rows, smoothness), faults)


def _smoothness(content: RecordDict) -> float:
    """Return L, which the target was asked for beside its answer."""
    (smoothness,) = records.metric(content, records.SMOOTHNESS)
    if not math.isfinite(smoothness):
        raise SpcacwError(f"its {records.SMOOTHNESS} is {smoothness}")
    return smoothness
