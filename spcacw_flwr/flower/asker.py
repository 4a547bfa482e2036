"""Ask silos the training loop's questions through the streams that their nodes hold open.

A round goes on when every node that was asked has answered, when the streams of the other nodes are
known to be broken, or after ``round-timeout`` seconds. A silo that did not answer counts as silent.
A node that is still busy with an older question gets no other one until it has answered (its late
answer is thrown away). There is no round without the target: the round waits ``round-timeout``
seconds for the target to come back, and asks it again. A question can be sent before its round
begins, while the method still learns from the answers to the last one.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from queue import Empty

import torch
from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.flower import members, records
from spcacw_flwr.flower.frames import EVALUATION, QUESTION, Exchange, Piece, frames, pieces
from spcacw_flwr.flower.grid import Gathering
from spcacw_flwr.flower.service import Event, Link, Service
from spcacw_flwr.report import words
from spcacw_flwr.silos.device import find_device
from spcacw_flwr.silos.protocol import Answers, Evaluation, Federation, Request

log = logging.getLogger(__name__)


@dataclass
class Asked:
    """A question on its way to one node."""

    question: Exchange
    data: list[Piece]
    """Its models; nodes that get the same models share them."""
    link: Link | None = None
    """The stream in which the question was sent."""
    heard: Exchange | None = None
    open: bool = True
    """Whether an answer may still come."""
    wrong: str | None = None
    """What was wrong with the node's message, if that ended the stream."""


class Asker:
    """Asks the silos of a federation through a service's streams; ``nodes`` maps silo to node."""

    def __init__(
        self, config: Config, federation: Federation, service: Service, nodes: Mapping[int, int]
    ) -> None:
        self.config, self.federation, self.service = config, federation, service
        self.nodes, self._id = nodes, 0
        self._early: tuple[Request | None, dict[int, Asked]] = None, {}
        self._gone: set[int] = set()
        assert federation.layout is not None
        shape, run = (federation.num_silos, federation.layout.size), config.run
        self._rows = torch.empty(shape, device=find_device(run.device, run.precision))

    def wait_for_all(self, seconds: float) -> None:
        """Wait until every node that was not revoked has a stream.

        SpcacwError if the target's node has none after so many seconds. Training begins without
        other nodes that have none.
        """
        deadline, revoked = time.monotonic() + seconds, members.here().revoked
        while missing := [
            node for node in set(self.nodes.values())
            if not self.service.alive(node) and not revoked(node)
        ]:  # fmt: skip
            if time.monotonic() > deadline:
                break
            self._event(min(1.0, seconds))
        if self.nodes[self.federation.target] in missing:
            raise SpcacwError(
                f"Target silo {self.federation.target} opened no stream to {self.service.address} "
                f"within {seconds:g} s (node-timeout): check the log of the node that holds it."
            )
        for node in missing:
            log.warning("Training begins without %s, which opened no stream.", self._who(node))
        self._gone.update(missing)

    def ask_early(self, request: Request) -> None:
        """Send out a question whose answers :meth:`answer` will wait for."""
        self._early = request, self._asked(request)
        self._send(self._early[1])

    def answer(self, request: Request) -> Answers:
        """Return the answers that came in time, and the faults of other answers."""
        early, asked = self._early
        self._early = None, {}
        same = early and early.points is request.points and vars(early) == vars(request)
        if not same:
            asked = self._asked(request)
            self._send(asked)
        self._wait(asked, f"Round {request.round}")
        gathering = Gathering(request, self.federation.target, self.config.transport.wire)
        for one in asked.values():
            silos = one.question.told["silos"]
            if one.wrong:
                gathering.wrong(silos, "malformed", one.wrong)
            elif one.heard and records.ERROR in one.heard.told:
                gathering.wrong(silos, "error", str(one.heard.told[records.ERROR]))
            elif one.heard:
                gathering.add(silos, one.heard.told, one.heard.arrays)
        answers = gathering.answers(self._rows)
        answers.replies.early = self.ask_early
        return answers

    def evaluate(self, vector: Tensor, silo: int) -> Evaluation:
        """Evaluate a model on the target's test data; SpcacwError if the target does not answer."""
        config = records.request_to_config(Request(0, (silo,), vector), [silo], silo)
        arrays, data = _encoded(vector)
        asked = {self.nodes[silo]: Asked(Exchange(EVALUATION, told=config, arrays=arrays), data)}
        self._send(asked)
        self._wait(asked, "The evaluation")
        (one,) = asked.values()
        if one.heard is None or records.ERROR in one.heard.told:
            why = f" ({one.heard.told[records.ERROR]})" if one.heard else ""
            raise SpcacwError(
                f"Target silo {silo} did not answer when asked to evaluate its model{why}: "
                "check the node that holds it."
            )
        return records.to_evaluation(one.heard.told, one.heard.arrays, self.config.run.metric)

    def _asked(self, request: Request) -> dict[int, Asked]:
        """Return a question in the form in which it goes to each node."""
        shares = records.by_node(request, self.nodes, self.federation.target, _encoded)
        return {
            node: Asked(Exchange(QUESTION, told=config, arrays=arrays), data)
            for node, _, (arrays, data), config in shares
        }

    def _send(self, asked: dict[int, Asked]) -> None:
        """Send a question to the nodes that have a stream; the target's node may get it later."""
        self._id += 1
        for node, one in asked.items():
            one.question.id = self._id
            one.open = self._ask(node, one) or node == self.nodes[self.federation.target]

    def _wait(self, asked: dict[int, Asked], what: str) -> None:
        """Wait for the answers to the last question, and put them into ``asked``."""
        target, timeout = self.federation.target, self.config.run.round_timeout
        deadline = time.monotonic() + timeout
        while any(one.open for one in asked.values()):
            if (vital := self.nodes[target]) not in asked:  # it came back under another id
                for node, one in list(asked.items()):
                    if one.open and target in one.question.told["silos"]:
                        asked[vital] = asked.pop(node)
                        self._ask(vital, one)
            if (left := deadline - time.monotonic()) <= 0 or not (event := self._event(left)):
                break
            node = event.link.node
            now = asked.get(node)
            if now is None or not now.open or event.link is not self.service.links.get(node):
                continue
            if event.heard is not None and event.heard.id == self._id:
                now.heard, now.open = event.heard, False
            elif node == vital:
                if event.link.broken:
                    log.warning("%s waits %g s for the target, whose stream is gone (%s).",
                                what, timeout, event.link.broken)  # fmt: skip
                    deadline = time.monotonic() + timeout
                else:  # it came back, or is done with an older question
                    self._ask(node, now)
            elif event.link.broken or event.link is not now.link:  # or it opened another one
                now.open, now.wrong = False, event.link.wrong
        for node, one in asked.items():
            if one.open:
                log.warning("%s goes on without %s, which did not answer within %g s.",
                            what, self._who(node), timeout)  # fmt: skip
            elif one.heard:
                self._gone.discard(node)
            elif not (one.wrong or node in self._gone or self.service.alive(node)):
                self._gone.add(node)
                log.warning("%s goes on without %s, whose stream is gone.", what, self._who(node))

    def _who(self, node: int) -> str:
        names = [str(silo) for silo, at in sorted(self.nodes.items()) if at == node]
        return f"{words.silos(names)} (node {node})"

    def _ask(self, node: int, one: Asked) -> bool:
        """Send a question if the node has a stream and is not busy; say whether it was sent."""
        link = self.service.alive(node)
        if link is None or link.waiting_for is not None:
            return False
        one.link = link
        link.ask(one.question.id, frames(one.question, one.data))
        return True

    def _event(self, seconds: float) -> Event | None:
        try:
            return self.service.inbox.get(timeout=seconds)
        except Empty:
            return None


def _encoded(points: Tensor) -> tuple[records.Arrays, list[Piece]]:
    """Return models as arrays, and as a copy that a late node can read after the method goes on."""
    arrays = {records.POINTS: points.cpu().numpy()}
    return arrays, [[b"".join(parts)] for parts in pieces(arrays)]
