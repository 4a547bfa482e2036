"""Silos of which some attack: a pool that the in-process engine's loop can ask."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.protocol import LOSSES, Answers, Request

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
