"""One run of a method whose silos are under attack, in process."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.partition import PartitionKeys
from spcacw_flwr.engine.history import History
from spcacw_flwr.engine.loop import train
from spcacw_flwr.methods.base import Weights
from spcacw_flwr.methods.guard import Guarded, make_method
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.protocol import Federation
from spcacw_flwr.silos.setting import Setting
from spcacw_flwr.silos.setup import make_setting

from .silos import AttackedPool, draw_attackers


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
