"""What is estimated, and what it does to training: the biases b̂, and G̃ of the silos that take part.

Biases, for constant β and 1/t, b at rest or not: lemma "Bias Estimation Error under Stationary
Bias" (E‖b̂ − b‖² ≤ σ²_bound/t for β = 1/t), lemma "Cumulative Bias-Variance Decomposition", remark
"Practical Adaptation via Constant Smoothing". For constant β and stationary b the error is exactly
σ²_bound β/(2 − β) (1 − (1 − β)^{2t}) + (1 − β)^{2t} ‖b‖².

Partial participation: the proposition "Aggregated Partial Participation Estimator" says
E G̃ = Σ α g and Var G̃ = (1/p − 1) Σ (α^{(i)})² ‖g^{(i)}‖² for G̃(α) = Σ α g z/p. Here, the target
always takes part (READING 22): its term has no variance, and the sum runs over the peers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import pandas as pd
import torch

from spcacw_flwr.config.registry import method_class
from spcacw_flwr.methods.base import WeightedGradients
from spcacw_flwr.methods.spcacw import SPCACWMethod
from spcacw_flwr.silos.protocol import Federation, Replies

from .measure import Cell, log_spaced
from .problems import Pool, Quadratics
from .trial import HARMONIC, LEARNED, ORACLE, Trial, Variant

BETAS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
TRACED = (0.01, 0.1)
FACTOR = 2.0


def problems(rounds: int) -> dict[str, Quadratics]:
    """Return a bias at rest, one that moves with w, and one that appears in the middle."""
    return {
        "stationary": Quadratics(),
        "moves with w (A_off = 2A)": Quadratics(stretch=1.0),
        "appears at T/2": Quadratics(onset=rounds // 2 + 1),
    }


def variant(beta: float) -> Variant:
    """Return SP-CACW with constant β, or with 1/t for β = 0."""
    if beta == 0:
        return Variant("β = 1/t", "spcacw", LEARNED + HARMONIC)
    return Variant(f"β = {beta:g}", "spcacw", (*LEARNED, ("beta", beta)))


def trials(quick: bool, betas: tuple[float, ...]) -> list[tuple[str, float, Trial]]:
    """Return problem, β and run."""
    T, seeds = (20, 2) if quick else (1000, 10)
    return [
        (name, beta, Trial(problem, variant(beta), T, seed, FACTOR))
        for name, problem in problems(T).items() for beta in betas for seed in range(seeds)
    ]  # fmt: skip


def bias_cells(quick: bool) -> list[Cell]:
    """Return the runs for the training error against β, 0 for 1/t; and the Oracle's as β = −1."""
    learned = [Cell(name, beta, trial) for name, beta, trial in trials(quick, (0.0, *BETAS))]
    return learned + [
        Cell(name, -1.0, Trial(trial.problem, ORACLE, trial.rounds, trial.seed, FACTOR))
        for name, _, trial in trials(quick, (0.0,))
    ]


def trace(trial: Trial) -> dict[str, list[float]]:
    """Run a trial; return for some t the estimate's error, and what the cumulative lemma sums.

    ``estimate`` is ‖b̂_t − b_t‖² of the off-target silos, their mean; ``true`` and ``estimated`` are
    Σ_{s≤t} ‖B α_s‖² and Σ ‖B̂_s α_s‖², where B̂_s and α_s are those after round s.
    """
    noted = {*log_spaced(trial.rounds, 40), *range(10, trial.rounds + 1, 10)}
    own = trial.problem.own
    found: dict[str, list[float]] = {"t": [], "estimate": [], "true": [], "estimated": []}
    true = estimated = 0.0
    before = trial.problem.start
    for next_round, point, method in trial.play():
        t = next_round - 1
        if t > 0:
            learner = cast(SPCACWMethod, method)
            b = trial.problem.bias(before, t)
            rows = learner.bias.estimate.double().numpy()
            true += float(learner.alpha[own:].sum() ** 2 * (b @ b))
            estimated += float(np.square(learner.alpha @ rows).sum())
            if t in noted:
                error = float(np.square(rows[own:] - b).sum(axis=1).mean())
                for name, value in zip(found, (t, error, true, estimated), strict=True):
                    found[name].append(value)
        before = point
    return found


def traced(
    runs: list[tuple[str, float, Trial]], results: list[dict[str, list[float]]]
) -> pd.DataFrame:
    """Return the traces' means over seeds, with the lemmas' bounds where b is stationary."""
    frames = [
        pd.DataFrame(result).assign(label=name, beta=beta)
        for (name, beta, _), result in zip(runs, results, strict=True)
    ]
    mean = pd.concat(frames).groupby(["label", "beta", "t"], sort=False).mean().reset_index()
    mean["theory"] = [theory(row.label, row.beta, row.t) for row in mean.itertuples()]
    return mean


def theory(label: str, beta: float, t: float) -> float:
    """Return E‖b̂_t − b‖² for stationary b: the lemma's bound, which is exact for this noise."""
    problem = Quadratics()
    bound = 2 * problem.noise
    if label != "stationary":
        return float("nan")
    if beta == 0:
        return bound / t
    left = (1 - beta) ** (2 * t)
    return bound * beta / (2 - beta) * (1 - left) + left * problem.distance**2


CHANCES = (1.0, 0.5, 0.2, 0.1)


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


def participation_cells(quick: bool) -> list[Cell]:
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
