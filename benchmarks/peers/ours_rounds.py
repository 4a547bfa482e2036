"""A round in process: ``python ours_rounds.py M ROUNDS METHOD`` prints a JSON line.

With METHOD fedavg the work is the peers': a (clipped) gradient per silo, their mean, a step. With
spcacw it is the whole method with its default keys: bias, inner products, and once in ten rounds L
and α, which no peer has. Times are means over ten rounds: a median over single rounds would leave
L and α out. Batches are cut from shuffled data, where the peers take views.

Needs this repository on Python's path (``pip install -e .``, or PYTHONPATH).
"""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import cache

import torch
from rounds import THREADS, Clock, batches, norm, report

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.registry import method_class
from spcacw_flwr.engine.simulate import threads
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.protocol import Federation
from spcacw_flwr.silos.setting import Setting, SiloData

METHOD = sys.argv[3]
ROUNDS_PER_EPOCH = 10
"""320 samples in batches of 32; L and α are updated once an epoch."""


class RandomImages(Setting):
    """The peers' silos."""

    name, num_classes, input_shape, group_kind = "random", 10, (1, 28, 28), "cluster"

    @property
    def groups(self) -> list[float]:
        """One cluster."""
        return [0.0] * self.keys.silos

    def prepare(self) -> None:
        """Nothing to prepare."""

    @cache  # noqa: B019 (the process ends with the setting)
    def train(self, silo: int) -> SiloData:
        """Return the silo's random images."""
        x, y = zip(*batches(silo), strict=True)
        return SiloData(torch.cat(x), torch.cat(y))

    test = train


def run(silos: int, rounds: int, clock: Clock) -> float:
    """Train for ``rounds`` rounds and return the norm of the final model."""
    config = Config.from_keys(silos=silos, method=METHOD)
    setting = RandomImages(config.partition, 0)
    pool = SiloPool(config, setting, range(silos))
    federation = Federation(tuple(pool.describe()), 0, config.training.batch_size)
    method = method_class(METHOD)(config, federation, pool.initial_parameters())
    with threads(THREADS, silos * config.training.batch_size, pool):
        for round_ in range(1, rounds + 1):
            steps = method.round(round_)
            with suppress(StopIteration):
                steps.send(pool.answer(next(steps)).replies)
            if round_ % ROUNDS_PER_EPOCH == 0:
                clock.tick()
    return norm([method.parameters])


if __name__ == "__main__":
    report("spcacw-flwr", run, ROUNDS_PER_EPOCH, f", {METHOD}")
