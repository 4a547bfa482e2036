"""err_T against the separation Δ = ‖b‖ of the clusters: what FC needs and SP-CACW does not.

The paper's bound for Federated Clustering is √(σ²/(n₀T) + σ³/(ΔT)); SP-CACW's has no Δ.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from .measure import Cell, fit
from .quadratics import Quadratics
from .trial import AUTARKY, ORACLE, SPCACW, UNIFORM, Trial, clustering, thresholded

FACTOR = 2.0
RATIOS = (0.125, 0.25, 0.5, 1.0, 1.4, 2.0, 2.8, 4.0, 8.0)
"""Δ/σ."""


def cells(quick: bool) -> list[Cell]:
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


def slopes(table: pd.DataFrame) -> list[dict[str, Any]]:
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
