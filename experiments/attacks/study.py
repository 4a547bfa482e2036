"""Attacks × shares of attackers × methods × seeds, a line of CSV each; what is there is not rerun.

``difference`` is the accuracy after the last epoch minus Local's with the same seed, in percentage
points. ``attackers_weight`` and ``helpers_weight`` (honest peers of the target's true cluster) are
those of the last rounds in which peers were asked. ``accepted`` is the guard's judgement.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.keys import PartitionKeys
from spcacw_flwr.engine.loop import History, train
from spcacw_flwr.methods.base import Weights
from spcacw_flwr.methods.guard import Guarded, make_method
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.protocol import LOSSES, Answers, Federation, Request
from spcacw_flwr.silos.setting import Setting
from spcacw_flwr.silos.setup import make_setting

from ..conf import CONF, Column, Job, Keys, Row, make_jobs, rows
from ..results import Table
from . import ATTACKS, Known

DRAW, ROWS = 101, 102
"""Purposes of this study's random streams, apart from those of the core."""


def draw_attackers(share: float, num_silos: int, target: int, seed: int) -> tuple[int, ...]:
    """Return ⌈share (M − 1)⌉ peers, drawn by the seed; a larger share adds to a smaller one's."""
    peers = [silo for silo in range(num_silos) if silo != target]
    order = np.random.default_rng((DRAW, seed)).permutation(peers)
    count = math.ceil(round(share * len(peers), 9))
    return tuple(sorted(order[:count].tolist()))


class AttackedPool:
    """A pool of all silos in which some are ``attackers``: an attack replaces their gradients.

    ``label-flip`` writes into the pool's labels. ``rounds`` (T, those in which peers are asked) and
    ``epoch`` (the rounds of one) are what attackers know.
    """

    def __init__(
        self, pool: SiloPool, attack: str, attackers: Sequence[int], rounds: int, epoch: int
    ) -> None:
        self.pool, self.attack, self.attackers = pool, ATTACKS[attack], tuple(attackers)
        self.rounds, self.epoch = rounds, epoch
        for silo in attackers if attack == "label-flip" else ():  # class y is called C − 1 − y
            labels = pool.data.of(silo)[1]
            labels.copy_(pool.setting.num_classes - 1 - labels)
        self.cluster = set(pool.setting.oracle(pool.config.run.target))

    def __getattr__(self, name: str) -> Any:
        """Whatever else a pool can do."""
        return getattr(self.pool, name)

    def answer(self, request: Request) -> Answers:
        """Return the silos' answers, the attackers' gradients as the attack makes them."""
        found = self.pool.answer(request)
        if request.want == LOSSES:
            return found
        rows, silos = found.replies.gradients, request.silos
        at = [k for k, silo in enumerate(silos) if silo in self.attackers]
        if at:
            alike = [k for k, silo in enumerate(silos) if silo in self.cluster]
            rng = np.random.default_rng((ROWS, self.pool.config.run.seed, request.round))
            known = Known(
                request.round, self.rounds, self.epoch, rows[at], rows[alike],
                self.pool.config.training.max_norm, rng,
            )  # fmt: skip
            rows[at] = self.attack(known)
        return Answers(found.replies)


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    attackers: tuple[int, ...]
    helpers: tuple[int, ...]
    """The honest peers of the target's true cluster."""
    accuracy: list[float]
    """Percent, after each epoch."""
    alphas: list[tuple[int, Weights]]
    """Round and weights (M,) at each change, of rounds in which peers are asked."""
    accepted: bool | None
    """The guard's judgement; None without one."""
    seconds: float

    def weight(self, silos: tuple[int, ...]) -> float | None:
        """Return the total weight that some silos ended with; None of a method without any."""
        return float(self.alphas[-1][1][list(silos)].sum()) if self.alphas else None


@lru_cache(maxsize=2)
def prepared(name: str, keys: PartitionKeys, seed: int, target: int) -> Setting:
    """Return a setting, its data at hand: runs share it, for each copies what its silos hold."""
    setting = make_setting(name, keys, seed, target)
    setting.prepare()
    return setting


def run(config: Config, attack: str, share: float) -> Outcome:
    """Train with ``share`` of the peers attacking; share 0 is nobody."""
    began = time.perf_counter()
    run_, size = config.run, config.training.batch_size
    setting = prepared(run_.setting, config.partition, run_.seed, run_.target)
    pool = SiloPool(config, setting, range(setting.num_silos))
    federation = Federation(tuple(pool.describe()), run_.target, size, pool.layout)
    method = make_method(config, federation, pool.initial_parameters())
    rounds = run_.epochs * federation.rounds_per_epoch
    asked = method.judged_at if isinstance(method, Guarded) else rounds
    attackers = draw_attackers(share, setting.num_silos, run_.target, run_.seed)
    silos = AttackedPool(pool, attack, attackers, asked, federation.rounds_per_epoch)
    history = History(config)
    train(cast(SiloPool, silos), method, history)
    helpers = silos.cluster - {run_.target, *attackers}
    return Outcome(
        attackers, tuple(sorted(helpers)), [line["accuracy"] for line in history.epochs],
        [(t, alpha) for t, alpha in history.alphas if t <= asked],
        method.accepted if isinstance(method, Guarded) else None, time.perf_counter() - began,
    )  # fmt: skip


METHODS = CONF / "attacks.toml"
NOBODY = "none"
LOCAL = Row("local", "Local", {"method": "local"})
COLUMNS = (
    "column", "attack", "share", "method", "seed", "epochs", "best_accuracy", "last_accuracy",
    "local_last", "difference", "attackers", "attackers_weight", "helpers", "helpers_weight",
    "accepted", "seconds",
)  # fmt: skip
PLACE = ("column", "attack", "share", "method", "seed", "epochs")
"""What tells one line from another."""


def made(job: Job, attack: str, share: float, local: float | None) -> dict[str, Any]:
    """Make one run; return the figures of its line."""
    found = run(job.config(), attack, share)
    last = round(found.accuracy[-1], 3)
    local = last if local is None else local  # as the table has it, rounded as well
    line: dict[str, Any] = {
        "best_accuracy": round(max(found.accuracy), 3), "last_accuracy": last,
        "local_last": local, "difference": round(last - local, 3),
        "accepted": found.accepted, "seconds": round(found.seconds, 1),
    }  # fmt: skip
    for name, silos in (("attackers", found.attackers), ("helpers", found.helpers)):
        weight = found.weight(silos)
        line[name] = " ".join(map(str, silos))
        line[f"{name}_weight"] = None if weight is None else round(weight, 4)
    return line


def extend(
    path: Path, columns: Sequence[Column], names: Sequence[str], seeds: Sequence[int], more: Keys,
    attacks: Sequence[str], shares: Sequence[float],
) -> None:  # fmt: skip
    """Add to a table what it lacks, line by line; SpcacwError if a method or a key is unknown."""
    table, local = Table(path, COLUMNS, PLACE), dict[tuple[str, int, int], float]()
    some = [name for name in attacks if name != NOBODY]
    wanted = [(NOBODY, 0.0)] * (NOBODY in attacks) + list(product(some, shares))
    keys = {"diagnostics": False, **more}
    for job in make_jobs(columns, [LOCAL, *rows(names, METHODS)], seeds, keys):
        epochs = job.config().run.epochs
        here = (job.column, job.seed, epochs)
        for attack, share in [(NOBODY, 0.0)] if job.row == LOCAL.name else wanted:
            values = (job.column, attack, f"{share:g}", job.row, job.seed, epochs)
            place = dict(zip(PLACE, values, strict=True))
            if table.lacks(place):
                table.add({**place, **made(job, attack, share, local.get(here))})
            if job.row == LOCAL.name:
                local[here] = float(table.lines[table.place(place)]["last_accuracy"])
