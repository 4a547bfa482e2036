"""The paper's rates and estimates: err_T of the case study, the biases b̂, and G̃ of partial reports.

The paper's bounds: Autarky σ/√T, uniform FL ‖b‖² + σ/√(MT), SP-CACW σ/√(n₀T), and Federated
Clustering √(σ²/(n₀T) + σ³/(ΔT)): FC needs separated clusters, SP-CACW's bound has no Δ. K are the
rounds between two updates of α, and at T_start the sum over rounds begins.

Biases, for constant β and 1/t, b at rest or not: lemma "Bias Estimation Error under Stationary
Bias" (E‖b̂ − b‖² ≤ σ²_bound/t for β = 1/t), remark "Practical Adaptation via Constant Smoothing".
For constant β and stationary b the error is exactly
σ²_bound β/(2 − β) (1 − (1 − β)^{2t}) + (1 − β)^{2t} ‖b‖².

Partial participation: the proposition "Aggregated Partial Participation Estimator" says
E G̃ = Σ α g and Var G̃ = (1/p − 1) Σ (α^{(i)})² ‖g^{(i)}‖² for G̃(α) = Σ α g z/p. Here, the target
always takes part (READING 22): its term has no variance, and the sum runs over the peers.
"""

from __future__ import annotations

import dataclasses
import math
from itertools import chain, product
from typing import Any, cast

import numpy as np
import pandas as pd
import torch

from spcacw_flwr.config.registry import method_class
from spcacw_flwr.methods.base import WeightedGradients
from spcacw_flwr.methods.spcacw import SPCACWMethod
from spcacw_flwr.silos.protocol import Federation, Replies

from .problems import Logistic, Pool, Quadratics
from .trials import (
    AUTARKY,
    CONSTANT,
    CORRECTED,
    FACTOR,
    FTAL,
    HARMONIC,
    LEARNED,
    ORACLE,
    SPCACW,
    UNIFORM,
    Cell,
    Trial,
    Variant,
    best,
    clustering,
    fit,
    repeated,
    size,
    spread,
    thresholded,
)

FACTORS, LOGISTIC_FACTORS = (0.5, 1.0, 2.0), (1.0, 2.0, 4.0)
"""η as multiples of the formula's. The logistic silos' noise falls as w nears the minimum, so that
larger steps do well."""
VARIANTS = (AUTARKY, UNIFORM, ORACLE, SPCACW, CONSTANT, CORRECTED, FTAL)


def over_rounds(
    problem: Any, seeds: int, quick: bool, factors: tuple[float, ...],
    variants: tuple[Variant, ...] = VARIANTS,
) -> list[Cell]:  # fmt: skip
    """Return the runs of variants, and of clustering, for several T."""
    horizons = (10, 20, 40) if quick else (250, 500, 1000, 2000, 4000)
    cells = (repeated(T, problem, variant, T, seeds, factors)
             for variant in variants for T in horizons)  # fmt: skip
    return list(chain.from_iterable(cells))


def quadratics_T(quick: bool) -> list[Cell]:
    """Return the runs against T on quadratics, FC also with well separated clusters, Δ = 4σ."""
    seeds, problem = (2 if quick else 10), Quadratics()
    told = clustering(problem.own, problem.off)
    apart = dataclasses.replace(problem, distance=4 * problem.noise**0.5)
    far = dataclasses.replace(told, label="FC, told n₀, Δ = 4σ")
    return [
        *over_rounds(problem, seeds, quick, FACTORS, (*VARIANTS, told)),
        *over_rounds(apart, seeds, quick, FACTORS, (far,)),
    ]


def logistic_T(quick: bool) -> list[Cell]:
    """Return the runs against T on logistic regression."""
    problem = Logistic()
    variants = (*VARIANTS, clustering(problem.own, problem.off))
    return over_rounds(problem, 2 if quick else 5, quick, LOGISTIC_FACTORS, variants)


def quadratics_n(quick: bool) -> list[Cell]:
    """Return the runs against n₀ on quadratics, with T and the off-target silos as they are."""
    (T, seeds), cells = size(quick), []
    for own in (1, 2, 4) if quick else (1, 2, 4, 8, 16):
        problem = Quadratics(own=own)
        for variant in (*VARIANTS, clustering(own, problem.off)):
            cells += repeated(own, problem, variant, T, seeds, FACTORS)
        cells += repeated(own, problem, SPCACW, 4 * T, seeds, label=f"{SPCACW.label}, T × 4")
    return cells


THEORY = {
    "T": {AUTARKY.label: -0.5, ORACLE.label: -0.5, SPCACW.label: -0.5, CONSTANT.label: -0.5,
          CORRECTED.label: -0.5, FTAL.label: -0.5, "FC, told n₀, Δ = 4σ": -0.5},
    "n₀": {AUTARKY.label: 0.0, ORACLE.label: -0.5, SPCACW.label: -0.5, CONSTANT.label: -0.5,
           CORRECTED.label: -0.5, f"{SPCACW.label}, T × 4": -0.5, FTAL.label: -0.5},
}  # fmt: skip
"""Exponents of the paper's bounds; of those with several terms there is none.

The constant β and FTAL with any β are SP-CACW as well, though not the form of the lemma's proof.
"""


def slopes(study: str, axis: str, table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return each line's fitted slope, at the formula's η and at the best of the factors."""
    rows = []
    for steps, chosen in (("best", best(table)), ("formula", table[table["factor"] == 1])):
        for label, line in chosen.groupby("label", sort=False):
            found = fit(line["x"], line["error"])
            rows.append({"study": study, "label": label, "against": axis, "step_size": steps,
                         **found, "theory": THEORY[axis].get(label)})  # fmt: skip
    return rows


SCHEDULES = {
    "β = 1/t": HARMONIC, "β = .01": (("beta", 0.01),), "β = .1": (("beta", 0.1),),
}  # fmt: skip


def schedules(quick: bool) -> list[Cell]:
    """Return the runs; labels begin with K or T_start, and references have x = 0."""
    (T, seeds), problem, cells = size(quick), Quadratics(), []
    K = (1, 10, T) if quick else (1, 5, 20, 100, 400, T)
    start = (1, 10, T) if quick else (1, 20, 100, 400, T)
    cases = [("K", value, (("update_every", value), ("t_start", 1))) for value in K]
    cases += [("T_start", value, (("update_every", 20), ("t_start", value))) for value in start]
    for (name, keys), (axis, value, when) in product(SCHEDULES.items(), cases):
        variant = Variant(f"{axis}: {name}", "spcacw", (*keys, *when))
        cells += repeated(value, problem, variant, T, seeds)
    # Autarky at the step size of the others: where SP-CACW is if it never updates α.
    for reference in (Variant("Autarky, same η", AUTARKY.method), ORACLE):
        cells += repeated(0, problem, reference, T, seeds)
    return cells


RATIOS = (0.125, 0.25, 0.5, 1.0, 1.4, 2.0, 2.8, 4.0, 8.0)
"""Δ/σ."""


def separations(quick: bool) -> list[Cell]:
    """Return the runs; x is Δ/σ."""
    (T, seeds), sigma, cells = size(quick), math.sqrt(Quadratics.noise), []
    for ratio in (1.0, 1.4, 2.0, 8.0) if quick else RATIOS:
        problem = Quadratics(distance=ratio * sigma)
        for variant in (AUTARKY, UNIFORM, ORACLE, SPCACW, clustering(problem.own, problem.off),
                        thresholded(sigma, problem.distance)):  # fmt: skip
            cells += repeated(ratio, problem, variant, T, seeds)
    return cells


def separation_slopes(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return how FC's err² in excess of that at the largest Δ falls with Δ, −1 in its bound.

    There is no slope where nothing in excess is left within the range.
    """
    rows = []
    for label, line in table[table["label"].str.startswith("FC")].groupby("label", sort=False):
        squares = line.set_index("x")["error"] ** 2
        excess = (squares - squares.iloc[-1])[(squares.index >= 1) & (squares.index < 4)]
        if (excess > 0).all():
            rows.append({"study": "separation", "label": f"{label}: err² − err²(Δ = 8σ)",
                         "against": "Δ, from σ to 2.8σ", "step_size": f"{FACTOR:g} × formula",
                         **fit(excess.index, excess), "theory": -1.0})  # fmt: skip
    return rows


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
    """Run a trial; return for some t ``estimate``, the off-target silos' mean of ‖b̂_t − b_t‖²."""
    spaced = np.geomspace(1, trial.rounds, 40).round().astype(int)
    noted = {*spaced.tolist(), *range(10, trial.rounds + 1, 10)}
    own = trial.problem.own
    found: dict[str, list[float]] = {"t": [], "estimate": []}
    for t, point, _, method in trial.play():
        if t in noted:
            rows = cast(SPCACWMethod, method).bias.estimate[own:].double().numpy()
            error = np.square(rows - trial.problem.bias(point, t)).sum(axis=1).mean()
            found["t"].append(t)
            found["estimate"].append(float(error))
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
