"""Training without messages: one process asks silos that it holds itself.

The target's silo uses this to train alone (α = e₀) beside a federated run; the method and the silo
functions are the ones that every other engine runs.
"""

from __future__ import annotations

from spcacw_flwr.core.config import Config
from spcacw_flwr.core.method import Federation, Replies, Request, WeightedGradients
from spcacw_flwr.core.registry import method_class
from spcacw_flwr.core.silo import SiloInfo, SiloPool


def answer(pool: SiloPool, method: WeightedGradients, request: Request) -> Replies:
    """Let the silos of ``pool`` answer a request at the method's parameters."""
    gradients, losses = pool.gradients(method.parameters, request.round, request.silos)
    smoothness = None
    if request.smoothness:
        target = method.federation.target
        smoothness = pool.smoothness(method.parameters, request.round, target)
    return Replies(request.silos, gradients, losses, smoothness)


def train(pool: SiloPool, method: WeightedGradients, epochs: int) -> list[float]:
    """Run ``epochs`` epochs and return the target's test accuracy (percent) after each."""
    accuracies = []
    federation = method.federation
    for epoch in range(epochs):
        for step in range(federation.rounds_per_epoch):
            request = method.request(epoch * federation.rounds_per_epoch + step + 1)
            method.fold(request, answer(pool, method, request))
        accuracies.append(pool.evaluate(method.parameters, federation.target)[0])
    return accuracies


def train_alone(config: Config, pool: SiloPool) -> list[float]:
    """Train the target with its own data only, by the method Local and the run's own seed."""
    target = config.run.target
    infos = {info.silo: info for info in pool.describe()}
    silos = tuple(infos.get(i, SiloInfo(i, 0, ())) for i in range(target + 1))
    federation = Federation(silos, target, config.training.batch_size)
    local = method_class("local")(config, federation, pool.initial_parameters())
    return train(pool, local, config.run.epochs)
