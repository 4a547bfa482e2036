"""err_T against K, the rounds between two updates of α, and T_start, where the sum begins."""

from __future__ import annotations

from .measure import Cell
from .quadratics import Quadratics
from .trial import AUTARKY, HARMONIC, ORACLE, Trial, Variant

FACTOR = 2.0
SCHEDULES = {
    "β = 1/t": HARMONIC, "β = .01": (("beta", 0.01),), "β = .1": (("beta", 0.1),),
}  # fmt: skip


def cells(quick: bool) -> list[Cell]:
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
