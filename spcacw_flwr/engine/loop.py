"""The loop of training: ask silos, let the method fold their answers, note each epoch.

It is the only one. Whom it asks differs: a pool that holds the data of all silos in this process
(``silos/pool.py``), Flower's nodes by messages (``flower/grid.py``) or by streams
(``flower/asker.py``).
"""

from __future__ import annotations

import logging

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.registry import method_class
from spcacw_flwr.engine.gate import Gate
from spcacw_flwr.engine.history import Epoch, History
from spcacw_flwr.methods.base import Method
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.protocol import Federation, SiloInfo, Silos

log = logging.getLogger(__name__)


def play(silos: Silos, method: Method, round_: int, gate: Gate | None = None) -> None:
    """Run round t of a method with ``silos``; the gate is a fresh one by default."""
    gate = gate or Gate(method.config, method.federation.num_silos)
    questions = gate.play(method, round_)
    answers = None
    try:
        while True:
            request = questions.send(answers) if answers else next(questions)
            answers = silos.answer(request)
    except StopIteration:
        return


def train(silos: Silos, method: Method, history: History, rounds: int = 0) -> None:
    """Run a method for so many rounds, or the configured epochs, and note them in ``history``."""
    federation = method.federation
    rounds = rounds or method.config.run.epochs * federation.rounds_per_epoch
    gate = history.gate = Gate(method.config, federation.num_silos)
    done = history.start(federation, rounds, {"method": method, "gate": gate})
    if not done:
        history.weights(0, method.alpha)
    with history.ending():
        for round_ in range(done + 1, rounds + 1):
            play(silos, method, round_, gate)
            if method.alpha_round == round_:
                history.weights(round_, method.alpha)
            history.progress(round_)
            if method.ends_epoch(round_) or round_ == rounds:
                note_epoch(silos, history, Epoch.of(method, gate, round_))
                history.privacy = method.ledger.summary()
            history.keep(round_)


def note_epoch(silos: Silos, history: History, ended: Epoch) -> None:
    """Evaluate the model that an epoch ended with, and note the epoch."""
    accuracy, _, buffers = silos.evaluate(ended.personal, history.config.run.target)
    history.epoch(ended, accuracy, buffers)
    loss = ended.report["loss"]
    log.info("round %s: accuracy %.2f %%, loss %.4f", ended.round, accuracy, loss)


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
