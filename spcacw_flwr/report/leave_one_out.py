"""Leave-one-out: rerun a configuration in this process without a peer, and measure the loss.

A row of ``leave_one_out.csv`` has the run's seed, the absent silo (empty: none), its last α with
all silos, the target's last and best value of the run's metric (accuracy in percent), the number of
test samples, and half the 95 % interval of the loss, paired by test sample.

The method sees a federation without the k absent silos: the remaining silos have the numbers
0 … M−k−1, and FedAvg's shares or Krum's neighbours are those of M−k silos. Each remaining silo
still draws the mini-batches (and dropout, and augmentation) of its old number, so two runs differ
only by the absence. With ``participation`` < 1 they also differ by the sampled silos.
"""

import csv
import io
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.directory import write_atomically
from spcacw_flwr.engine.loop import History, train
from spcacw_flwr.engine.simulate import method_for, threads
from spcacw_flwr.report.facts import facts_of
from spcacw_flwr.report.read import LEAVE_ONE_OUT
from spcacw_flwr.report.words import duration, listed
from spcacw_flwr.silos.evaluation import Cases
from spcacw_flwr.silos.metrics import METRICS
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.protocol import Answers, Evaluation, Request, SiloInfo
from spcacw_flwr.silos.setting import prepare
from spcacw_flwr.silos.setup import checked_setting

Say = Callable[[str], None]


def leave_one_out(
    directory: Path, count: int, lowest: bool, seeds: int, changes: dict[str, Any], say: Say
) -> None:
    """Run with all silos and without each of the ``count`` heaviest peers; write the table.

    The last α of the run in ``directory`` gives the heaviest peers. ``lowest`` also leaves out the
    lightest peer. The ``seeds`` seeds start with the run's own. ``changes`` has keys with new
    values, such as the data directory here. ``say`` gets the cost and each result.

    Raises SpcacwError if the run cannot be repeated here.
    """
    facts = facts_of(directory)
    config = Config.from_flat({**facts.run.config, **changes, "engine": "in-process", "output": ""})
    silos = checked_setting(config).num_silos
    others = [i for i in range(silos) if i != config.run.target]
    peers = facts.weights.peers if facts.weights else others
    chosen = peers[:count] + (peers[-1:] if lowest and count < len(peers) else [])
    if not chosen:
        raise SpcacwError(f"{directory} is a run without peers: nobody can be left out of it.")
    runs, seconds = seeds * (1 + len(chosen)), facts.total("seconds")
    about = f", about {duration(runs * seconds)} by the run's own time" if seconds else ""
    names = listed([str(silo) for silo in chosen])
    say(f"Leave-one-out: {runs} runs in this process (with all silos, and without each of silos "
        f"{names}; {seeds} seed{'s' if seeds > 1 else ''}){about}.")  # fmt: skip
    rows: list[tuple[Any, ...]] = []
    name = config.run.metric
    head = ("seed", "without", "alpha", name, f"best_{name}", "test_samples", "chance")
    for seed in range(config.run.seed, config.run.seed + seeds):
        rows += _one_seed(Config.from_flat(config.to_flat() | {"seed": seed}), chosen, say)
        text = io.StringIO()
        csv.writer(text).writerows([head, *rows])
        write_atomically(directory / LEAVE_ONE_OUT, text.getvalue().encode())


def _one_seed(config: Config, chosen: Sequence[int], say: Say) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a seed; the silos' data are made once for all of them."""
    setting, seed, target = checked_setting(config), config.run.seed, config.run.target
    try:
        prepare(setting)
        pool = SiloPool(config, setting, range(setting.num_silos))
        samples = len(setting.test(target).y)
        whole, values, cases = _rerun(pool, (), f"seed {seed}, all silos", say)
    except SpcacwError as error:
        raise SpcacwError(
            f"Leave-one-out reruns the training here, with the data of all silos: {error}"
        ) from error
    yield (seed, "", "", *values, samples, "")
    for silo in chosen:
        alpha = "" if whole.alpha is None else float(whole.alpha[silo])
        _, values, others = _rerun(pool, (silo,), f"seed {seed}, without silo {silo}", say)
        _, low, high = cases.gains(others)[config.run.metric]
        yield (seed, silo, alpha, *values, samples, (high - low) / 2)


def _rerun(
    pool: SiloPool, absent: tuple[int, ...], what: str, say: Say
) -> tuple[History, list[float], Cases]:
    """Return a run with some or all silos, its last and best metric, and its results by case."""
    begin, metric = time.perf_counter(), METRICS[pool.config.run.metric]
    history = train_without(pool, absent)
    values = [line[metric.name] for line in history.epochs]
    took = duration(time.perf_counter() - begin)
    say(f"{what}: {metric.label} {metric.text(values[-1])} ({took})")
    cases, _ = pool.cases(pool.layout.flatten(history.parameters), pool.config.run.target)
    return history, [values[-1], values[metric.best(values)]], cases


class Remaining:
    """A pool without some of its silos, under new numbers; the loop uses it like a pool.

    The pool computes for the remaining silos under their old numbers. The target always remains.
    """

    def __init__(self, pool: SiloPool, absent: Collection[int]) -> None:
        self.pool, self.layout = pool, pool.layout
        self.kept = tuple(silo for silo in pool.silos if silo not in absent)
        """The old number of each silo that remains."""
        run = pool.config.run
        self.config = replace(pool.config, run=replace(run, target=self.kept.index(run.target)))

    def describe(self) -> list[SiloInfo]:
        """Return the descriptions of the remaining silos, under their new numbers."""
        number = {old: new for new, old in enumerate(self.kept)}
        return [
            replace(info, silo=number[info.silo],
                    oracle=tuple(number[i] for i in info.oracle if i in number))
            for info in self.pool.describe() if info.silo in number
        ]  # fmt: skip

    def answer(self, request: Request) -> Answers:
        """Answer as :meth:`SiloPool.answer` does."""
        old = tuple(self.kept[silo] for silo in request.silos)
        answers = self.pool.answer(replace(request, silos=old))
        answers.replies.silos = request.silos
        return answers

    def evaluate(self, vector: Tensor, silo: int) -> Evaluation:
        """Evaluate as :meth:`SiloPool.evaluate` does."""
        return self.pool.evaluate(vector, self.kept[silo])


def train_without(pool: SiloPool, absent: Collection[int]) -> History:
    """Run the configuration of a pool of all silos without the ``absent`` ones."""
    remaining = Remaining(pool, absent)
    config, history = remaining.config, History(remaining.config)
    method = method_for(config, remaining.describe(), pool)
    with threads(config.run.threads, len(remaining.kept) * config.samples_per_round, pool):
        train(remaining, method, history)
    return history
