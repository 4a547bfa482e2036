"""Tables made from other tables' CSV: ranks over all settings, and gains over training alone.

    python -m spcacw_flwr.experiments pages        # writes ranks.csv and gains.csv, too

A cell is a setting with a size of the target in ``federations.csv``, or a column of ``table1.csv``
or ``table1-narrow.csv``. Methods are compared by the metric after the last epoch, on the same
splits, targets and seeds. A method is left out if some cell lacks it. Methods are ranked by their
mean over a cell; 1 is best. A win or loss is a paired t-test against one rival in one cell with
p < .05 by Holm over rivals there. Its pairs are the targets of a federation, by their means over
splits, because splits of a silo share its rows. In a column of Table 1 they are the seeds.

Next to the ranks stand a method's costs in the runs of ``table1.csv``: the target's gradients as a
multiple of Local's, one a round, and the bytes between target and peers as a multiple of FedAvg's.

A gain, on the paper's six columns, is a row's best accuracy over epochs minus Local's, in
percentage points. The paper's gain is a difference of means; ours have a line for each seed that
both rows have. Columns that need a GPU have smaller versions.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from spcacw_flwr.silos.metrics import METRICS

from .conf import columns, rows
from .scores import holm, paired_p

LEVEL = 0.05
COSTS = {"target_gradients": "local", "bytes": "fedavg"}
"""The costs that are counted, each with the method whose cost is 1."""


def read_cells(results: Path) -> dict[str, pd.DataFrame]:
    """Return a table for each cell: a line per run, a column per method; more is better.

    The last level of its index has what tests count: the targets of a federation, or seeds.
    """
    found = {}
    federations = pd.read_csv(results / "federations.csv")
    for (setting, size), lines in federations.groupby(["setting", "size"], sort=False):
        sign = METRICS[lines["metric"].iloc[0]].sign
        table = lines.pivot_table("value", ["seed", "target"], "method") * sign
        found[f"{setting}, {size or 'all data'}"] = table
    runs = pd.concat(pd.read_csv(results / f"table1{more}.csv") for more in ("", "-narrow"))
    for column, lines in runs.groupby("column", sort=False):
        found[str(column)] = lines.pivot_table("last_accuracy", "seed", "method")
    return found


def ranks(cells: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the table of ranks, the lowest mean rank first."""
    methods = sorted(set.intersection(*(set(cell.columns) for cell in cells.values())))
    places, wins, losses = {}, Counter[str](), Counter[str]()
    for name, cell in cells.items():
        of = cell[methods].dropna().groupby(level=-1).mean()
        places[name] = place = of.mean().rank(ascending=False)
        for one in methods:
            p = holm({rival: paired_p(of[one], of[rival]) for rival in methods if rival != one})
            sure = [rival for rival, value in p.items() if value is not None and value < LEVEL]
            wins[one] += sum(place[one] < place[rival] for rival in sure)
            losses[one] += sum(place[one] > place[rival] for rival in sure)
    table = pd.DataFrame(places)
    found = pd.DataFrame({
        "cells": len(cells), "mean_rank": table.mean(axis=1).round(2),
        "best": (table == 1).sum(axis=1), "wins": pd.Series(wins), "losses": pd.Series(losses),
    })  # fmt: skip
    return found.rename_axis("method").reset_index().sort_values("mean_rank", kind="stable")


def costs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the mean multiples of :data:`COSTS` over columns and seeds, a line per method."""
    found = {}
    for name, unit in COSTS.items():
        of = runs.pivot_table(name, ["column", "seed"], "method")
        found[name] = of.div(of[unit], axis=0).mean().round(2)
    return pd.DataFrame(found)


def rank_table(results: Path) -> pd.DataFrame:
    """Return the ranks of the committed runs, and the costs of each method."""
    beside = costs(pd.read_csv(results / "table1.csv"))
    return ranks(read_cells(results)).join(beside, on="method").reset_index(drop=True)


VERSIONS = {"": "ours"} | {f"-{form}": f"ours, {form}" for form in ("short", "quarter", "narrow")}
"""The endings of a column's and its table's name, with the origin of the gains there."""


def gain_table(results: Path) -> pd.DataFrame:
    """Return the gains in the paper's table and in the committed runs."""
    titles, lines = {row.name: row.title for row in rows()}, []
    runs = pd.concat([pd.read_csv(results / f"table1{more}.csv") for more in ("-full", *VERSIONS)])
    for column in columns():
        of = {"paper": pd.DataFrame({row: [mean] for row, (mean, _) in column.paper.items()})}
        for more, whose in VERSIONS.items():
            here = runs[runs["column"] == column.name + more]
            of[whose] = here.pivot_table("best_accuracy", "seed", "method")
        for whose, best in of.items():
            for row in [row for row in titles if row in best and row != "local"]:
                gains = (best[row] - best["local"]).dropna().round(3)
                lines += [(column.title, whose, titles[row], gain) for gain in gains]
    return pd.DataFrame(lines, columns=["column", "whose", "method", "gain"])
