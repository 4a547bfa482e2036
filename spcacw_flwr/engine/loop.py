"""The loop of training: ask silos, let the method fold their answers, note each epoch.

The in-process engine (:mod:`spcacw_flwr.engine.simulate`) and the target that trains alone beside a
federated run ask silos that they hold themselves; where gradients come in streams
(``stream``) the same loop asks those. Method and silo functions are those of every
engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.registry import method_class
from spcacw_flwr.engine.checks import Answers
from spcacw_flwr.engine.gate import Gate
from spcacw_flwr.engine.history import Epoch, History
from spcacw_flwr.methods.base import Federation, Method
from spcacw_flwr.silos import wire
from spcacw_flwr.silos.batches import WIRE, stream
from spcacw_flwr.silos.evaluation import Evaluation
from spcacw_flwr.silos.pool import SiloInfo, SiloPool
from spcacw_flwr.silos.protocol import LOSSES, Replies, Request


class Elsewhere(ABC):
    """Silos of other processes, which the loop asks in the place of a pool of its own."""

    @abstractmethod
    def answer(self, request: Request) -> Answers:
        """Return the answers that came, unchecked, and what was wrong with others."""

    @abstractmethod
    def evaluate(self, vector: Tensor, silo: int) -> Evaluation:
        """Return how good a model is on the test data of a silo."""


Silos = SiloPool | Elsewhere


def compute(pool: SiloPool, request: Request) -> tuple[Replies, Tensor]:
    """Return what the silos of ``pool`` answer to a request, and the norms of their gradients.

    With ``local-batches`` both are means over so many independent mini-batches.
    """
    round_, silos, target = request.round, request.silos, pool.config.run.target
    batches = pool.config.transport.local_batches
    draws = range(batches * request.draw, batches * (request.draw + 1))
    if request.want == LOSSES:
        of = request.fold, request.whole
        tables = [pool.losses(request.points, round_, silos, draw, *of) for draw in draws]
        losses = torch.stack(tables).mean(dim=0) if batches > 1 else tables[0]
        nothing = losses.new_zeros(len(silos), 0)
        return Replies(silos, nothing, losses), nothing.sum(dim=1)
    parts = request.samples, request.fold, request.number
    found = pool.gradients(request.points, round_, silos, draws[0], *parts)
    rows, losses, norms = found.rows, found.losses, found.norms
    if batches > 1:
        rows, losses = rows / batches, losses / batches
        for draw in draws[1:]:
            more = pool.gradients(request.points, round_, silos, draw, *parts)
            rows.add_(more.rows, alpha=1 / batches)
            losses.add_(more.losses, alpha=1 / batches)
        norms = torch.linalg.vector_norm(rows, dim=1)
    smoothness = None
    if request.smoothness:
        point = request.of([target]).view(-1)
        smoothness = pool.smoothness(point, round_, target, request.fold)
    return Replies(silos, rows, losses, smoothness), norms


def packed(config: Config, request: Request, replies: Replies) -> dict[str, Tensor]:
    """Return the parts that the gradients of an answer travel as (``wire``)."""
    how = config.transport.wire if replies.gradients.shape[1] else wire.FLOAT32
    key = request.round, request.draw
    drawing = replies.silos if how == wire.INT8 else ()
    rngs = [stream(WIRE, config.run.seed, silo, *key) for silo in drawing]
    return wire.pack(replies.gradients, how, rngs)


def ask(silos: Silos, request: Request) -> Answers:
    """Return what the silos of a pool, or those elsewhere, answer to a request, unchecked."""
    if isinstance(silos, Elsewhere):
        return silos.answer(request)
    replies, norms = compute(silos, request)
    how = silos.config.transport.wire
    if how == wire.FLOAT32 or request.want == LOSSES:
        return Answers(replies, norms=norms)
    parts, (count, size) = packed(silos.config, request, replies), replies.gradients.shape
    replies.gradients = wire.unpack(parts, how, (count, size))
    return Answers(replies)


def answer(silos: Silos, request: Request) -> Replies:
    """Return what silos answer to a request, unchecked."""
    return ask(silos, request).replies


def play(silos: Silos, method: Method, round_: int, gate: Gate | None = None) -> None:
    """Run round t of a method with ``silos``; the gate is a fresh one by default."""
    gate = gate or Gate(method.config, method.federation.num_silos)
    questions = gate.play(method, round_)
    answers = None
    try:
        while True:
            request = questions.send(answers) if answers else next(questions)
            answers = ask(silos, request)
    except StopIteration:
        return


def train(silos: Silos, method: Method, history: History) -> None:
    """Run the configured epochs of a method and note them in ``history``."""
    federation = method.federation
    rounds = method.config.run.epochs * federation.rounds_per_epoch
    gate = history.gate = Gate(method.config, federation.num_silos)
    done = history.start(federation, rounds, {"method": method, "gate": gate})
    if not done:
        history.weights(0, method.alpha)
    if history.ended:  # under Flower, the accuracy of an epoch comes with the next one
        note_epoch(silos, history, history.ended)
    with history.ending():
        for round_ in range(done + 1, rounds + 1):
            play(silos, method, round_, gate)
            if method.alpha_round == round_:
                history.weights(round_, method.alpha)
            history.progress(round_)
            if method.ends_epoch(round_):
                note_epoch(silos, history, Epoch.of(method, gate, round_))
            history.keep(round_)
    history.privacy = method.ledger.summary()


def note_epoch(silos: Silos, history: History, ended: Epoch) -> None:
    """Evaluate the model that an epoch ended with, and note the epoch."""
    accuracy, _, buffers = silos.evaluate(ended.personal, history.config.run.target)
    history.epoch(ended, accuracy, buffers)


def train_alone(config: Config, pool: SiloPool) -> list[float]:
    """Train the target with its own data only, by the method Local and the run's own seed.

    Returns its accuracy (percent) after each epoch.
    """
    target = config.run.target
    (info,) = (info for info in pool.describe() if info.silo == target)
    silos = tuple(SiloInfo(i, 0, ()) for i in range(target))
    federation = Federation((*silos, info), target, config.samples_per_round, pool.layout)
    local = method_class("local")(config, federation, pool.initial_parameters())
    history = History(config)
    train(pool, local, history)
    return [line["accuracy"] for line in history.epochs]
