"""One run of a method in process, some of whose silos attack."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.partition import PartitionKeys
from spcacw_flwr.engine.history import History
from spcacw_flwr.engine.loop import train
from spcacw_flwr.methods.base import Weights
from spcacw_flwr.methods.guard import Guarded, make_method
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.protocol import LOSSES, Answers, Federation, Request
from spcacw_flwr.silos.setting import Setting
from spcacw_flwr.silos.setup import make_setting

from .attacks import ATTACKS, Known

DRAW, ROWS = 101, 102
"""Purposes of this study's random streams, apart from those of the core."""


def draw_attackers(share: float, num_silos: int, target: int, seed: int) -> tuple[int, ...]:
    """Return ⌈share (M − 1)⌉ peers, drawn by the seed; a larger share adds to a smaller one's."""
    peers = [silo for silo in range(num_silos) if silo != target]
    order = np.random.default_rng((DRAW, seed)).permutation(peers)
    count = math.ceil(round(share * len(peers), 9))
    return tuple(sorted(order[:count].tolist()))


def flip_labels(pool: SiloPool, silos: Sequence[int]) -> None:
    """Let ``silos`` call class y by the name C − 1 − y."""
    for silo in silos:
        _, labels = pool.data.of(silo)
        labels.copy_(pool.setting.num_classes - 1 - labels)


class AttackedPool:
    """A pool of all silos, some of whose gradients are replaced by an attack's.

    Parameters
    ----------
    pool : SiloPool
        Holds all silos; ``label-flip`` writes into its labels.
    attack : str
        A name in :data:`~spcacw_flwr.experiments.attacks.attacks.ATTACKS`.
    attackers : sequence of int
        Who attacks.
    rounds, epoch : int
        T, the rounds in which peers are asked, and those of an epoch: attackers know both.
    """

    def __init__(
        self, pool: SiloPool, attack: str, attackers: Sequence[int], rounds: int, epoch: int
    ) -> None:
        self.pool, self.attack, self.attackers = pool, ATTACKS[attack], tuple(attackers)
        self.rounds, self.epoch = rounds, epoch
        if attack == "label-flip":
            flip_labels(pool, attackers)
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
def prepared(name: str, keys: PartitionKeys, seed: int) -> Setting:
    """Return a setting, its data at hand: runs share it, for each copies what its silos hold."""
    setting = make_setting(name, keys, seed)
    setting.prepare()
    return setting


def run(config: Config, attack: str, share: float) -> Outcome:
    """Train with ``share`` of the peers attacking; share 0 is nobody."""
    began = time.perf_counter()
    run_, size = config.run, config.training.batch_size
    setting = prepared(run_.setting, config.partition, run_.seed)
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
