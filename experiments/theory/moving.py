"""The bias estimate b̂ and what it does to training, for constant β and 1/t, b at rest or not.

Paper: lemma "Bias Estimation Error under Stationary Bias" (E‖b̂ − b‖² ≤ σ²_bound/t for β = 1/t),
lemma "Cumulative Bias-Variance Decomposition", remark "Practical Adaptation via Constant
Smoothing". For constant β and stationary b the error is exactly
σ²_bound β/(2 − β) (1 − (1 − β)^{2t}) + (1 − β)^{2t} ‖b‖².
"""

from __future__ import annotations

from typing import cast

import numpy as np
import pandas as pd

from spcacw_flwr.methods.spcacw import SPCACWMethod

from .measure import Cell, log_spaced
from .quadratics import Quadratics
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


def cells(quick: bool) -> list[Cell]:
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
