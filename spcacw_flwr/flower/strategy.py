"""SP-CACW as a Flower Strategy: it finds silos, carries records to a method and back, keeps time.

Usable in any Flower app whose ClientApp speaks the records of :mod:`spcacw_flwr.flower.records`::

    strategy = SPCACW(num_silos=7, target=0, eta=0.05, beta=0.1)
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=350)
    print(strategy.method.alpha)

The learning itself is a method of the core (:mod:`spcacw_flwr.methods.base`), the same under every
engine. Silos are found by asking every node which ones it holds, never by the order of nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field, replace
from logging import INFO
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.registry import method_class
from spcacw_flwr.engine.checks import Answers
from spcacw_flwr.engine.gate import Gate
from spcacw_flwr.engine.history import Epoch, History
from spcacw_flwr.flower import records
from spcacw_flwr.flower.collect import collect
from spcacw_flwr.flower.discovery import Found, Lookout, discover
from spcacw_flwr.methods.base import Federation, Method
from spcacw_flwr.methods.guard import make_method
from spcacw_flwr.silos.models import Layout
from spcacw_flwr.silos.protocol import Request
from spcacw_flwr.silos.stacked import find_device


@dataclass
class Question:
    """A request on its way, and what the replies are to hold."""

    request: Request
    asked: dict[int, list[int]]
    """The silos that each node was asked for."""
    wanted: list[str]
    """What the target is to send beside its answer."""
    messages: list[Message] = field(default_factory=list)


@dataclass
class Training:
    """What exists once training has begun."""

    method: Method
    gate: Gate
    layout: Layout
    rows: Tensor
    """(M, d) float32: where the gradients of a round are put together."""
    done: int = 0
    """Rounds of a run that goes on, before Flower's first."""

    @property
    def rounds_per_epoch(self) -> int:
        """Rounds in the target's pass over its own data."""
        return self.method.federation.rounds_per_epoch


class GradientStrategy(Strategy):
    """Runs any method, named by the key ``method``.

    Parameters
    ----------
    config : Config
        The run's configuration.
    num_silos : int
        M, how many silos must be found before training starts.
    history : History, optional
        Notes what happens; a Recorder also writes it to disk.
    """

    def __init__(self, config: Config, num_silos: int, history: History | None = None) -> None:
        self.config, self.num_silos = config, num_silos
        self.history = history or History(config)
        method_class(config.run.method)  # a wrong name is said before any silo is asked
        self._found: Found | None = None
        self._lookout: Lookout | None = None
        self._silent: set[int] = set()
        """The silos that were asked last and gave no answer that can be used."""
        self._training: Training | None = None
        self._last_round = 0
        self._asking: tuple[Grid, Generator[Request, Answers, None], Question] | None = None

    @property
    def method(self) -> Method:
        """The method with its state; exists once training has started."""
        return self.training.method

    @property
    def gate(self) -> Gate:
        """What checks the replies, with its counts; exists once training has started."""
        return self.training.gate

    @property
    def training(self) -> Training:
        """The state of training; SpcacwError before it has started."""
        if self._training is None:
            raise SpcacwError("The strategy has no method yet: it is made when training starts.")
        return self._training

    def discover(self, grid: Grid) -> Federation:
        """Ask all nodes which silos they hold; wait until all silos are found.

        Raises
        ------
        SpcacwError
            If some silo is held by no node (or by two) when ``node-timeout`` has passed, or a
            node says that it cannot take part.
        """
        if self._found is None:
            self._found = discover(grid, self.num_silos, self.config.run.node_timeout)
        infos = tuple(self._found.infos[silo] for silo in range(self.num_silos))
        return Federation(infos, self.config.run.target, self.config.samples_per_round)

    def summary(self) -> None:
        """Log what is about to run, in Flower's start-up block."""
        run = self.config.run
        log(INFO, "\t├──> method %s, target silo %s of %s", run.method, run.target, self.num_silos)

    def start(self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3,
              *args: Any, **kwargs: Any) -> Result:  # fmt: skip
        """Train for ``num_rounds`` rounds; the other parameters are those of Flower's Strategy.

        A run that goes on from a checkpoint (:meth:`History.start`) counts its rounds from there;
        Flower, which counts from 1, is asked for those that are left.
        """
        self._last_round = num_rounds
        training = self._training = self._begin(initial_arrays, grid)  # each start trains afresh
        done, arrays = training.done, initial_arrays
        if done:
            arrays = records.model_to_arrays(training.layout, self.method.personal)
        with self.history.ending():
            result = super().start(grid, arrays, num_rounds - done, *args, **kwargs)
        if done == num_rounds:
            result.arrays = arrays
            if self.history.ended:
                self._evaluate(grid, self.history.ended)
        for metrics in (result.train_metrics_clientapp, result.evaluate_metrics_clientapp):
            shifted = {round_ + done: record for round_, record in metrics.items()}
            metrics.clear()
            metrics.update(shifted)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the nodes of the silos that the method wants to hear in this round."""
        if self._silent:
            self._lookout = self._lookout or Lookout(grid, self.found)
            self._lookout.look()
        steps = self.gate.play(self.method, server_round + self.training.done)
        question = self._question(next(steps))
        self._asking = grid, steps, question
        return question.messages

    def _begin(self, arrays: ArrayRecord, grid: Grid) -> Training:
        layout, vector = records.arrays_to_model(arrays)
        federation = replace(self.discover(grid), layout=layout)
        device = find_device(self.config.run.device)
        method = make_method(self.config, federation, vector.to(device))
        rounds = self.config.run.epochs * federation.rounds_per_epoch
        gate = self.history.gate = Gate(self.config, self.num_silos)
        done = self.history.start(federation, rounds, {"method": method, "gate": gate})
        if not done:
            self.history.weights(0, method.alpha)
        rows = torch.empty(self.num_silos, layout.size, device=device)
        return Training(method, gate, layout, rows, done)

    def _question(self, request: Request) -> Question:
        """Return the messages of a request to the nodes of the silos that it asks.

        After an epoch the target is also asked for its accuracy, with its first answer in the next
        epoch: that saves the message of an evaluation (which costs seconds between real silos).
        """
        ended, layout = self.history.ended, self.training.layout
        asked: dict[int, list[int]] = defaultdict(list)
        for silo in request.silos:
            asked[self.nodes[silo]].append(silo)
        wanted = [records.SMOOTHNESS] * request.smoothness + [records.ACCURACY] * bool(ended)
        question = Question(request, asked, wanted)
        shared = request.points.ndim == 1
        whole = records.points_to_arrays(layout, request.points) if shared else None
        for node, silos in asked.items():
            content = RecordDict({
                records.CONFIG: records.request_to_config(request, silos),
                records.ARRAYS: whole or records.points_to_arrays(layout, request.of(silos)),
            })  # fmt: skip
            if self.config.run.target in silos and wanted:
                content.config_records[records.CONFIG][records.WANTED] = wanted
                if ended and not (shared and torch.equal(request.points, ended.personal)):
                    content[records.PERSONAL] = records.model_to_arrays(layout, ended.personal)
            message = Message(content, dst_node_id=node, message_type=MessageType.TRAIN)
            question.messages.append(message)
        return question

    @property
    def found(self) -> Found:
        """The silos and their nodes; SpcacwError before nodes were asked."""
        if self._found is None:
            raise SpcacwError("The strategy knows no nodes yet: call discover(grid) first.")
        return self._found

    @property
    def nodes(self) -> dict[int, int]:
        """The node of each silo; SpcacwError before nodes were asked."""
        return self.found.nodes

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
        training, method, history = self.training, self.method, self.history
        round_ = server_round + training.done
        assert self._asking is not None  # Flower configures a round before it aggregates it
        grid, steps, question = self._asking
        metrics = None
        try:
            while True:
                found = collect(
                    replies, question.messages, question.asked, question.request,
                    training.rows, self.config.run.target, question.wanted,
                    self.config.transport.wire,
                )  # fmt: skip
                self._silent = set(question.request.silos) - set(found.answers.replies.silos)
                if records.ACCURACY in found.of_target:
                    metrics = self._end_epoch(found.of_target[records.ACCURACY], found.buffers)
                question = self._question(steps.send(found.answers))
                timeout = self.config.run.round_timeout
                replies = grid.send_and_receive(question.messages, timeout=timeout)
        except StopIteration:
            pass
        if method.alpha_round == round_:
            history.weights(round_, method.alpha)
        if method.ends_epoch(round_):
            if history.ended:  # the target was not asked anything in a whole epoch
                self._evaluate(grid, history.ended)
            history.ended = Epoch.of(method, self.gate, round_)
        history.progress(round_)
        history.keep(round_)
        return records.model_to_arrays(training.layout, method.personal), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """After the last round, ask the target's silo for the accuracy of the final model."""
        if server_round + self.training.done < self._last_round:
            return []
        target = self.config.run.target
        content = {**config, "silo": target}
        return [self._message(MessageType.EVALUATE, self.nodes[target], arrays, content)]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Note the final accuracy."""
        if server_round + self.training.done < self._last_round:
            return None
        content = self._answer_of_target(replies)
        (accuracy,) = records.metric(content, records.ACCURACY)
        return self._end_epoch(accuracy, records.buffers(content))

    def _evaluate(self, grid: Grid, ended: Epoch) -> None:
        """Ask the target for the accuracy of an epoch by itself."""
        target = self.config.run.target
        arrays = records.model_to_arrays(self.training.layout, ended.personal)
        message = self._message(MessageType.EVALUATE, self.nodes[target], arrays, {"silo": target})
        timeout = self.config.run.round_timeout
        content = self._answer_of_target(grid.send_and_receive([message], timeout=timeout))
        self._end_epoch(records.metric(content, records.ACCURACY)[0], records.buffers(content))

    def _end_epoch(self, accuracy: float, buffers: dict[str, Tensor]) -> MetricRecord:
        """Note an epoch, and tell Flower what it needs to know of it."""
        # Without an epoch that ended, training was stopped within one.
        ended = self.history.ended or Epoch.of(self.method, self.gate, self._last_round)
        self.history.epoch(ended, accuracy, buffers)
        self.history.privacy = self.method.ledger.summary()
        loss, epoch = ended.report["loss"], ended.round / self.training.rounds_per_epoch
        log(INFO, "epoch %g: accuracy %.2f %%, loss %.4f", epoch, accuracy, loss)
        return MetricRecord({records.ACCURACY: accuracy, "loss": loss})

    def train_alone(self, grid: Grid) -> list[float]:
        """Let the target's silo train without peers; return its accuracy after each epoch."""
        node = self.nodes[self.config.run.target]
        message = self._message(f"train.{records.ALONE}", node, None, {})
        timeout = 10 * self.config.run.round_timeout  # a whole training, not one round
        replies = grid.send_and_receive([message], timeout=timeout)
        return records.metric(self._answer_of_target(replies), records.ACCURACY)

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
