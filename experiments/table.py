"""Render a table of ``experiments.columns`` as Markdown: a row per method, columns per setting.

python -m spcacw_flwr.experiments.table experiments/results/methods.csv docs/methods-results.md
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

FIGURES = {
    "best": lambda row: f"{row.best_accuracy:.2f}",
    "last": lambda row: f"{row.last_accuracy:.2f}",
    "gradients": lambda row: f"{row.target_gradients:,}",
    "floats": lambda row: f"{row.floats:.2g}",
    "seconds": lambda row: f"{row.seconds:.1f}",
}
"""Of each run: accuracies in percent, gradients at the target, floats to and from its peers."""


def line(cells: list[str]) -> str:
    """Return a row of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def render(rows: pd.DataFrame) -> str:
    """Return the tables, one of each setting, methods in the order of the file."""
    parts = []
    for setting, runs in rows.groupby("column", sort=False):
        best = set(runs.nlargest(3, "best_accuracy").method)
        parts += [f"### {setting}", "", line(["method", *FIGURES])]
        parts.append(line(["---", *("--:" for _ in FIGURES)]))
        for row in runs.itertuples():
            name = f"**{row.method}**" if row.method in best else str(row.method)
            parts.append(line([name, *(figure(row) for figure in FIGURES.values())]))
        parts.append("")
    return "\n".join(parts)


def main(
    table: Annotated[Path, typer.Argument(help="CSV of spcacw_flwr.experiments.columns")],
    page: Annotated[Path, typer.Argument(help="Markdown file to write")],
) -> None:
    """Write the page."""
    rows = pd.read_csv(table)
    several = rows.duplicated(["column", "method"]).any()
    if several:
        raise typer.BadParameter(f"{table} has more than one run of a method on a setting.")
    text = (
        f"# Results of all methods\n\nFrom [{table.name}](../{table}), by\n\n```bash\n"
        f"python -m spcacw_flwr.experiments.table {table} {page}\n```\n\n"
        "Each row there has the command that made it. Accuracies in percent on test data, best "
        "and last epoch; gradients that the target computed; floats to and from its peers; the "
        "three best of each setting in bold.\n\n"
    )
    page.write_text(text + render(rows))


if __name__ == "__main__":
    typer.run(main)
