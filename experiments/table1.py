"""Table 1, all of it: run what is missing, then write tables and figures of what there is.

    spcacw table1 --data-dir DIR                  # six columns; the larger two pairs want a GPU
    spcacw table1 --data-dir DIR --columns mnist-rotate,mnist-relabel
    spcacw table1 --report-only

``<output>/runs`` has the runs; beside it are ``table1.csv`` (``results``),
``table1-cells.csv`` (``cells``), ``table1.md``, ``.tex``, ``.png`` and ``figures/``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spcacw_flwr.config.declare import SpcacwError

from . import cells as cells_
from . import figures, render
from .conf import Column, Job, Row
from .results import RUN_COLUMNS, Results, failures, write_csv
from .runs import Run


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
