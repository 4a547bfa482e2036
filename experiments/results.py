"""The logs of finished runs, and a line of CSV for each run.

``table1.csv`` has a line per column × method × seed. ``best_accuracy`` and ``last_accuracy`` are
the run's own, on test data (percent). ``validation_accuracy`` is its *test* accuracy at the honest
epoch; it is empty if there is no honest epoch.

The honest epoch of a method on a column is the one with the highest mean accuracy over twins: runs
of the same seeds without a fifth of the target's training data, evaluated on that fifth. The scored
run trains on all data, as the paper's does, so its epochs are passes over a quarter more data. The
chosen epoch may be too late or too early, but it does not depend on the test data.

``table1-cells.csv`` has a line per cell: the scores and tests of :mod:`.scores`. They compare each
row at its honest epoch (the last one, if nothing was held out) with :data:`REFERENCE`. ``top``
marks the three highest best scores of a column, Oracles included, as in the paper.
"""

import csv
import io
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.directory import append, whole_lines, write_atomically

from .conf import Column, Job, Row
from .runs import FINISHED, Run
from .scores import Array, Score, best_epoch, difference, holm, paired_p, score_at, top

COSTS = ("target_gradients", "bytes")
"""What a run's target computed, and what it and its peers sent each other."""


@dataclass(frozen=True)
class Curves:
    """The logs of a cell's finished seeds after each epoch; arrays are (seeds, epochs)."""

    seeds: tuple[int, ...]
    directories: tuple[Path, ...]
    accuracy: Array
    seconds: Array
    target_gradients: Array
    bytes: Array

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the fields of each seed's line of CSV."""
        for k, (seed, accuracy) in enumerate(zip(self.seeds, self.accuracy, strict=True)):
            yield {
                "seed": seed, "epochs": len(accuracy), "best_accuracy": round(accuracy.max(), 3),
                "last_accuracy": round(accuracy[-1], 3), "seconds": self.seconds[k, -1],
                **{name: int(getattr(self, name)[k, -1]) for name in COSTS},
            }  # fmt: skip

    def best(self) -> Score:
        """Return the score at the best epoch."""
        return score_at(self.accuracy, best_epoch(self.accuracy))

    def at(self, epoch: int | None = None) -> dict[int, float]:
        """Return the accuracy of each seed at an epoch, from 1 on; None is the last epoch."""
        return dict(zip(self.seeds, self.accuracy[:, (epoch or 0) - 1], strict=True))


def read_curves(runs: Iterable[Run]) -> Curves:
    """Read finished runs of one cell, in order of their seeds."""
    runs = sorted(runs, key=lambda run: run.job.seed)
    parts = []
    for run in runs:
        epochs = run.scored()
        parts.append([[e[name] for e in epochs] for name in ("accuracy", "seconds", *COSTS)])
    places = tuple(run.directory for run in runs)
    figures = np.array(parts, dtype=np.float64).transpose(1, 0, 2)
    return Curves(tuple(run.job.seed for run in runs), places, *figures)


def grouped(
    jobs: Iterable[Job], runs: Iterable[Run], more: Callable[[Job, Config], tuple[Any, ...]]
) -> dict[tuple[Any, ...], Curves]:
    """Return the finished runs by column, row and the values that ``more`` returns for a run."""
    groups: dict[tuple[Any, ...], list[Run]] = defaultdict(list)
    for job, run in zip(jobs, runs, strict=True):
        if run.state == FINISHED and run.config is not None:
            groups[job.column, job.row, *more(job, run.config)].append(run)
    return {where: read_curves(group) for where, group in groups.items()}


Found = Mapping[tuple[str, str, bool], Curves]
"""The finished runs of a table by column, row and whether they are twins, with held-out data."""


def finished_runs(jobs: Sequence[Job], runs: Sequence[Run]) -> Found:
    """Read the finished runs of a table."""
    return grouped(jobs, runs, lambda _, config: (config.run.holdout > 0,))


def honest_epoch(found: Found, column: str, row: str) -> int | None:
    """Return the epoch, from 1 on, that the twins of a cell choose; None without twins."""
    twins = found.get((column, row, True))
    return best_epoch(twins.accuracy) if twins else None


def run_lines(found: Found) -> list[dict[str, Any]]:
    """Return the lines of table1.csv."""
    lines = []
    for (column, row, twins), curves in found.items():
        if twins:
            continue
        epoch = honest_epoch(found, column, row)
        honest = curves.at(epoch) if epoch else {}
        for line in curves.lines():
            at = honest.get(line["seed"])
            costs = {name: line.pop(name) for name in ("seconds", *COSTS)}
            lines.append({
                "column": column, "method": row, **line,
                "validation_accuracy": None if at is None else round(at, 3), **costs,
            })  # fmt: skip
    return lines


def write_csv(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Write a table whose columns are the first line's keys; None is an empty field."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, as_csv(lines, list(lines[0]), head=True).encode())


def as_csv(lines: Iterable[Mapping[str, Any]], names: Sequence[str], *, head: bool) -> str:
    """Return lines of CSV, with a ``head`` or without."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, names, lineterminator="\n")
    if head:
        writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def read_csv(path: Path) -> list[dict[str, str]]:
    """Return the lines of a table."""
    return list(csv.DictReader(whole_lines(path)))


class Table:
    """A CSV of columns ``names`` that grows by whole lines.

    A line is found again by its ``place``, the columns that identify it. SpcacwError if the file
    exists and has other columns.
    """

    def __init__(self, path: Path, names: Sequence[str], place: Sequence[str]) -> None:
        self.path, self.names, self.key = path, list(names), list(place)
        lines = read_csv(path) if path.exists() else []
        if lines and list(lines[0]) != self.names:
            raise SpcacwError(f"{path} has other columns than {', '.join(names)}: name another.")
        self.lines = {self.place(line): line for line in lines}

    def place(self, line: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the values that identify a line, as text in the file."""
        return tuple(str(line[name]) for name in self.key)

    def lacks(self, place: Mapping[str, Any]) -> bool:
        """Whether no line has this place; it may be the first columns alone, of several lines."""
        if len(place) == len(self.key):
            return self.place(place) not in self.lines
        first = tuple(map(str, place.values()))
        return all(known[: len(first)] != first for known in self.lines)

    def add(self, *lines: Mapping[str, Any]) -> None:
        """Append lines, all or none; a column that a line does not name stays empty."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        texts = [{name: "" if line.get(name) is None else str(line[name]) for name in self.names}
                 for line in lines]  # fmt: skip
        fresh = not self.path.exists() or not self.path.stat().st_size
        append(self.path, as_csv(texts, self.names, head=fresh))
        self.lines |= {self.place(text): text for text in texts}

    def arrange(self, places: Iterable[Mapping[str, Any]]) -> None:
        """Put the lines in the order of ``places``, after all lines that ``places`` lacks."""
        order = {self.place(place): k for k, place in enumerate(places)}
        self.lines = dict(sorted(self.lines.items(), key=lambda item: order.get(item[0], -1)))
        if self.lines:
            write_csv(self.path, list(self.lines.values()))


REFERENCE = "spcacw"
Cell = dict[str, Any]
"""A line of table1-cells.csv; accuracies in percent, None for no value. ``seconds`` is the mean
over the runs, next to whatever else the machine did."""
Overview = list[tuple[str, list[Cell | None]]]
"""Rows of a table: the title, and a cell or None for each column."""


def paired(a: Mapping[int, float], b: Mapping[int, float]) -> float | None:
    """Return the p of the paired test over the seeds that both rows have."""
    both = sorted(a.keys() & b.keys())
    return paired_p([a[seed] for seed in both], [b[seed] for seed in both])


def cells_of(found: Found, column: Column, rows: Sequence[Row]) -> list[Cell]:
    """Return the cells of a column that have a finished run, in the order of ``rows``."""
    of = {row.name: found[column.name, row.name, False] for row in rows
          if (column.name, row.name, False) in found}  # fmt: skip
    epochs = {row: honest_epoch(found, column.name, row) for row in of}
    judged = {row: curves.at(epochs[row]) for row, curves in of.items()}
    ours = judged.pop(REFERENCE, {})
    p = holm({row: paired(ours, theirs) for row, theirs in judged.items()})
    best = {row: curves.best() for row, curves in of.items()}
    marked = top({row: score.mean for row, score in best.items()})
    titles = {row.name: row.title for row in rows}
    cells = []
    for row, curves in of.items():
        paper, epoch, epochs_made = column.paper.get(row), epochs[row], curves.accuracy.shape[1]
        honest = score_at(curves.accuracy, epoch) if epoch else None
        mean, std = paper or (None, None)
        cells.append({
            "column": column.name, "row": row, "title": titles[row],
            "seeds": len(curves.seeds), "epochs": epochs_made,
            **scored("best", best[row]), **scored("last", score_at(curves.accuracy, epochs_made)),
            **scored("honest", honest), "paper_mean": mean, "paper_std": std,
            "standard_errors": difference(best[row], paper) if paper else None,
            "p_holm": p.get(row), "top": row in marked,
            "seconds": float(curves.seconds[:, -1].mean()),
        })  # fmt: skip
    return cells


def scored(rule: str, score: Score | None) -> Cell:
    """Return a cell's fields for the score by a rule; None for a rule that does not apply."""
    parts = (score.epoch, score.mean, score.std) if score else (None, None, None)
    return dict(zip((f"{rule}_epoch", f"{rule}_mean", f"{rule}_std"), parts, strict=True))


def six_digits(cell: Cell) -> Cell:
    """Return a cell's line of CSV."""
    return {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in cell.items()}
