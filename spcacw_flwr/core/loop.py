"""Training without messages: one process asks silos that it holds itself.

Both the in-process engine (:mod:`spcacw_flwr.core.simulate`) and the target that trains alone
beside a federated run use this loop; the method and the silo functions are those of every engine.
"""

from __future__ import annotations

import logging

from torch import Tensor

from spcacw_flwr.core.config import Config
from spcacw_flwr.core.exchange import LOSSES, Replies, Request
from spcacw_flwr.core.history import Epoch, History
from spcacw_flwr.core.method import Federation, Method
from spcacw_flwr.core.registry import method_class
from spcacw_flwr.core.silo import SiloInfo, SiloPool

log = logging.getLogger(__name__)


def compute(pool: SiloPool, request: Request) -> tuple[Replies, Tensor]:
    """Return what the silos of ``pool`` answer to a request, and the norms of their gradients."""
    round_, silos, target = request.round, request.silos, pool.config.run.target
    if request.want == LOSSES:
        losses = pool.losses(request.points, round_, silos, request.draw)
        nothing = losses.new_zeros(len(silos), 0)
        return Replies(silos, nothing, losses), nothing.sum(dim=1)
    parts = request.samples, request.fold
    found = pool.gradients(request.points, round_, silos, request.draw, *parts)
    smoothness = None
    if request.smoothness:
        smoothness = pool.smoothness(request.of([target]).view(-1), round_, target)
    return Replies(silos, found.rows, found.losses, smoothness), found.norms


def answer(pool: SiloPool, request: Request) -> Replies:
    """Let the silos of ``pool`` answer a request.

    A gradient that is not finite is left out, as it is when it comes in a message.
    """
    replies, norms = compute(pool, request)
    if bool(norms.isfinite().all()):
        return replies
    finite = replies.gradients.isfinite().all(dim=1)  # a norm may overflow where its row is finite
    good = finite.tolist()
    for silo, usable in zip(request.silos, good, strict=True):
        if not usable:
            log.warning("Round %s goes on without the gradient of silo %s (it is not finite).",
                        request.round, silo)  # fmt: skip
    silos = tuple(silo for silo, usable in zip(request.silos, good, strict=True) if usable)
    return Replies(silos, replies.gradients[finite], replies.losses[finite], replies.smoothness)


def play(pool: SiloPool, method: Method, round_: int) -> None:
    """Run round t of a method with the silos of ``pool``."""
    questions = method.play(round_)
    replies = None
    try:
        while True:
            request = questions.send(replies) if replies else next(questions)
            replies = answer(pool, request)
    except StopIteration:
        return


def train(pool: SiloPool, method: Method, history: History) -> None:
    """Run the configured epochs of a method and note them in ``history``."""
    federation = method.federation
    rounds = pool.config.run.epochs * federation.rounds_per_epoch
    done = history.start(federation, rounds, {"method": method})
    if not done:
        history.weights(0, method.alpha)
    if history.ended:  # under Flower, the accuracy of an epoch comes with the next one
        note_epoch(pool, history, history.ended)
    with history.ending():
        for round_ in range(done + 1, rounds + 1):
            play(pool, method, round_)
            if method.alpha_round == round_:
                history.weights(round_, method.alpha)
            history.progress(round_)
            if method.ends_epoch(round_):
                figures = method.epoch_report(), method.personal, method.silo_figures()
                note_epoch(pool, history, Epoch(round_, *figures))
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
