"""A run without some of the silos: what their absence costs the target.

The method sees a federation in which the absent silos never were: those that remain have the
numbers 0 … M−k−1, and FedAvg's shares or Krum's neighbours are those of so many silos. Each of them
still draws the mini-batches (and dropout, and augmentation) of its old number, so that two runs
differ by the absence alone; with ``participation`` < 1, also by who is sampled.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from torch import Tensor

from spcacw_flwr.engine.history import History
from spcacw_flwr.engine.loop import train
from spcacw_flwr.engine.simulate import threads
from spcacw_flwr.methods.guard import make_method
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.protocol import Answers, Evaluation, Federation, Request, SiloInfo


class Remaining:
    """A pool of silos without some of them, under new numbers; the loop asks it as it asks a pool.

    Parameters
    ----------
    pool : SiloPool
        All silos; computes for those that remain, under their old numbers.
    absent : collection of int
        Silos to leave out; the target is never one of them.
    """

    def __init__(self, pool: SiloPool, absent: Collection[int]) -> None:
        self.pool, self.layout = pool, pool.layout
        self.kept = tuple(silo for silo in pool.silos if silo not in absent)
        """The old number of each silo that remains."""
        run = pool.config.run
        self.config = replace(pool.config, run=replace(run, target=self.kept.index(run.target)))

    def _old(self, silos: Sequence[int]) -> list[int]:
        return [self.kept[silo] for silo in silos]

    def describe(self) -> list[SiloInfo]:
        """Say which silos remain, under their new numbers."""
        number = {old: new for new, old in enumerate(self.kept)}
        return [
            replace(info, silo=number[info.silo],
                    oracle=tuple(number[i] for i in info.oracle if i in number))
            for info in self.pool.describe() if info.silo in number
        ]  # fmt: skip

    def answer(self, request: Request) -> Answers:
        """Answer as :meth:`SiloPool.answer` does."""
        answers = self.pool.answer(replace(request, silos=tuple(self._old(request.silos))))
        answers.replies.silos = request.silos
        return answers

    def evaluate(self, vector: Tensor, silo: int) -> Evaluation:
        """Evaluate as :meth:`SiloPool.evaluate` does."""
        return self.pool.evaluate(vector, self.kept[silo])


def train_without(pool: SiloPool, absent: Collection[int]) -> History:
    """Run the configuration of a pool that holds all silos, without those that are absent."""
    remaining = Remaining(pool, absent)
    config, infos = remaining.config, tuple(remaining.describe())
    size = config.samples_per_round
    federation = Federation(infos, config.run.target, size, pool.layout)
    method = make_method(config, federation, pool.initial_parameters())
    history = History(config)
    with threads(config.run.threads, len(infos) * size, pool):
        train(remaining, method, history)
    return history
