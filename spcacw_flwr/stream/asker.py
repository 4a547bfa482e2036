"""What the loop of training asks where silos answer in streams: the nodes that have one open.

A round goes on when every node that was asked has answered, when the streams of those that have not
are known to be broken, or after ``round-timeout`` seconds. A silo that did not answer counts as
silent. A node that is still busy with an older question is not asked another one until it has
answered that (its late answer is thrown away). Without the target there is no round: the round
waits for it to come back, for ``round-timeout`` seconds, and asks it again.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from queue import Empty
from typing import Any

import torch
from torch import Tensor

from spcacw_flwr.core import wire
from spcacw_flwr.core.config import Config
from spcacw_flwr.core.evaluation import Evaluation
from spcacw_flwr.core.exchange import LOSSES, Replies, Request
from spcacw_flwr.core.method import Federation
from spcacw_flwr.core.stacked import find_device
from spcacw_flwr.keys import SpcacwError
from spcacw_flwr.stream.exchange_pb2 import Answer, Fold, Frame, Question
from spcacw_flwr.stream.frames import Heard, described, frames, pieces
from spcacw_flwr.stream.service import Event, Link, Service
from spcacw_flwr.stream.silo import BUFFER, EVALUATION, LOSSES_TABLE, POINTS

log = logging.getLogger(__name__)


@dataclass
class Asked:
    """A question on its way to one node."""

    question: Question
    data: list[bytes]
    """The serialised frames of its models, which nodes share where all get the same."""
    heard: Heard | None = None
    open: bool = True
    """Whether an answer may still come."""


class Asker:
    """Asks silos through their streams: the :class:`~spcacw_flwr.core.loop.Elsewhere` of the loop.

    Parameters
    ----------
    config : Config
        The run's configuration.
    federation : Federation
        Who takes part; with a layout.
    service : Service
        Where their streams come in.
    nodes : mapping
        The node of each silo.
    """

    def __init__(
        self, config: Config, federation: Federation, service: Service, nodes: Mapping[int, int]
    ) -> None:
        self.config, self.federation, self.service = config, federation, service
        self.nodes, self._id = nodes, 0
        assert federation.layout is not None
        shape, device = (federation.num_silos, federation.layout.size), config.run.device
        self._rows = torch.empty(shape, device=find_device(device))

    def wait_for_all(self, seconds: float) -> None:
        """Wait until every node has a stream.

        Raises
        ------
        SpcacwError
            If the target's has none after so many seconds; without another one, training begins.
        """
        deadline = time.monotonic() + seconds
        while missing := [node for node in set(self.nodes.values()) if not self._link(node)]:
            if time.monotonic() > deadline:
                break
            self._event(min(1.0, seconds))
        if self.nodes[self.federation.target] in missing:
            raise SpcacwError(
                f"Target silo {self.federation.target} opened no stream to {self.service.address} "
                f"within {seconds:g} s (node-timeout): check the log of the node that holds it."
            )
        for node in missing:
            log.warning("Training begins without node %s, which opened no stream.", node)

    def answer(self, request: Request) -> Replies:
        """Return the answers that came in time and can be used."""
        by_node: dict[int, list[int]] = defaultdict(list)
        for silo in request.silos:
            by_node[self.nodes[silo]].append(silo)
        alike = request.points.ndim == (2 if request.want == LOSSES else 1)
        shared = _pieces(request.points) if alike else []
        asked = {}
        for node, silos in by_node.items():
            points = request.of(silos)
            data = shared if alike else _pieces(points)
            asked[node] = Asked(self._question(request, silos, points), data)
        self._exchange(asked, request.round)
        found: dict[int, tuple[Tensor, Tensor]] = {}
        smoothness = None
        for node, one in asked.items():
            if one.heard is None:
                continue
            try:
                rows, losses = self._replies(one.heard, request, by_node[node])
            except SpcacwError as error:
                log.warning("Round %s goes on without the answer of node %s (%s).",
                            request.round, node, error)  # fmt: skip
                continue
            for silo, row, loss in zip(by_node[node], rows, losses, strict=True):
                if bool(row.isfinite().all()):
                    found[silo] = row, loss
                else:
                    log.warning("Round %s goes on without the gradient of silo %s (it is not "
                                "finite).", request.round, silo)  # fmt: skip
            answer = one.heard.head
            if one.question.smoothness and answer.HasField("smoothness"):
                smoothness = answer.smoothness
        return self._stack(found, request, smoothness)

    def evaluate(self, vector: Tensor, silo: int) -> Evaluation:
        """Return how good a model is on the test data of the target.

        Raises
        ------
        SpcacwError
            If its silo does not say.
        """
        head = Question(silos=[silo], want=EVALUATION, arrays=described(_arrays(vector)))
        asked = {self.nodes[silo]: Asked(head, _pieces(vector))}
        self._exchange(asked, None)
        (one,) = asked.values()
        if one.heard is None or one.heard.head.error:
            why = one.heard.head.error if one.heard else "it did not answer"
            raise SpcacwError(f"Target silo {silo} did not evaluate its model: {why}.")
        buffers = {
            name.removeprefix(BUFFER): torch.from_numpy(array)
            for name, array in one.heard.arrays.items() if name.startswith(BUFFER)
        }  # fmt: skip
        answer = one.heard.head
        return Evaluation(answer.accuracy, answer.loss, buffers)

    def _question(self, request: Request, silos: list[int], points: Tensor) -> Question:
        question = Question(
            round=request.round, silos=silos, want=request.want, draw=request.draw,
            smoothness=request.smoothness and self.federation.target in silos,
            arrays=described(_arrays(points)),
        )  # fmt: skip
        if request.samples is not None:
            question.samples.extend(request.samples[request.silos.index(i)] for i in silos)
        if request.fold is not None:
            fold = request.fold
            question.fold.CopyFrom(Fold(index=fold.index, of=fold.of, within=fold.within))
        return question

    def _exchange(self, asked: dict[int, Asked], round_: int | None) -> None:
        """Send questions to nodes and wait for their answers, which come into ``asked``."""
        self._id += 1
        vital, timeout = self.nodes[self.federation.target], self.config.run.round_timeout
        for node, one in asked.items():
            one.question.id = self._id
            one.open = self._ask(node, one) or node == vital
        deadline = time.monotonic() + timeout
        while any(one.open for one in asked.values()):
            if (left := deadline - time.monotonic()) <= 0 or not (event := self._event(left)):
                break
            node = event.link.node
            now = asked.get(node)
            if now is None or not now.open or event.link is not self.service.links.get(node):
                continue
            if event.heard is not None and event.heard.head.id == self._id:
                now.heard, now.open = event.heard, False
            elif node == vital:
                if event.link.broken:
                    log.warning("The target's stream is gone (%s): round %s waits %g s for it.",
                                event.link.broken, round_, timeout)  # fmt: skip
                    deadline = time.monotonic() + timeout
                else:  # it came back, or is done with an older question
                    self._ask(node, now)
            elif event.link.broken:
                now.open = False
        for node, one in asked.items():
            if one.open:
                log.warning("Round %s goes on without node %s, which did not answer within %g s.",
                            round_, node, timeout)  # fmt: skip

    def _ask(self, node: int, one: Asked) -> bool:
        """Send a question if the node has a stream and nothing else to do."""
        link = self._link(node)
        if link is None or link.waiting_for is not None:
            return False
        link.ask(one.question.id, frames(Frame(question=one.question), one.data))
        return True

    def _link(self, node: int) -> Link | None:
        return self.service.alive(node)

    def _event(self, seconds: float) -> Event | None:
        try:
            return self.service.inbox.get(timeout=seconds)
        except Empty:
            return None

    def _replies(self, message: Heard, request: Request, silos: list[int]) -> tuple[Tensor, Tensor]:
        """Return the rows (k, d) and losses (k,) or (k, c) of a node's answer, checked."""
        answer: Answer = message.head
        if answer.error:
            raise SpcacwError(answer.error)
        if list(answer.silos) != silos or answer.round != request.round:
            raise SpcacwError(
                f"it answers for silos {list(answer.silos)} in round {answer.round} but silos "
                f"{silos} were asked in round {request.round}"
            )
        judging = request.want == LOSSES
        shape = (len(silos), request.points.shape[-2]) if judging else (len(silos),)
        parts = {name: torch.from_numpy(array) for name, array in message.arrays.items()}
        losses = parts.pop(LOSSES_TABLE, torch.empty(0))
        if losses.shape != shape or losses.dtype != torch.float32:
            raise SpcacwError(f"it has losses of shape {tuple(losses.shape)}, not {shape}")
        if judging:
            return torch.empty(len(silos), 0), losses.nan_to_num(nan=torch.inf)
        how = self.config.transport.wire
        return wire.unpack(parts, how, (len(silos), request.points.shape[-1])), losses

    def _stack(
        self, found: dict[int, tuple[Tensor, Tensor]], request: Request, smoothness: float | None
    ) -> Replies:
        silos = tuple(sorted(found))
        table = [found[silo][1] for silo in silos]
        losses = torch.stack(table).to(self._rows) if table else self._rows.new_empty(0)
        rows = self._rows[: len(silos)]
        if request.want == LOSSES:
            return Replies(silos, rows[:, :0], losses)
        for k, silo in enumerate(silos):
            rows[k] = found[silo][0]
        return Replies(silos, rows, losses, smoothness)


def _arrays(points: Tensor) -> dict[str, Any]:
    return {POINTS: points.cpu().numpy()}


def _pieces(points: Tensor) -> list[bytes]:
    return list(pieces(_arrays(points)))
