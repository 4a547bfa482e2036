"""err_T against T, n₀, the separation Δ = ‖b‖, and the schedule of α: do the rates show?

The paper's bounds: Autarky σ/√T, uniform FL ‖b‖² + σ/√(MT), SP-CACW σ/√(n₀T), and Federated
Clustering √(σ²/(n₀T) + σ³/(ΔT)): FC needs separated clusters, SP-CACW's bound has no Δ. K are the
rounds between two updates of α, and at T_start the sum over rounds begins.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pandas as pd

from .measure import Cell, Slope, best, fit
from .problems import Logistic, Quadratics
from .trial import (
    AUTARKY,
    CONSTANT,
    CORRECTED,
    FTAL,
    HARMONIC,
    ORACLE,
    SPCACW,
    UNIFORM,
    Trial,
    Variant,
    clustering,
    thresholded,
)

FACTOR = 2.0
FACTORS, LOGISTIC_FACTORS = (0.5, 1.0, 2.0), (1.0, 2.0, 4.0)
"""η as multiples of the formula's.

For fixed α on these quadratics the best is 2.3: within 1 % of 2. The logistic silos' noise falls as
w nears the minimum, so that larger steps do well.
"""
VARIANTS = (AUTARKY, UNIFORM, ORACLE, SPCACW, CONSTANT, CORRECTED, FTAL)


def over_rounds(
    problem: Any, seeds: int, horizons: tuple[int, ...], factors: tuple[float, ...]
) -> list[Cell]:
    """Return the runs of all methods for several T."""
    variants = (*VARIANTS, clustering(problem.own, problem.off))
    return [
        Cell(variant.label, T, Trial(problem, variant, T, seed, factor))
        for variant in variants for T in horizons for factor in factors for seed in range(seeds)
    ]  # fmt: skip


def quadratics_T(quick: bool) -> list[Cell]:
    """Return the runs against T on quadratics, FC also with well separated clusters, Δ = 4σ."""
    horizons = (10, 20, 40) if quick else (250, 500, 1000, 2000, 4000)
    seeds, problem = (2 if quick else 10), Quadratics()
    apart = dataclasses.replace(problem, distance=4 * problem.noise**0.5)
    far = dataclasses.replace(clustering(problem.own, problem.off), label="FC, told n₀, Δ = 4σ")
    return over_rounds(problem, seeds, horizons, FACTORS) + [
        Cell(far.label, T, Trial(apart, far, T, seed, factor))
        for T in horizons for factor in FACTORS for seed in range(seeds)
    ]  # fmt: skip


def logistic_T(quick: bool) -> list[Cell]:
    """Return the runs against T on logistic regression."""
    horizons = (10, 20, 40) if quick else (250, 500, 1000, 2000, 4000)
    return over_rounds(Logistic(), 2 if quick else 5, horizons, LOGISTIC_FACTORS)


def quadratics_n(quick: bool) -> list[Cell]:
    """Return the runs against n₀ on quadratics, with T and the off-target silos as they are."""
    T, seeds = (20, 2) if quick else (1000, 10)
    longer = dataclasses.replace(SPCACW, label=f"{SPCACW.label}, T × 4")
    cells = []
    for own in (1, 2, 4) if quick else (1, 2, 4, 8, 16):
        problem = Quadratics(own=own)
        variants: tuple[Variant, ...] = (*VARIANTS, clustering(own, problem.off))
        cells += [
            Cell(variant.label, own, Trial(problem, variant, T, seed, factor))
            for variant in variants for factor in FACTORS for seed in range(seeds)
        ] + [
            Cell(longer.label, own, Trial(problem, longer, 4 * T, seed, 2.0))
            for seed in range(seeds)
        ]  # fmt: skip
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
            found: Slope = fit(line["x"], line["error"])
            rows.append({"study": study, "label": label, "against": axis, "step_size": steps,
                         **found._asdict(), "theory": THEORY[axis].get(label)})  # fmt: skip
    return rows


SCHEDULES = {
    "β = 1/t": HARMONIC, "β = .01": (("beta", 0.01),), "β = .1": (("beta", 0.1),),
}  # fmt: skip


def schedules(quick: bool) -> list[Cell]:
    """Return the runs; labels begin with K or T_start, and references have x = 0."""
    T, seeds = (20, 2) if quick else (1000, 10)
    K = (1, 10, T) if quick else (1, 5, 20, 100, 400, T)
    start = (1, 10, T) if quick else (1, 20, 100, 400, T)
    problem, found = Quadratics(), []
    for seed in range(seeds):
        for name, keys in SCHEDULES.items():
            for axis, values in (("K", K), ("T_start", start)):
                for value in values:
                    every = value if axis == "K" else 20
                    first = value if axis == "T_start" else 1
                    own = (*keys, ("update_every", every), ("t_start", first))
                    trial = Trial(problem, Variant(name, "spcacw", own), T, seed, FACTOR)
                    found.append(Cell(f"{axis}: {name}", value, trial))
        # Autarky at the step size of the others: where SP-CACW is if it never updates α.
        alone = Variant("Autarky, same η", AUTARKY.method)
        for reference in (alone, ORACLE):
            found.append(Cell(reference.label, 0, Trial(problem, reference, T, seed, FACTOR)))
    return found


RATIOS = (0.125, 0.25, 0.5, 1.0, 1.4, 2.0, 2.8, 4.0, 8.0)
"""Δ/σ."""


def separations(quick: bool) -> list[Cell]:
    """Return the runs; x is Δ/σ."""
    T, seeds = (20, 2) if quick else (1000, 10)
    found = []
    for ratio in (1.0, 1.4, 2.0, 8.0) if quick else RATIOS:
        sigma = math.sqrt(Quadratics.noise)
        problem = Quadratics(distance=ratio * sigma)
        variants = (
            AUTARKY, UNIFORM, ORACLE, SPCACW, clustering(problem.own, problem.off),
            thresholded(sigma, problem.distance),
        )  # fmt: skip
        found += [
            Cell(variant.label, ratio, Trial(problem, variant, T, seed, FACTOR))
            for variant in variants for seed in range(seeds)
        ]  # fmt: skip
    return found


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
                         **fit(excess.index, excess)._asdict(), "theory": -1.0})  # fmt: skip
    return rows
