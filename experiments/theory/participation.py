"""Partial participation: mean and variance of G̃(α) = Σ α g z/p, and what they cost in training.

The paper's proposition "Aggregated Partial Participation Estimator": E G̃ = Σ α g and
Var G̃ = (1/p − 1) Σ (α^{(i)})² ‖g^{(i)}‖². Here, the target always takes part (READING 22): its term
has no variance, and the sum runs over the peers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from spcacw_flwr.config.registry import method_class
from spcacw_flwr.methods.base import WeightedGradients
from spcacw_flwr.silos.protocol import Federation, Replies

from .measure import Cell
from .problems import Pool
from .quadratics import Quadratics
from .trial import HARMONIC, LEARNED, Trial, Variant

CHANCES = (1.0, 0.5, 0.2, 0.1)
FACTOR = 2.0


@dataclass(frozen=True)
class Draws:
    """Rounds of participation with one set of gradients; α = ½ on the target, .1 on 5 peers."""

    p: float
    count: int
    seed: int = 0

    def run(self) -> dict[str, float]:
        """Return mean and variance over z of the sum that the method makes, and the theory's."""
        problem = Quadratics(own=3, off=3)
        variant = Variant("", "fedavg", (("participation", self.p),))
        config = Trial(problem, variant, 1, self.seed).config()
        pool = Pool(problem, config)
        start = torch.from_numpy(problem.start)
        federation = Federation(pool.describe(), 0, batch_size=1)
        method: WeightedGradients = method_class("fedavg")(config, federation, start)
        alpha = np.array([0.5, 0.1, 0.1, 0.1, 0.1, 0.1])
        method.set_weights(alpha, 0)
        rows = pool.gradients(start, 1, pool.silos).rows
        sums = np.empty((self.count, len(start)))
        for round_ in range(1, self.count + 1):
            silos = method.sampled(round_)
            replies = Replies(silos, rows[list(silos)], torch.zeros(len(silos)))
            sums[round_ - 1] = method.weighted(replies).numpy()
        g = rows.double().numpy()
        each = alpha**2 * np.square(g).sum(axis=1)
        squares = np.square(sums - alpha @ g).sum(axis=1)
        return {
            "p": self.p, "draws": self.count,
            "variance": float(squares.mean()),
            "variance_error": float(squares.std(ddof=1) / np.sqrt(self.count)),
            "theory_peers": (1 / self.p - 1) * float(each[1:].sum()),
            "theory_all": (1 / self.p - 1) * float(each.sum()),
            "mean_error": float(np.square(sums.mean(axis=0) - alpha @ g).sum()),
        }  # fmt: skip


def draw(draws: Draws) -> dict[str, float]:
    """Run it."""
    return draws.run()


def draws(quick: bool) -> list[Draws]:
    """Return the simulations."""
    return [Draws(p, 200 if quick else 20_000) for p in CHANCES]


def cells(quick: bool) -> list[Cell]:
    """Return training runs against p."""
    T, seeds = (20, 2) if quick else (1000, 10)
    problem = Quadratics()
    named = (
        ("SP-CACW, β = 1/t", "spcacw", LEARNED + HARMONIC),
        ("Oracle (α uniform on I₀)", "oracle-averaged", ()),
    )
    return [
        Cell(label, p, Trial(problem, Variant(label, method, (*keys, ("participation", p))),
                             T, seed, FACTOR))
        for label, method, keys in named for p in CHANCES for seed in range(seeds)
    ]  # fmt: skip
