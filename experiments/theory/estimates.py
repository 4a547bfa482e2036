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

from itertools import product
from typing import cast

import numpy as np
import pandas as pd
import torch

from spcacw_flwr.config.registry import method_class
from spcacw_flwr.methods.base import WeightedGradients
from spcacw_flwr.methods.spcacw import SPCACWMethod
from spcacw_flwr.silos.protocol import Federation, Replies

from .problems import Pool, Quadratics
from .trials import HARMONIC, LEARNED, ORACLE, Cell, Trial, Variant, repeated, size, spread

BETAS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
TRACED = (0.01, 0.1)


def bias_cells(quick: bool, betas: tuple[float, ...]) -> list[Cell]:
    """Return runs for a bias at rest, one that moves with w, and one that appears in the middle.

    β is 0 for 1/t, and −1 for the Oracle.
    """
    (T, seeds), cells = size(quick), []
    problems = {
        "stationary": Quadratics(),
        "moves with w (A_off = 2A)": Quadratics(stretch=1.0),
        "appears at T/2": Quadratics(onset=T // 2 + 1),
    }
    for (name, problem), beta in product(problems.items(), betas):
        keys = HARMONIC if beta == 0 else (("beta", beta),)
        variant = ORACLE if beta < 0 else Variant("", "spcacw", (*LEARNED, *keys))
        cells += repeated(beta, problem, variant, T, seeds, label=name)
    return cells


def bias_training(quick: bool) -> list[Cell]:
    """Return the runs for the training error against β."""
    return bias_cells(quick, (0.0, *BETAS)) + bias_cells(quick, (-1.0,))


def trace(trial: Trial) -> dict[str, list[float]]:
    """Run a trial; return for some t the estimate's error, and what the cumulative lemma sums.

    ``estimate`` is ‖b̂_t − b_t‖² of the off-target silos, their mean; ``true`` and ``estimated`` are
    Σ_{s≤t} ‖B α_s‖² and Σ ‖B̂_s α_s‖², where B̂_s and α_s are those after round s.
    """
    spaced = np.geomspace(1, trial.rounds, 40).round().astype(int)
    noted = {*spaced.tolist(), *range(10, trial.rounds + 1, 10)}
    own = trial.problem.own
    found: dict[str, list[float]] = {"t": [], "estimate": [], "true": [], "estimated": []}
    true = estimated = 0.0
    for t, point, _, method in trial.play():
        learner = cast(SPCACWMethod, method)
        b = trial.problem.bias(point, t)
        rows = learner.bias.estimate.double().numpy()
        true += float(learner.alpha[own:].sum() ** 2 * (b @ b))
        estimated += float(np.square(learner.alpha @ rows).sum())
        if t in noted:
            error = float(np.square(rows[own:] - b).sum(axis=1).mean())
            for name, value in zip(found, (t, error, true, estimated), strict=True):
                found[name].append(value)
    return found


def traced(cells: list[Cell], workers: int) -> pd.DataFrame:
    """Return the traces' means over seeds, with the lemmas' bounds where b is stationary."""
    results = spread(trace, [cell.trial for cell in cells], workers)
    frames = [
        pd.DataFrame(result).assign(label=cell.label, beta=cell.x)
        for cell, result in zip(cells, results, strict=True)
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


def simulated(p: float, draws: int = 20_000) -> dict[str, float]:
    """Return mean and variance over z of the sum that the method makes, and the theory's.

    Each draw is a round with one set of gradients; α is ½ on the target and .1 on five peers.
    """
    problem = Quadratics(own=3, off=3)
    config = Trial(problem, Variant("", "fedavg", (("participation", p),)), 1, 0).config()
    pool = Pool(problem, config)
    start = torch.from_numpy(problem.start)
    federation = Federation(pool.describe(), 0, batch_size=1)
    method: WeightedGradients = method_class("fedavg")(config, federation, start)
    alpha = np.array([0.5, 0.1, 0.1, 0.1, 0.1, 0.1])
    method.set_weights(alpha, 0)
    rows = pool.gradients(start, 1, pool.silos).rows
    sums = np.empty((draws, len(start)))
    for round_ in range(1, draws + 1):
        silos = method.sampled(round_)
        replies = Replies(silos, rows[list(silos)], torch.zeros(len(silos)))
        sums[round_ - 1] = method.weighted(replies).numpy()
    g = rows.double().numpy()
    each = alpha**2 * np.square(g).sum(axis=1)
    squares = np.square(sums - alpha @ g).sum(axis=1)
    return {
        "p": p, "draws": draws, "variance": float(squares.mean()),
        "variance_error": float(squares.std(ddof=1) / np.sqrt(draws)),
        "theory_peers": (1 / p - 1) * float(each[1:].sum()),
        "theory_all": (1 / p - 1) * float(each.sum()),
        "mean_error": float(np.square(sums.mean(axis=0) - alpha @ g).sum()),
    }  # fmt: skip


def participation_training(quick: bool) -> list[Cell]:
    """Return training runs against p."""
    (T, seeds), problem, cells = size(quick), Quadratics(), []
    named = (
        ("SP-CACW, β = 1/t", "spcacw", LEARNED + HARMONIC),
        ("Oracle (α uniform on I₀)", "oracle-averaged", ()),
    )
    for (label, method, keys), p in product(named, CHANCES):
        variant = Variant(label, method, (*keys, ("participation", p)))
        cells += repeated(p, problem, variant, T, seeds)
    return cells
