"""Runs of this repository's methods on synthetic problems, by plain SGD with known L, and means."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import pandas as pd
import torch
from scipy import stats

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.registry import method_class
from spcacw_flwr.engine.loop import play
from spcacw_flwr.methods.base import Method
from spcacw_flwr.silos.protocol import Federation

from .problems import Array, Pool, Problem

Result = TypeVar("Result")
FACTOR = 2.0
"""η as a multiple of the formula's, if it is not swept. For fixed α on the quadratics 2.3 is best,
and 2 is within 1 % of it."""
ROUNDS, SEEDS = 1000, 10
"""T and seeds of a study that does not vary T."""
HARMONIC = {"beta_schedule": "harmonic"}
LEARNED = {"update_every": 20}


@dataclass(frozen=True)
class Variant:
    """A method with its keys, and the silos on which its step size relies."""

    label: str
    method: str
    keys: Mapping[str, Any] = field(default_factory=dict)
    helpers: str = "cluster"
    """The silos whose noise averages out: target (n = 1), cluster (n = n₀) or all (n = M)."""


AUTARKY = Variant("Autarky", "local", helpers="target")
UNIFORM = Variant("uniform FL", "fedavg", helpers="all")
ORACLE = Variant("Oracle (α uniform on I₀)", "oracle-averaged")
SPCACW = Variant("SP-CACW, β = 1/t", "spcacw", LEARNED | HARMONIC)
CONSTANT = Variant("SP-CACW, β = .1", "spcacw", LEARNED)
FTAL = Variant("SP-CACW, β = 1/t, FTAL", "spcacw", {**LEARNED, **HARMONIC, "solver": "ftal"})


def clustering(own: int, off: int) -> Variant:
    """Return Federated Clustering that knows n₀: n₀ silos are within its τ."""
    quantile = (own - 0.5) / (own + off)  # between two silos' places: rounding has no effect
    return Variant("FC, told n₀", "fedcluster", {"fedcluster": {"quantile": quantile}})


def thresholded(sigma: float, separation: float) -> Variant:
    """Return Federated Clustering with τ = √(σΔ), the radius behind the bound σ³/Δ."""
    keys = {"threshold": "fixed", "tau": math.sqrt(sigma * separation)}
    return Variant("FC, τ = √(σΔ)", "fedcluster", {"fedcluster": keys})


def step_size(problem: Problem, rounds: int, helpers: int) -> float:
    """Return η = min(1/(8L), √(δ₁ n/(2Lσ²T))), from the proof of the cluster lemma."""
    smooth, noise = problem.smoothness, problem.variance
    return min(1 / (8 * smooth), math.sqrt(problem.gap * helpers / (2 * smooth * noise * rounds)))


@dataclass(frozen=True)
class Trial:
    """T rounds of a variant on a problem."""

    problem: Problem
    variant: Variant
    rounds: int
    seed: int
    factor: float = 1.0
    """η as a multiple of the paper's formula."""

    @property
    def eta(self) -> float:
        """η."""
        own, off = self.problem.own, self.problem.off
        helpers = {"target": 1, "cluster": own, "all": own + off}[self.variant.helpers]
        return self.factor * step_size(self.problem, self.rounds, helpers)

    def config(self) -> Config:
        """Return a run configuration with steps w − ηg and the noise of ``seed``."""
        return Config.from_keys(
            method=self.variant.method, seed=self.seed, eta=self.eta, momentum=0.0,
            weight_decay=0.0, max_norm=0.0, batch_size=1, smoothness=self.problem.smoothness,
            **self.variant.keys,
        )  # fmt: skip

    def play(self) -> Iterator[tuple[int, Array, Array, Method]]:
        """Yield, after each round, t = 1…T, its w_t (d,) and α_t (M,), and the method."""
        config = self.config()
        pool = Pool(self.problem, config)
        federation = Federation(pool.describe(), 0, batch_size=1)
        start = torch.from_numpy(self.problem.start.astype(np.float32))
        method = method_class(self.variant.method)(config, federation, start)
        for round_ in range(1, self.rounds + 1):
            point, alpha = method.parameters.numpy().astype(np.float64), method.alpha
            play(cast(Any, pool), method, round_)
            yield round_, point, alpha, method

    def run(self) -> dict[str, float]:
        """Run the trial; return err_T, and the means over rounds of Σ_off α and Σα².

        err_T = (1/T) Σ ‖∇f⁽⁰⁾(w_t)‖² over t = 1…T, as in the paper's case study.
        """
        torch.set_num_threads(1)
        error = off = square = 0.0
        for _, point, alpha, _ in self.play():
            error += float(np.square(self.problem.gradient(point)).sum())
            off += float(alpha[self.problem.own :].sum())
            square += float(alpha @ alpha)
        T = self.rounds
        return {"error": error / T, "off_weight": off / T, "squared_weights": square / T}


class Cell(NamedTuple):
    """A run's place in a study: a line of the picture, and x."""

    label: str
    x: float
    trial: Trial


def repeated(
    x: float, problem: Problem, variant: Variant, rounds: int = ROUNDS, seeds: int = SEEDS,
    factors: Sequence[float] = (FACTOR,), label: str = "",
) -> Iterator[Cell]:  # fmt: skip
    """Yield the runs of a variant for each factor and seed; the label is the variant's if empty."""
    for factor, seed in product(factors, range(seeds)):
        yield Cell(label or variant.label, x, Trial(problem, variant, rounds, seed, factor))


def few_rounds(cells: Iterable[Cell], rounds: int = 20) -> Iterator[Cell]:
    """Yield the cells of two seeds, with few rounds: enough to test that they run."""
    for cell in cells:
        if cell.trial.seed < 2:
            trial = replace(cell.trial, rounds=min(cell.trial.rounds, rounds))
            yield cell._replace(trial=trial)


def spread(
    function: Callable[[Trial], Result], cells: Sequence[Cell], workers: int
) -> list[Result]:
    """Return a function of each trial, from ``workers`` processes of one thread; 0 is this process.

    The processes are spawned: a fork would inherit PyTorch's threads.
    """
    trials = [cell.trial for cell in cells]
    if workers == 0:
        return list(map(function, trials))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, torch.set_num_threads, (1,)) as pool:
        return list(pool.map(function, trials, chunksize=4))


def measured(
    cells: Sequence[Cell], workers: int, function: Callable[[Trial], dict[str, float]] = Trial.run,
    of: str = "error",
) -> pd.DataFrame:  # fmt: skip
    """Return means over seeds: a row per label, x and factor, with the standard error of ``of``."""
    rows = pd.DataFrame(
        {"label": cell.label, "x": cell.x, "factor": cell.trial.factor, **result}
        for cell, result in zip(cells, spread(function, cells, workers), strict=True)
    )
    groups = rows.groupby(["label", "x", "factor"], sort=False)
    table = groups.mean()
    table.insert(1, "standard_error", groups[of].sem())
    table["seeds"] = groups.size()
    return table.reset_index()


def best(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the factor with the least mean error, for each label and x."""
    return table.loc[table.groupby(["label", "x"], sort=False)["error"].idxmin()]


def fit(x: Iterable[float], y: Iterable[float]) -> dict[str, float]:
    """Fit log y = log c + slope · log x by least squares; 95 % t interval with n − 2 degrees.

    The interval shows how far the points are from one line, including the noise of the seeds.
    ValueError for fewer than three points, or for a point that is not positive.
    """
    across, up = np.array(list(x), dtype=float), np.array(list(y), dtype=float)
    if len(across) < 3 or not (across > 0).all() or not (up > 0).all():
        raise ValueError("A slope needs at least three points, all positive.")
    x_, y_ = (v - v.mean() for v in (np.log(across), np.log(up)))
    slope, freedom = float(x_ @ y_ / (x_ @ x_)), len(across) - 2
    error = math.sqrt(np.square(y_ - slope * x_).sum() / freedom / (x_ @ x_))
    reach = float(stats.t.ppf(0.975, freedom)) * error
    return {"slope": slope, "low": slope - reach, "high": slope + reach}
