"""Training without messages: one process asks silos that it holds itself.

Both the in-process engine (:mod:`spcacw_flwr.core.simulate`) and the target that trains alone
beside a federated run use this loop; the method and the silo functions are those of every engine.
"""

from __future__ import annotations

import logging

from spcacw_flwr.core.config import Config
from spcacw_flwr.core.history import History
from spcacw_flwr.core.method import Federation, Replies, Request, WeightedGradients
from spcacw_flwr.core.registry import method_class
from spcacw_flwr.core.silo import SiloInfo, SiloPool

log = logging.getLogger(__name__)


def answer(pool: SiloPool, method: WeightedGradients, request: Request) -> Replies:
    """Let the silos of ``pool`` answer a request at the method's parameters.

    A gradient that is not finite is left out, as it is when it comes in a message.
    """
    silos = request.silos
    found = pool.gradients(method.parameters, request.round, silos)
    rows, losses = found.rows, found.losses
    smoothness = None
    if request.smoothness:
        target = method.federation.target
        smoothness = pool.smoothness(method.parameters, request.round, target)
    if not bool(found.norms.isfinite().all()):  # a norm may also overflow where its row is finite
        finite = rows.isfinite().all(dim=1)
        for silo, good in zip(silos, finite.tolist(), strict=True):
            if not good:
                log.warning("Round %s goes on without the gradient of silo %s (it is not finite).",
                            request.round, silo)  # fmt: skip
        silos = tuple(silo for silo, good in zip(silos, finite.tolist(), strict=True) if good)
        rows, losses = rows[finite], losses[finite]
    return Replies(silos, rows, losses, smoothness)


def train(pool: SiloPool, method: WeightedGradients, history: History) -> None:
    """Run the configured epochs of a method and note them in ``history``."""
    federation = method.federation
    epochs, rounds = pool.config.run.epochs, federation.rounds_per_epoch
    history.start(federation, epochs * rounds)
    history.weights(0, method.alpha)
    for round_ in range(1, epochs * rounds + 1):
        request = method.request(round_)
        method.fold(request, answer(pool, method, request))
        if method.alpha_round == round_:
            history.weights(round_, method.alpha)
        history.progress(round_)
        if round_ % rounds == 0:
            accuracy, _, buffers = pool.evaluate(method.parameters, federation.target)
            state = pool.layout.unflatten(method.parameters) | buffers
            history.epoch(method.epoch_report(), accuracy, state)


def train_alone(config: Config, pool: SiloPool) -> list[float]:
    """Train the target with its own data only, by the method Local and the run's own seed.

    Returns its accuracy (percent) after each epoch.
    """
    target = config.run.target
    (info,) = (info for info in pool.describe() if info.silo == target)
    silos = tuple(SiloInfo(i, 0, ()) for i in range(target))
    federation = Federation((*silos, info), target, config.training.batch_size)
    local = method_class("local")(config, federation, pool.initial_parameters())
    history = History(config)
    train(pool, local, history)
    return [line["accuracy"] for line in history.epochs]
