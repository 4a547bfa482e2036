"""Training without messages: one process asks silos that it holds itself.

Both the in-process engine (:mod:`spcacw_flwr.core.simulate`) and the target that trains alone
beside a federated run use this loop; the method and the silo functions are those of every engine.
"""

from __future__ import annotations

from torch import Tensor

from spcacw_flwr.core.checks import Answers
from spcacw_flwr.core.config import Config
from spcacw_flwr.core.exchange import LOSSES, Replies, Request
from spcacw_flwr.core.gate import Gate
from spcacw_flwr.core.history import Epoch, History
from spcacw_flwr.core.method import Federation, Method
from spcacw_flwr.core.registry import method_class
from spcacw_flwr.core.silo import SiloInfo, SiloPool


def compute(pool: SiloPool, request: Request) -> tuple[Replies, Tensor]:
    """Return what the silos of ``pool`` answer to a request, and the norms of their gradients."""
    round_, silos, target = request.round, request.silos, pool.config.run.target
    if request.want == LOSSES:
        of = request.draw, request.fold, request.whole
        losses = pool.losses(request.points, round_, silos, *of)
        nothing = losses.new_zeros(len(silos), 0)
        return Replies(silos, nothing, losses), nothing.sum(dim=1)
    parts = request.samples, request.fold
    found = pool.gradients(request.points, round_, silos, request.draw, *parts)
    smoothness = None
    if request.smoothness:
        point = request.of([target]).view(-1)
        smoothness = pool.smoothness(point, round_, target, request.fold)
    return Replies(silos, found.rows, found.losses, smoothness), found.norms


def answer(pool: SiloPool, request: Request) -> Replies:
    """Return what the silos of ``pool`` answer to a request, unchecked."""
    return compute(pool, request)[0]


def play(pool: SiloPool, method: Method, round_: int, gate: Gate | None = None) -> None:
    """Run round t of a method with the silos of ``pool``; the gate is a fresh one by default."""
    gate = gate or Gate(pool.config, method.federation.num_silos)
    questions = gate.play(method, round_)
    answers = None
    try:
        while True:
            request = questions.send(answers) if answers else next(questions)
            replies, norms = compute(pool, request)
            answers = Answers(replies, norms=norms)
    except StopIteration:
        return


def train(pool: SiloPool, method: Method, history: History) -> None:
    """Run the configured epochs of a method and note them in ``history``."""
    federation = method.federation
    rounds = pool.config.run.epochs * federation.rounds_per_epoch
    gate = history.gate = Gate(pool.config, federation.num_silos)
    done = history.start(federation, rounds, {"method": method, "gate": gate})
    if not done:
        history.weights(0, method.alpha)
    if history.ended:  # under Flower, the accuracy of an epoch comes with the next one
        note_epoch(pool, history, history.ended)
    with history.ending():
        for round_ in range(done + 1, rounds + 1):
            play(pool, method, round_, gate)
            if method.alpha_round == round_:
                history.weights(round_, method.alpha)
            history.progress(round_)
            if method.ends_epoch(round_):
                report, figures = method.epoch_report() | gate.report(), method.silo_figures()
                note_epoch(pool, history, Epoch(round_, report, method.personal, figures))
            history.keep(round_)


def note_epoch(pool: SiloPool, history: History, ended: Epoch) -> None:
    """Evaluate the model that an epoch ended with, and note the epoch."""
    accuracy, _, buffers = pool.evaluate(ended.personal, pool.config.run.target)
    state = pool.layout.unflatten(ended.personal) | buffers
    history.ended = None
    history.epoch(ended.round, ended.report, accuracy, state, ended.figures)


def train_alone(config: Config, pool: SiloPool) -> list[float]:
    """Train the target with its own data only, by the method Local and the run's own seed.

    Returns its accuracy (percent) after each epoch.
    """
    target = config.run.target
    (info,) = (info for info in pool.describe() if info.silo == target)
    silos = tuple(SiloInfo(i, 0, ()) for i in range(target))
    federation = Federation((*silos, info), target, config.training.batch_size, pool.layout)
    local = method_class("local")(config, federation, pool.initial_parameters())
    history = History(config)
    train(pool, local, history)
    return [line["accuracy"] for line in history.epochs]
