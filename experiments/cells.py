"""The cells of Table 1: three scores, the paper's, and how sure a difference is.

``table1-cells.csv`` has a line per cell. ``standard_errors`` is (best − the paper's) in standard
errors of the difference. ``p_holm`` is of the paired t-test against :data:`REFERENCE`, each row at
its honest epoch (its last one, where nothing was held out), by Holm over the column's rows.
``top`` marks the three highest best scores of a column, as in the paper: the Oracles too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .conf import Column, Row
from .results import Results, read_csv, write_csv
from .scores import Score, best_epoch, difference, holm, paired_p, score_at, top

REFERENCE = "spcacw"
RULES = ("best", "last", "honest")


@dataclass(frozen=True)
class Cell:
    """A cell of the table; accuracies in percent."""

    column: str
    row: str
    title: str
    """Of the row."""
    best: Score
    last: Score
    honest: Score | None
    paper: tuple[float, float] | None
    standard_errors: float | None
    p_holm: float | None
    top: bool
    seconds: float
    """Mean wall-clock seconds of a run, beside whatever else the machine did."""


def compared(results: Results, column: str) -> dict[str, float | None]:
    """Return Holm's p of each row of a column against the reference, over the seeds of both."""
    values = {}
    for (name, row), c in results.tests.items():
        if name == column:
            epoch = results.honest_epoch((column, row)) or c.accuracy.shape[1]
            values[row] = dict(zip(c.seeds, c.accuracy[:, epoch - 1], strict=True))
    ours = values.pop(REFERENCE, {})
    tests = {}
    for row, theirs in values.items():
        both = sorted(ours.keys() & theirs.keys())
        tests[row] = paired_p([ours[s] for s in both], [theirs[s] for s in both])
    return holm(tests)


def column_cells(results: Results, column: Column, rows: Sequence[Row]) -> list[Cell]:
    """Return the cells of a column that have a finished run, in the order of ``rows``."""
    there = {row.name: results.tests[column.name, row.name] for row in rows
             if (column.name, row.name) in results.tests}  # fmt: skip
    best = {name: score_at(c.accuracy, best_epoch(c.accuracy)) for name, c in there.items()}
    marked, p = top({name: s.mean for name, s in best.items()}), compared(results, column.name)
    cells = []
    for row in (row for row in rows if row.name in there):
        accuracy, paper = there[row.name].accuracy, column.paper.get(row.name)
        epoch = results.honest_epoch((column.name, row.name))
        cells.append(Cell(
            column.name, row.name, row.title, best[row.name],
            score_at(accuracy, accuracy.shape[1]), score_at(accuracy, epoch) if epoch else None,
            paper, difference(best[row.name], paper) if paper else None, p.get(row.name),
            row.name in marked, float(there[row.name].seconds[:, -1].mean()),
        ))  # fmt: skip
    return cells


def flat(cell: Cell) -> dict[str, Any]:
    """Return a cell's line of CSV; what there is not is None."""
    line: dict[str, Any] = {"column": cell.column, "row": cell.row, "title": cell.title,
                            "seeds": cell.best.seeds, "epochs": cell.last.epoch}  # fmt: skip
    for rule in RULES:
        score = getattr(cell, rule)
        for part in ("epoch", "mean", "std"):
            line[f"{rule}_{part}"] = getattr(score, part) if score else None
    line["paper_mean"], line["paper_std"] = cell.paper or (None, None)
    for name in ("standard_errors", "p_holm", "top", "seconds"):
        line[name] = getattr(cell, name)
    return {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in line.items()}


def write(path: Path, cells: Sequence[Cell]) -> None:
    """Write the cells as CSV."""
    write_csv(path, list(flat(cells[0])), map(flat, cells))


def read(path: Path) -> list[Cell]:
    """Read the cells that :func:`write` wrote."""
    cells = []
    for line in read_csv(path):
        number = {k: float(v) if v else None for k, v in line.items()
                  if k not in ("column", "row", "title", "top")}  # fmt: skip
        scores = [
            Score(int(epoch), number[f"{rule}_mean"] or 0.0, number[f"{rule}_std"],
                  int(line["seeds"]))
            if (epoch := number[f"{rule}_epoch"]) is not None else None
            for rule in RULES
        ]  # fmt: skip
        best, last, honest = scores
        mean, std = number["paper_mean"], number["paper_std"]
        assert best is not None
        assert last is not None
        cells.append(Cell(
            line["column"], line["row"], line["title"], best, last, honest,
            None if mean is None or std is None else (mean, std), number["standard_errors"],
            number["p_holm"], line["top"] == "True", number["seconds"] or 0.0,
        ))  # fmt: skip
    return cells
