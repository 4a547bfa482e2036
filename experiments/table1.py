"""Table 1, all of it: run what is missing, then write tables and figures of what there is.

    spcacw table1 --data-dir DIR                  # six columns; the larger two pairs want a GPU
    spcacw table1 --data-dir DIR --columns mnist-rotate,mnist-relabel
    spcacw table1 --report-only

``<output>/runs`` has the runs; beside it are ``table1.csv`` (``results``),
``table1-cells.csv`` (``cells``), ``table1.md``, ``.tex``, ``.png`` and ``figures/``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from spcacw_flwr.config.declare import SpcacwError

from . import cells as cells_
from . import figures, render
from .conf import Column, Job, Row
from .display import Display
from .results import RUN_COLUMNS, Results, failures, write_csv
from .runs import Run, plan
from .sweep import slots, sweep


@dataclass(frozen=True)
class Where:
    """Where a sweep works and leaves its results."""

    output: Path
    devices: tuple[str, ...] = ("cpu",)
    workers: int = 0
    """Processes; 0 is one for each device, or each core of the CPU."""
    report_only: bool = False
    seconds: float = math.inf
    """After which runs that are not finished are left for another time."""

    def run(self, jobs: Sequence[Job], console: Console) -> list[Run]:
        """Make the runs of jobs that are not finished yet; return the run of each job.

        Raises
        ------
        SpcacwError
            If a device is not there, another sweep is at work, or no run at all is finished.
        """
        runs = plan(jobs, self.output / "runs")
        if not self.report_only:
            places = slots(self.devices, self.workers)
            display = Display(console, runs)
            with display.showing():
                sweep(runs, places, self.output / "runs", display, self.seconds)
        if not any(run.done for run in runs):
            raise SpcacwError(f"None of the {len(runs)} runs in {self.output} is finished.")
        return runs


def report(
    jobs: Sequence[Job], runs: Sequence[Run], columns: Sequence[Column], rows: Sequence[Row],
    output: Path, name: str = "table1",
) -> list[Path]:  # fmt: skip
    """Write all tables and figures of the runs that are finished; return the files.

    Raises
    ------
    SpcacwError
        If there is nothing but held-out twins.
    """
    results = Results.of(jobs, runs)
    cells = [c for column in columns for c in cells_.column_cells(results, column, rows)]
    if not cells:
        raise SpcacwError(f"No run that is scored on test data is finished in {output}.")
    files = {end: output / f"{name}{end}" for end in (".csv", "-cells.csv", ".md", ".tex", ".png")}
    write_csv(files[".csv"], RUN_COLUMNS, results.lines())
    cells_.write(files["-cells.csv"], cells)
    there = {c.column for c in cells}
    titles = {column.name: column.title for column in columns if column.name in there}
    order = [row.name for row in rows]
    text = render.markdown(cells, titles, order, failures(jobs, runs))
    files[".md"].write_text(text, encoding="utf-8")
    files[".tex"].write_text(render.latex(cells, titles, order), encoding="utf-8")
    figures.table(files[".png"], cells, titles, order)
    made = list(files.values())
    folder = output / ("figures" if name == "table1" else f"figures-{name.partition('-')[2]}")
    folder.mkdir(exist_ok=True)
    for column, title in titles.items():
        of = {row.name: results.tests[column, row.name] for row in rows
              if (column, row.name) in results.tests}  # fmt: skip
        made += figures.draw_all(folder, column, title, of, {r.name: r.title for r in rows})
    return made
