"""The silos behind Flower's messages, as the loop of training asks them.

A node is one message for all of its silos. Silos are found by asking every node which ones it holds
(``discovery.py``), never by the order of nodes; one that has fallen silent is looked for among the
nodes that have appeared since.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property
from logging import WARNING
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.flower import records
from spcacw_flwr.flower.answers import Gathering
from spcacw_flwr.flower.discovery import Found, Lookout
from spcacw_flwr.silos.batches import find_device
from spcacw_flwr.silos.layout import Layout
from spcacw_flwr.silos.protocol import Answers, Evaluation, Request


class GridSilos:
    """Silos that are asked by messages.

    Parameters
    ----------
    grid : Grid
        Flower's nodes.
    config : Config
        The run's configuration.
    found : Found
        Who holds what; changed when a silo comes back on another node.
    layout : Layout
        Names and shapes of the model's parameters.
    timeout : float
        Seconds that a node has to answer; 0 is the key ``round-timeout``.
    train_config, evaluate_config : ConfigRecord, optional
        What the ClientApps are told beside our own words.
    """

    def __init__(
        self, grid: Grid, config: Config, found: Found, layout: Layout, timeout: float = 0,
        train_config: ConfigRecord | None = None, evaluate_config: ConfigRecord | None = None,
    ) -> None:  # fmt: skip
        self.grid, self.config, self.found, self.layout = grid, config, found, layout
        self.timeout = timeout or config.run.round_timeout
        self.told: dict[str, ConfigRecord | dict[str, Any]] = {
            MessageType.TRAIN: train_config or {}, MessageType.EVALUATE: evaluate_config or {}
        }  # fmt: skip
        self._lookout = Lookout(grid, found)
        self._silent: set[int] = set()
        """The silos that were asked last and gave no answer that can be used."""

    @cached_property
    def _rows(self) -> Tensor:
        """(M, d) float32: where the gradients of a round are put together."""
        device = find_device(self.config.run.device)
        return torch.empty(len(self.found.nodes), self.layout.size, device=device)

    def answer(self, request: Request) -> Answers:
        """Return the answers that came in time, unchecked, and what was wrong with others."""
        if self._silent:
            self._lookout.look()
        asked: dict[int, list[int]] = defaultdict(list)
        for silo in request.silos:
            asked[self.found.nodes[silo]].append(silo)
        messages = self._messages(request, asked)
        replies = self.grid.send_and_receive(messages, timeout=self.timeout)
        answers = self._gathered(request, asked, messages, replies).answers(self._rows)
        self._silent = set(request.silos) - set(answers.replies.silos)
        return answers

    def _gathered(
        self, request: Request, asked: dict[int, list[int]], sent: list[Message],
        replies: Iterable[Message],
    ) -> Gathering:  # fmt: skip
        """Read the replies; what is wrong with one is a fault of its node's silos, and no others'.

        A reply must come from a node that was asked, to the message that it was sent.
        """
        nodes = {one.metadata.message_id: one.metadata.dst_node_id for one in sent}
        gathering = Gathering(request, self.config.run.target, self.config.transport.wire)
        answered = set()
        for message in replies:
            node = nodes.get(message.metadata.reply_to_message_id)
            # An error may be the SuperLink's own, which then stands in for the node.
            if node is None or not (message.has_error() or node == message.metadata.src_node_id):
                stranger = message.metadata.src_node_id
                log(WARNING, "Node %s answers in round %s and was not asked.",
                    stranger, request.round)  # fmt: skip
                continue
            silos = asked[node]
            if node in answered:
                gathering.wrong(silos, "silo", "its node answers twice")
            elif records.gone(message):
                reason = message.error.reason or message.error.code
                log(WARNING, "Round %s goes on without silos %s: %s", request.round, silos, reason)
            else:
                self._read(gathering, silos, message)
            answered.add(node)
        return gathering

    def _read(self, gathering: Gathering, silos: list[int], message: Message) -> None:
        try:
            content = records.usable(message)
        except SpcacwError as error:
            gathering.wrong(silos, "error", str(error))
            return
        try:
            metrics = content.metric_records.get(records.METRICS, MetricRecord())
            arrays = records.from_arrays(content, records.ARRAYS)
        except Exception as error:  # a stranger's bytes may make a parser raise anything
            gathering.wrong(silos, "malformed", str(error))
            return
        gathering.add(silos, metrics, arrays)

    def _messages(self, request: Request, asked: dict[int, list[int]]) -> list[Message]:
        shared, messages = request.points.ndim == 1, []
        whole = records.points_to_arrays(self.layout, request.points) if shared else None
        for node, silos in asked.items():
            arrays = whole or records.points_to_arrays(self.layout, request.of(silos))
            smoothness = request.smoothness and self.config.run.target in silos
            config = records.request_to_config(request, silos, smoothness)
            messages.append(self._message(MessageType.TRAIN, node, arrays, config))
        return messages

    def _message(
        self, kind: str, node: int, arrays: ArrayRecord | None, config: dict[str, Any]
    ) -> Message:
        told = ConfigRecord({**self.told.get(kind, {}), **config})
        content = RecordDict({records.CONFIG: told})
        if arrays is not None:
            content[records.ARRAYS] = arrays
        return Message(content, dst_node_id=node, message_type=kind)

    def evaluate(self, vector: Tensor, silo: int) -> Evaluation:
        """Return how good a model is on the test data of the target.

        Raises
        ------
        SpcacwError
            If its silo does not say.
        """
        arrays = records.model_to_arrays(self.layout, vector)
        node = self.found.nodes[silo]
        message = self._message(MessageType.EVALUATE, node, arrays, {"silo": silo})
        content = self._one_answer([message], self.timeout)
        (accuracy,), (loss,) = (records.metric(content, k) for k in (records.ACCURACY, "loss"))
        buffers = records.buffers(records.from_arrays(content, records.BUFFERS))
        return Evaluation(accuracy, loss, buffers)

    def train_alone(self) -> list[float]:
        """Let the target's silo train without peers; return its accuracy after each epoch."""
        node = self.found.nodes[self.config.run.target]
        message = self._message(f"train.{records.ALONE}", node, None, {})
        content = self._one_answer([message], 10 * self.timeout)  # a whole training, not a round
        return records.metric(content, records.ACCURACY)

    def _one_answer(self, messages: Iterable[Message], timeout: float) -> RecordDict:
        for reply in self.grid.send_and_receive(messages, timeout=timeout):
            return records.usable(reply)
        raise SpcacwError(
            f"Target silo {self.config.run.target} did not answer within {timeout:g} s "
            "(round-timeout): check the node that holds it."
        )
