"""The paper's rates and estimates: err_T of the case study, the biases b̂, and G̃ of partial reports.

The paper's bounds: Autarky σ/√T, uniform FL ‖b‖² + σ/√(MT), SP-CACW σ/√(n₀T), and Federated
Clustering √(σ²/(n₀T) + σ³/(ΔT)). FC needs separated clusters; SP-CACW's bound has no Δ. K is the
number of rounds between two updates of α. The sum over rounds begins at T_start.

Biases, for constant β and 1/t, b stationary or not: lemma "Bias Estimation Error under Stationary
Bias" (E‖b̂ − b‖² ≤ σ²_bound/t for β = 1/t), remark "Practical Adaptation via Constant Smoothing".
For constant β and stationary b the error is exactly
σ²_bound β/(2 − β) (1 − (1 − β)^{2t}) + (1 − β)^{2t} ‖b‖².

Partial participation: the proposition "Aggregated Partial Participation Estimator" says
E G̃ = Σ α g and Var G̃ = (1/p − 1) Σ (α^{(i)})² ‖g^{(i)}‖² for G̃(α) = Σ α g z/p. Here, the target
always takes part (READING 22): its term has no variance, and the sum is over the peers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from itertools import chain, product
from typing import Any, cast

import numpy as np
import pandas as pd
import torch

from spcacw_flwr.config.registry import method_class
from spcacw_flwr.methods.base import WeightedGradients
from spcacw_flwr.methods.spcacw import SPCACWMethod
from spcacw_flwr.silos.protocol import Federation, Replies, Request

from .problems import Logistic, Pool, Problem, Quadratics
from .trials import (
    AUTARKY,
    CONSTANT,
    FACTOR,
    FTAL,
    HARMONIC,
    LEARNED,
    ORACLE,
    ROUNDS,
    SEEDS,
    SPCACW,
    UNIFORM,
    Cell,
    Trial,
    Variant,
    best,
    clustering,
    fit,
    repeated,
    spread,
    thresholded,
)

FACTORS, LOGISTIC_FACTORS = (0.5, 1.0, 2.0), (1.0, 2.0, 4.0)
"""η as multiples of the formula's. The logistic silos' noise falls as w approaches the minimum, so
larger steps do well."""
VARIANTS = (AUTARKY, UNIFORM, ORACLE, SPCACW, CONSTANT, FTAL)


def over_rounds(
    problem: Problem, seeds: int, factors: tuple[float, ...], variants: tuple[Variant, ...]
) -> Iterator[Cell]:
    """Yield the runs of variants for several T."""
    for variant, T in product(variants, (250, 500, 1000, 2000, 4000)):
        yield from repeated(T, problem, variant, T, seeds, factors)


def quadratics_T() -> Iterator[Cell]:
    """Yield the runs against T on quadratics; FC also has well separated clusters, Δ = 4σ."""
    problem = Quadratics()
    told = clustering(problem.own, problem.off)
    apart = dataclasses.replace(problem, distance=4 * problem.noise**0.5)
    far = dataclasses.replace(told, label="FC, told n₀, Δ = 4σ")
    yield from over_rounds(problem, SEEDS, FACTORS, (*VARIANTS, told))
    yield from over_rounds(apart, SEEDS, FACTORS, (far,))


def logistic_T() -> Iterator[Cell]:
    """Return the runs against T on logistic regression."""
    problem = Logistic()
    variants = (*VARIANTS, clustering(problem.own, problem.off))
    return over_rounds(problem, 5, LOGISTIC_FACTORS, variants)


def quadratics_n() -> Iterator[Cell]:
    """Yield the runs against n₀ on quadratics, with the same T and the same off-target silos."""
    for own in (1, 2, 4, 8, 16):
        problem = Quadratics(own=own)
        for variant in (*VARIANTS, clustering(own, problem.off)):
            yield from repeated(own, problem, variant, factors=FACTORS)
        yield from repeated(own, problem, SPCACW, 4 * ROUNDS, label=f"{SPCACW.label}, T × 4")


THEORY = {
    "T": {AUTARKY.label: -0.5, ORACLE.label: -0.5, SPCACW.label: -0.5, CONSTANT.label: -0.5,
          FTAL.label: -0.5, "FC, told n₀, Δ = 4σ": -0.5},
    "n₀": {AUTARKY.label: 0.0, ORACLE.label: -0.5, SPCACW.label: -0.5, CONSTANT.label: -0.5,
           f"{SPCACW.label}, T × 4": -0.5, FTAL.label: -0.5},
}  # fmt: skip
"""Exponents of the paper's bounds; a bound with several terms has none.

The constant β, and FTAL with any β, are SP-CACW too, but not in the form of the lemma's proof.
"""


def slopes(study: str, axis: str, table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return each line's fitted slope, at the best of the factors and at the formula's η."""
    rows = []
    for steps, chosen in (("best", best(table)), ("formula", table[table["factor"] == 1])):
        for label, line in chosen.groupby("label", sort=False):
            found = fit(line["x"], line["error"])
            rows.append({"study": study, "label": label, "against": axis, "step_size": steps,
                         **found, "theory": THEORY[axis].get(label)})  # fmt: skip
    return rows


SCHEDULES: dict[str, dict[str, Any]] = {
    "β = 1/t": HARMONIC,
    "β = .01": {"beta": 0.01},
    "β = .1": {"beta": 0.1},
}


def schedules() -> Iterator[Cell]:
    """Yield the runs; labels begin with K or T_start, and the reference methods have x = 0."""
    problem = Quadratics()
    updates, starts = (1, 5, 20, 100, 400, ROUNDS), (1, 20, 100, 400, ROUNDS)
    cases = [("K", value, {"update_every": value, "t_start": 1}) for value in updates]
    cases += [("T_start", value, {"update_every": 20, "t_start": value}) for value in starts]
    for (name, keys), (axis, value, when) in product(SCHEDULES.items(), cases):
        yield from repeated(value, problem, Variant(f"{axis}: {name}", "spcacw", keys | when))
    # Autarky at the step size of the others: this is SP-CACW if it never updates α.
    for reference in (Variant("Autarky, same η", AUTARKY.method), ORACLE):
        yield from repeated(0, problem, reference)


RATIOS = (0.125, 0.25, 0.5, 1.0, 1.4, 2.0, 2.8, 4.0, 8.0)
"""Δ/σ."""


def separations() -> Iterator[Cell]:
    """Yield the runs; x is Δ/σ."""
    sigma = math.sqrt(Quadratics.noise)
    for ratio in RATIOS:
        problem = Quadratics(distance=ratio * sigma)
        for variant in (AUTARKY, UNIFORM, ORACLE, SPCACW, clustering(problem.own, problem.off),
                        thresholded(sigma, problem.distance)):  # fmt: skip
            yield from repeated(ratio, problem, variant)


def separation_slopes(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the slope against Δ of FC's err² minus its err² at the largest Δ; its bound has −1.

    There is no slope if this difference is not positive within the whole range.
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


def bias_cells(betas: tuple[float, ...] = (0.0, *TRACED)) -> Iterator[Cell]:
    """Yield runs for a stationary bias, a bias that moves with w, and one that appears at T/2.

    In ``betas`` 0 stands for 1/t, and −1 for the Oracle.
    """
    problems = {
        "stationary": Quadratics(),
        "moves with w (A_off = 2A)": Quadratics(stretch=1.0),
        "appears at T/2": Quadratics(onset=ROUNDS // 2 + 1),
    }
    for (name, problem), beta in product(problems.items(), betas):
        keys = LEARNED | (HARMONIC if beta == 0 else {"beta": beta})
        variant = ORACLE if beta < 0 else Variant("", "spcacw", keys)
        yield from repeated(beta, problem, variant, label=name)


def bias_training() -> Iterator[Cell]:
    """Return the runs for the training error against β."""
    return chain(bias_cells((0.0, *BETAS)), bias_cells((-1.0,)))


def trace(trial: Trial) -> dict[str, list[float]]:
    """Run a trial; return some t, and ``estimate``, the off-target mean of ‖b̂_t − b_t‖² there."""
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


def traced(cells: Sequence[Cell], workers: int) -> pd.DataFrame:
    """Return the traces' means over seeds, with the lemmas' bounds where b is stationary."""
    results = spread(trace, cells, workers)
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


def participation(draws: int = 20_000) -> Iterator[Cell]:
    """Yield ``draws`` rounds for each p; α is set by hand."""
    problem = Quadratics(own=3, off=3)
    for p in CHANCES:
        yield Cell("", p, Trial(problem, Variant("", "fedavg", {"participation": p}), draws, 0))


def simulated(trial: Trial) -> dict[str, float]:
    """Return error of the mean, and variance, over z of the method's sum, with the theory's.

    Each draw is a round with the same gradients; α is ½ on the target and .1 on each of five peers.
    """
    draws, config = trial.rounds, trial.config()
    pool = Pool(trial.problem, config)
    start = torch.from_numpy(trial.problem.start)
    federation = Federation(pool.describe(), 0, batch_size=1)
    method: WeightedGradients = method_class("fedavg")(config, federation, start)
    alpha = np.array([0.5, 0.1, 0.1, 0.1, 0.1, 0.1])
    method.set_weights(alpha, 0)
    rows = pool.answer(Request(1, pool.silos, start)).replies.gradients
    sums = np.empty((draws, len(start)))
    for round_ in range(1, draws + 1):
        silos = method.sampled(round_)
        replies = Replies(silos, rows[list(silos)], torch.zeros(len(silos)))
        sums[round_ - 1] = method.weighted(replies).numpy()
    g, p = rows.double().numpy(), config.training.participation
    each = alpha**2 * np.square(g).sum(axis=1)
    squares = np.square(sums - alpha @ g).sum(axis=1)
    return {
        "p": p, "draws": draws, "variance": float(squares.mean()),
        "variance_error": float(squares.std(ddof=1) / np.sqrt(draws)),
        "theory_peers": (1 / p - 1) * float(each[1:].sum()),
        "theory_all": (1 / p - 1) * float(each.sum()),
        "mean_error": float(np.square(sums.mean(axis=0) - alpha @ g).sum()),
    }  # fmt: skip


def drawn(cells: Sequence[Cell], workers: int) -> pd.DataFrame:
    """Return the mean's error and the variance of G̃(α) for each p."""
    return pd.DataFrame(spread(simulated, cells, workers))


def participation_training() -> Iterator[Cell]:
    """Yield training runs against p."""
    for variant, p in product((SPCACW, ORACLE), CHANCES):
        sampled = dataclasses.replace(variant, keys={**variant.keys, "participation": p})
        yield from repeated(p, Quadratics(), sampled)
