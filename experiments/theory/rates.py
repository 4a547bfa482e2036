"""err_T against T and n₀: do the case study's rates show?

The paper's bounds: Autarky σ/√T, uniform FL ‖b‖² + σ/√(MT), SP-CACW σ/√(n₀T).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pandas as pd

from .logistic import Logistic
from .measure import Cell, Slope, best, fit
from .quadratics import Quadratics
from .trial import (
    AUTARKY,
    CONSTANT,
    CORRECTED,
    FTAL,
    ORACLE,
    SPCACW,
    UNIFORM,
    Trial,
    Variant,
    clustering,
)

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
