"""err_T against T, n₀, the separation Δ = ‖b‖, and the schedule of α: do the rates show?

The paper's bounds: Autarky σ/√T, uniform FL ‖b‖² + σ/√(MT), SP-CACW σ/√(n₀T), and Federated
Clustering √(σ²/(n₀T) + σ³/(ΔT)): FC needs separated clusters, SP-CACW's bound has no Δ. K are the
rounds between two updates of α, and at T_start the sum over rounds begins.
"""

from __future__ import annotations

import dataclasses
import math
from itertools import chain, product
from typing import Any

import pandas as pd

from .problems import Logistic, Quadratics
from .trials import (
    AUTARKY,
    CONSTANT,
    CORRECTED,
    FACTOR,
    FTAL,
    HARMONIC,
    ORACLE,
    SPCACW,
    UNIFORM,
    Cell,
    Variant,
    best,
    clustering,
    fit,
    repeated,
    size,
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
