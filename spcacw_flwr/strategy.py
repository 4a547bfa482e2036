"""SP-CACW as a Flower Strategy: it finds silos, carries records to a method and back, keeps time.

Usable in any Flower app whose ClientApp speaks the records of :mod:`spcacw_flwr.records`::

    strategy = SPCACW(num_silos=7, target=0, eta=0.05, beta=0.1)
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=350)
    print(strategy.method.alpha)

The learning itself is a method of the core (:mod:`spcacw_flwr.core.method`), the same under every
engine. Silos are found by asking every node which ones it holds, never by the order of nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from logging import INFO, WARNING
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray
from torch import Tensor

from spcacw_flwr import records
from spcacw_flwr.core.artefacts import Recorder
from spcacw_flwr.core.config import Config
from spcacw_flwr.core.keys import SpcacwError
from spcacw_flwr.core.method import Federation, Replies, Request, WeightedGradients
from spcacw_flwr.core.models import Layout
from spcacw_flwr.core.registry import method_class
from spcacw_flwr.discovery import Found, discover


class GradientStrategy(Strategy):
    """Runs any method that puts weights on gradients, named by the key ``method``.

    Parameters
    ----------
    config : Config
        The run's configuration.
    num_silos : int
        M, how many silos must be found before training starts.
    recorder : Recorder, optional
        Where the run's artefacts go.
    """

    def __init__(self, config: Config, num_silos: int, recorder: Recorder | None = None) -> None:
        self.config, self.num_silos, self.recorder = config, num_silos, recorder
        self.method_class = method_class(config.run.method)
        self.rejected = 0
        """Replies that were dropped because they could not be used."""
        self._found: Found | None = None
        self._method: WeightedGradients | None = None
        self._layout: Layout | None = None
        self._request: Request | None = None
        self._buffer: Tensor | None = None

    @property
    def method(self) -> WeightedGradients:
        """The method with its state; exists once training has started."""
        if self._method is None:
            raise SpcacwError("The strategy has no method yet: it is made when training starts.")
        return self._method

    def discover(self, grid: Grid) -> Federation:
        """Ask all nodes which silos they hold; wait until all silos are found.

        Raises
        ------
        SpcacwError
            If some silo is held by no node (or by two) when ``node-timeout`` has passed, or a
            node says that it cannot take part.
        """
        if self._found is None:
            run = self.config.run
            self._found = discover(grid, self.num_silos, run.node_timeout)
        infos = tuple(self._found.infos[silo] for silo in range(self.num_silos))
        return Federation(infos, self.config.run.target, self.config.training.batch_size)

    def summary(self) -> None:
        """Log what is about to run, in Flower's start-up block."""
        run = self.config.run
        log(INFO, "\t├──> method %s, target silo %s of %s", run.method, run.target, self.num_silos)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the nodes of the silos that the method wants to hear in this round."""
        if self._method is None:
            self._begin(arrays, grid)
        request = self._request = self.method.request(server_round)
        by_node: dict[int, list[int]] = defaultdict(list)
        for silo in request.silos:
            by_node[self._node(silo)].append(silo)
        target_node = self._node(self.config.run.target)
        return [
            self._message(MessageType.TRAIN, node, arrays, {
                **config, "round": server_round, "silos": silos,
                "smoothness": request.smoothness and node == target_node,
            })
            for node, silos in by_node.items()
        ]  # fmt: skip

    def _begin(self, arrays: ArrayRecord, grid: Grid) -> None:
        federation = self.discover(grid)
        self._layout, vector = records.arrays_to_model(arrays)
        self._dimension = len(vector)
        self._method = self.method_class(self.config, federation, vector)
        self._buffer = torch.empty(self.num_silos, self._layout.size)
        if self.recorder is not None:
            epochs = self.config.run.epochs
            self.recorder.start(federation, epochs * federation.rounds_per_epoch)
            self.recorder.weights(0, self._method.alpha)

    def _node(self, silo: int) -> int:
        assert self._found is not None
        return self._found.nodes[silo]

    def _message(
        self, kind: str, node: int, arrays: ArrayRecord | None, config: dict[str, Any]
    ) -> Message:
        content = RecordDict({records.CONFIG: ConfigRecord(config)})
        if arrays is not None:
            content[records.ARRAYS] = arrays
        return Message(content, dst_node_id=node, message_type=kind)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Give the replies that can be used to the method, which takes its step."""
        request, method = self._request, self.method
        assert request is not None
        assert self._layout is not None
        method.fold(request, self._collect(request, replies))
        if self.recorder is not None:
            if method.alpha_round == server_round:
                self.recorder.weights(server_round, method.alpha)
            self.recorder.progress(server_round)
        return records.model_to_arrays(self._layout, method.parameters), None

    def _collect(self, request: Request, replies: Iterable[Message]) -> Replies:
        rows: dict[int, tuple[NDArray[np.float32], float]] = {}
        smoothness = None
        for reply in replies:
            node = reply.metadata.src_node_id
            silos = [silo for silo in request.silos if self._node(silo) == node]
            try:
                content = records.usable(reply)
                gradients, losses = records.content_to_gradients(content, silos, self._dimension)
            except SpcacwError as error:
                self._drop(request, f"the reply of node {node} ({error})")
                continue
            for silo, gradient, loss in zip(silos, gradients, losses, strict=True):
                if np.isfinite(gradient).all():
                    rows[silo] = gradient, loss
                else:
                    self._drop(request, f"the gradient of silo {silo} (it is not finite)")
            if request.smoothness and self.config.run.target in silos:
                smoothness = records.metric(content, "smoothness")[0]
        return self._stack(rows, smoothness)

    def _drop(self, request: Request, what: str) -> None:
        self.rejected += 1
        log(WARNING, "Round %s goes on without %s.", request.round, what)

    def _stack(
        self, rows: dict[int, tuple[NDArray[np.float32], float]], smoothness: float | None
    ) -> Replies:
        assert self._buffer is not None
        silos = tuple(sorted(rows))
        for k, silo in enumerate(silos):
            self._buffer[k] = torch.from_numpy(rows[silo][0])
        losses = torch.tensor([rows[silo][1] for silo in silos])
        return Replies(silos, self._buffer[: len(silos)], losses, smoothness)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """At the end of an epoch, ask the target's silo for the accuracy of its model."""
        if server_round % self.method.federation.rounds_per_epoch:
            return []
        target = self.config.run.target
        content = {**config, "silo": target}
        return [self._message(MessageType.EVALUATE, self._node(target), arrays, content)]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Note the target's accuracy and the epoch's figures."""
        if server_round % self.method.federation.rounds_per_epoch:
            return None
        (accuracy,) = records.metric(self._answer_of_target(replies), "accuracy")
        report = self.method.epoch_report()
        if self.recorder is not None:
            assert self._layout is not None
            parameters = self._layout.unflatten(self.method.parameters)
            self.recorder.epoch(report, accuracy, parameters)
        epoch = server_round // self.method.federation.rounds_per_epoch
        log(INFO, "epoch %s: accuracy %.2f %%, loss %.4f", epoch, accuracy, report["loss"])
        return MetricRecord({"accuracy": accuracy, "loss": report["loss"]})

    def train_alone(self, grid: Grid) -> list[float]:
        """Let the target's silo train without peers; return its accuracy after each epoch."""
        message = self._message(
            f"train.{records.ALONE}", self._node(self.config.run.target), None, {}
        )
        timeout = 10 * self.config.run.round_timeout  # a whole training, not one round
        replies = grid.send_and_receive([message], timeout=timeout)
        return records.metric(self._answer_of_target(replies), "accuracy")

    def _answer_of_target(self, replies: Iterable[Message]) -> RecordDict:
        for reply in replies:
            return records.usable(reply)
        raise SpcacwError(
            f"Target silo {self.config.run.target} did not answer within "
            f"{self.config.run.round_timeout:g} s (round-timeout): check the node that holds it."
        )


class SPCACW(GradientStrategy):
    """SP-CACW (Algorithm 1) as a strategy of its own.

    Parameters
    ----------
    num_silos : int
        M, how many silos must be found before training starts.
    target : int
        The target silo.
    **keys : Any
        Any key of the run config in snake_case: ``eta``, ``beta``, ``participation``, …
        (``spcacw keys`` lists them). ``method="spcacw-reg"`` adds the cubic term.

    Raises
    ------
    SpcacwError
        If a key is unknown or its value is outside its range.
    """

    def __init__(self, num_silos: int, target: int = 0, **keys: Any) -> None:
        config = Config.from_keys(target=target, **keys)
        super().__init__(config, num_silos)
        if target >= num_silos:
            raise SpcacwError(
                f"target = {target} is not a silo: there are silos 0…{num_silos - 1}."
            )
