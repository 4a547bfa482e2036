"""The answers of nodes, and the silos behind Flower's messages, for the training loop.

``discovery.py`` knows which node holds a silo. This module looks for replies more often than Flower
does, and asks again if a reply was lost.
"""

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from torch import Tensor

from spcacw_flwr.alpha import norms_of
from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.flower import audit, records
from spcacw_flwr.flower.discovery import Found
from spcacw_flwr.flower.records import Arrays, Told
from spcacw_flwr.silos import wire
from spcacw_flwr.silos.device import find_device
from spcacw_flwr.silos.layout import Layout
from spcacw_flwr.silos.protocol import LOSSES, Answers, Evaluation, Fault, Replies, Request

log = logging.getLogger(__name__)
SIMULATED_SECONDS, PULL_SECONDS = 0.005, 0.1
"""Pause between two looks for replies. Flower's own pause would be most of a round: a tenth of a
second in simulation, three seconds in deployment."""
OVERDUE_FACTOR, OVERDUE_SECONDS = 2.0, 15.0
"""A reply is overdue after twice the time that the latest other reply took, plus the seconds.

Replies get lost when a SuperLink is busy. With 20 silos on two cores its database stayed locked
for longer than its requests wait (five seconds). A SuperNode whose reply is refused for that reason
does not try again.
"""
ALONE = 100
"""Training alone may take as long as so many rounds. Meanwhile its node does nothing else, so that
to give up early would not help; but if the reply is lost, training must begin some time."""


class Gathering:
    """The answers to a request, as they come from one node after the other.

    It checks everything that can be checked without looking at the numbers. The gate judges the
    numbers (:mod:`spcacw_flwr.engine.gate`). Only ``target`` is asked for L. ``how`` is the key
    ``wire``: the form in which gradients travel.
    """

    def __init__(self, request: Request, target: int, how: str = wire.FLOAT32) -> None:
        self.request, self.target, self.how = request, target, how
        self.faults: dict[int, Fault] = {}
        self._found: dict[int, tuple[Tensor, Tensor]] = {}
        self._samples: dict[int, int] = {}
        self._smoothness: float | None = None

    def wrong(self, silos: Sequence[int], reason: str, words: str) -> None:
        """Note one fault for each of ``silos``; its words are cut to a line."""
        self.faults |= dict.fromkeys(silos, Fault(reason, records.shortened(words)))

    def add(self, asked: Sequence[int], metrics: Told, arrays: Arrays) -> None:
        """Take the answer of a node that was asked for the silos ``asked``.

        A silo that is missing, or named twice, is a fault of that silo only. Silos out of order are
        a fault of all of them, because rows and names may be swapped.
        """
        try:
            self._open(asked, metrics, arrays)
        except Exception as error:  # a stranger's bytes may make a parser raise anything
            self.wrong(asked, "malformed", str(error))
            return
        if self.request.smoothness and self.target in asked:
            try:
                (self._smoothness,) = records.numbers(metrics, records.SMOOTHNESS)
                if not math.isfinite(self._smoothness):
                    raise SpcacwError(f"its {records.SMOOTHNESS} is {self._smoothness}")
            except Exception as error:
                self.wrong([self.target], "malformed", str(error))

    def answers(self, rows: Tensor) -> Answers:
        """Return all answers in silo order; their gradients fill the first of ``rows`` (M, d)."""
        silos = tuple(sorted(self._found.keys() - self.faults.keys()))
        losses = [self._found[silo][1] for silo in silos]
        table = torch.stack(losses).to(rows.device) if losses else rows.new_empty(0)
        if self.request.want == LOSSES:
            replies = Replies(silos, rows[: len(silos), :0], table)
            self._note(replies, torch.zeros(len(silos)))
            return Answers(replies, self.faults)
        for k, silo in enumerate(silos):
            rows[k] = self._found[silo][0]
        samples = tuple(self._samples.get(silo, 0) for silo in silos)
        replies = Replies(silos, rows[: len(silos)], table, self._smoothness, samples=samples)
        norms = norms_of(replies.gradients)
        self._note(replies, norms)
        return Answers(replies, self.faults, norms)

    def _note(self, replies: Replies, norms: Tensor) -> None:
        """Add a line to the host's audit log, if any: what silos were sent and what they sent."""
        if log := audit.here():
            request = self.request
            shared = request.of([request.silos[0]]) if request.silos else request.points[:0]
            log.note(
                audit.HEARD, **audit.question(request), sent=shared.numel(),
                silos=audit.shares(replies, norms, self.target, self.how),
                silent=[silo for silo in request.silos if silo not in replies.silos],
            )  # fmt: skip

    def _open(self, asked: Sequence[int], metrics: Told, arrays: Arrays) -> None:
        request, judging = self.request, self.request.want == LOSSES
        round_, draw = (records.whole_number(metrics, name) for name in ("round", "draw"))
        silos, losses = records.whole_numbers(metrics, "silos"), records.numbers(metrics, "loss")
        gradients = wire.received(arrays, self.how)
        if (round_, draw) != (request.round, request.draw):
            words = f"it answers round {round_}, draw {draw}, where {request.round}, draw "
            self.wrong(asked, "round", f"{words}{request.draw} was asked")
            return
        count = len(silos)
        shape = (count, 0 if judging else request.points.shape[-1])
        columns = request.points.shape[-2] if judging else 1
        if gradients.dtype != np.float32:
            self.wrong(asked, "dtype", f"its gradients are {gradients.dtype}, not float32")
            return
        if gradients.shape != shape or len(losses) != count * columns:
            words = f"it has gradients of shape {gradients.shape} and {len(losses)} losses where "
            self.wrong(asked, "shape", f"{words}{shape} and {count * columns} were expected")
            return
        times, place = Counter(silos), {silo: k for k, silo in enumerate(silos)}
        at = {silo: place[silo] for silo in asked if times[silo] == 1}  # not those named twice
        if list(at.values()) != sorted(at.values()):
            self.wrong(asked, "silo", f"it answers for silos {silos} in another order")
            return
        missing = [silo for silo in asked if silo not in at]
        if missing:  # almost never; preparing the words of a fault takes time
            self.wrong(missing, "silo", f"its node answers for silos {silos}")
        rows, table = torch.from_numpy(gradients), torch.tensor(losses).float()
        if judging:  # a model whose loss is not a number is worse than any other
            table = table.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
            table = table.view(count, columns)
        self._found |= {silo: (rows[k], table[k]) for silo, k in at.items()}
        with suppress(SpcacwError):  # a node need not report its sample counts
            samples = records.whole_numbers(metrics, "num-examples")
            self._samples |= {silo: samples[k] for silo, k in at.items() if k < len(samples)}


class GridSilos:
    """Silos that are asked by messages: each node gets one message for all of its silos.

    ``found`` changes when a silo comes back on another node. A node has ``timeout`` seconds to
    answer; 0 means the key ``round-timeout``. The ClientApps get ``train_config`` and
    ``evaluate_config`` besides our own keys.
    """

    def __init__(
        self, grid: Grid, config: Config, found: Found, layout: Layout, timeout: float = 0,
        train_config: Told | None = None, evaluate_config: Told | None = None,
    ) -> None:  # fmt: skip
        self.grid, self.config, self.found, self.layout = grid, config, found, layout
        self.timeout = timeout or config.run.round_timeout
        self.told = {
            MessageType.TRAIN: train_config or {}, MessageType.EVALUATE: evaluate_config or {}
        }  # fmt: skip
        self._silent: set[int] = set()
        """The silos that gave no usable answer to the last question."""

    @cached_property
    def _rows(self) -> Tensor:
        """(M, d) float32: the memory in which the gradients of a round are collected."""
        device = find_device(self.config.run.device, self.config.run.precision)
        return torch.empty(len(self.found.nodes), self.layout.size, device=device)

    def answer(self, request: Request) -> Answers:
        """Return the answers that came in time, unchecked, and the faults of other answers."""
        self.found.shut_out()
        if self._silent:
            self.found.look()
        asked, messages = {}, []
        target, encode = self.config.run.target, partial(records.model_to_arrays, self.layout)
        shares = records.by_node(request, self.found.nodes, target, encode)
        for node, silos, arrays, config in shares:
            if node not in self.found.revoked:  # Flower may still list it for a while
                asked[node] = silos
                messages.append(self._message(MessageType.TRAIN, node, arrays, config))
        replies = self.grid.send_and_receive(messages, timeout=self.timeout)
        answers = self._gathered(request, asked, messages, replies).answers(self._rows)
        self._silent = set(request.silos) - set(answers.replies.silos)
        return answers

    def _gathered(
        self, request: Request, asked: dict[int, list[int]], sent: list[Message],
        replies: Iterable[Message],
    ) -> Gathering:  # fmt: skip
        """Read the replies; a bad reply is a fault of its own node's silos only.

        A reply must come from a node that was asked, and answer the message that the node was sent.
        """
        nodes = {one.metadata.message_id: one.metadata.dst_node_id for one in sent}
        gathering = Gathering(request, self.config.run.target, self.config.transport.wire)
        answered = set()
        for message in replies:
            node = nodes.get(message.metadata.reply_to_message_id)
            # An error may come from the SuperLink in place of the node.
            if node is None or not (message.has_error() or node == message.metadata.src_node_id):
                stranger = message.metadata.src_node_id
                log.warning("Node %s answers in round %s and was not asked.",
                            stranger, request.round)  # fmt: skip
                continue
            silos = asked[node]
            if node in answered:
                gathering.wrong(silos, "silo", "its node answers twice")
            elif records.gone(message):
                reason = message.error.reason or message.error.code
                log.warning("Round %s goes on without silos %s: %s", request.round, silos, reason)
            else:
                try:
                    said = records.from_content(records.usable(message), records.ARRAYS)
                except SpcacwError as error:
                    gathering.wrong(silos, "error", str(error))
                except Exception as error:  # a stranger's bytes may make a parser raise anything
                    gathering.wrong(silos, "malformed", str(error))
                else:
                    gathering.add(silos, *said)
            answered.add(node)
        return gathering

    def _message(
        self, kind: str, node: int, arrays: ArrayRecord, config: dict[str, Any]
    ) -> Message:
        told = ConfigRecord({**self.told[kind.partition(".")[0]], **config})
        content = RecordDict({records.CONFIG: told, records.ARRAYS: arrays})
        return Message(content, dst_node_id=node, message_type=kind)

    def evaluate(self, vector: Tensor, silo: int) -> Evaluation:
        """Evaluate a model on the target's test data; SpcacwError if the target does not answer."""
        content = self._ask(MessageType.EVALUATE, silo, vector, {"silo": silo}, self.timeout)
        said = records.from_content(content, records.BUFFERS)
        return records.to_evaluation(*said, self.config.run.metric)

    def train_alone(self, start: Tensor, rounds: int = 0) -> tuple[dict[str, list[float]], Tensor]:
        """Let the target's silo train without peers; see :class:`~.engine.loop.Alone`."""
        kind, target, told = f"train.{records.ALONE}", self.config.run.target, {"rounds": rounds}
        content = self._ask(kind, target, start, told, ALONE * self.timeout)
        figures, _ = records.from_content(content, records.ARRAYS)
        (model,) = records.content_to_points(content)
        return {name: records.numbers(figures, name) for name in figures}, model

    def gains(self, models: Tensor) -> dict[str, list[float]]:
        """Let the target's silo compare two models; see :class:`~.engine.loop.Alone`."""
        kind = f"{MessageType.EVALUATE}.{records.ALONE}"
        content = self._ask(kind, self.config.run.target, models, {}, self.timeout)
        told, _ = records.from_content(content, records.ARRAYS)
        return {name: records.numbers(told, name) for name in told}

    def _ask(
        self, kind: str, silo: int, model: Tensor, config: dict[str, Any], timeout: float
    ) -> RecordDict:
        arrays = records.model_to_arrays(self.layout, model)
        message = self._message(kind, self.found.nodes[silo], arrays, config)
        for reply in self.grid.send_and_receive([message], timeout=timeout):
            return records.usable(reply)
        raise SpcacwError(
            f"Target silo {self.config.run.target} did not answer within {timeout:g} s "
            "(round-timeout): check the node that holds it."
        )


def hurry(grid: Grid) -> bool:
    """Let a grid look for replies more often; say whether its nodes are simulated.

    Before each look for questions, Flower's simulation waits .1 s for the event of its end. No key
    shortens that wait, but the event is an argument of the ServerApp's thread, which is this one.
    If it is not found there, rounds only take longer.
    """
    simulated = hasattr(grid, "pull_interval")
    if simulated:
        setattr(grid, "pull_interval", SIMULATED_SECONDS)  # noqa: B010  only simulation has it
        for end in getattr(threading.current_thread(), "_args", ()):
            if isinstance(end, threading.Event):
                end.wait = partial(_wait, end.wait)  # type: ignore[method-assign]
    else:
        grid.send_and_receive = partial(send_and_receive, grid)  # type: ignore[method-assign]
    return simulated


def ask_once(grid: Grid) -> None:
    """Ask nothing twice: a private silo answers again with fresh noise, which costs it ε."""
    if isinstance(grid.send_and_receive, partial):
        grid.send_and_receive = partial(send_and_receive, grid, once=True)  # type: ignore[method-assign]


def _wait(wait: Callable[..., bool], seconds: float | None = None) -> bool:
    return wait(seconds and min(seconds, SIMULATED_SECONDS))


def send_and_receive(
    grid: Grid, messages: Iterable[Message], *, timeout: float | None = None, once: bool = False
) -> Iterable[Message]:
    """Send messages and return the replies that come within ``timeout`` seconds.

    A message whose reply is long overdue is sent once more, because Flower sometimes loses replies.
    To ask twice does no harm, because silos keep no state. If a reply cannot be read, Flower loses
    all replies of that pull: all are asked for again, and pulled one by one. With ``once`` replies
    are pulled one by one from the start, and nothing is asked again.
    """
    messages, start = list(messages), time.monotonic()
    waiting = dict(zip(grid.push_messages(messages), messages, strict=True))
    overdue, again, alone = math.inf, once, once
    replies: list[Message] = []
    while waiting and (timeout is None or time.monotonic() < start + timeout):
        came = records.pull(grid, list(waiting), alone)
        if came is None:
            copies, again, alone = [_copy(one) for one in waiting.values()], True, True
            waiting = dict(zip(grid.push_messages(copies), waiting.values(), strict=True))
            continue
        for id_, reply in came:
            asked = waiting.get(id_)
            if asked is not None:  # a second reply to the same question is ignored
                waiting = {id_: one for id_, one in waiting.items() if one is not asked}
                if isinstance(reply, str):
                    reply = Message(Error(code=ErrorCode.UNKNOWN, reason=reply), reply_to=asked)
                replies.append(_as_reply_to(asked, reply))
        now = time.monotonic()
        if came:
            overdue = OVERDUE_FACTOR * (now - start) + OVERDUE_SECONDS
        if waiting and not again and now - start > overdue:
            again = True
            lost = list(waiting.values())
            copies = [_copy(message) for message in lost]
            waiting |= dict(zip(grid.push_messages(copies), lost, strict=True))
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
    """Return a reply to a message, or to its copy, as a reply to the message itself."""
    told, asked = reply.metadata, message.metadata
    if told.reply_to_message_id == asked.message_id or told.src_node_id != asked.dst_node_id:
        return reply
    what = reply.error if reply.has_error() else reply.content
    return Message(what, reply_to=message)
