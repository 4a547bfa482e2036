"""Gains over training alone on the paper's six columns: the paper's, and ours beside them.

    python -m spcacw_flwr.experiments pages        # writes experiments/results/gains.csv, too

A gain is a row's best accuracy over epochs less Local's, in percentage points. The paper's is one
of means; ours are a line for each seed that both have. Columns that are a GPU's work have short and
narrow versions.
"""

from pathlib import Path

import pandas as pd

from .conf import columns, rows

VERSIONS = {"": "ours", "-short": "ours, short", "-narrow": "ours, narrow"}
"""What follows the name of a column and of its table, and whose the gains are."""


def table(results: Path) -> pd.DataFrame:
    """Return the gains of the paper's table and of the committed runs."""
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
