"""Table 1, all of it: run what is missing, then write tables and figures of what there is.

    spcacw table1 --data-dir DIR                  # six columns; the larger two pairs want a GPU
    spcacw table1 --data-dir DIR --columns mnist-rotate,mnist-relabel
    spcacw table1 --report-only

``<output>/runs`` has the runs; beside it are ``table1.csv``, ``table1-cells.csv``, ``table1.md``,
``.tex``, ``.png`` and ``figures/``.

With ``--targets`` each silo is the target in turn: does a method help all who might use it, or
only client 0? A silo's score is its mean accuracy over seeds after the last epoch: to choose the
epoch on test data, for each silo by itself, would flatter M times. ``silos.csv`` has a line per
run, ``silos.md`` for each row the mean over silos, the worst decile (mean of the lowest tenth of
silos, one at least) and the share of silos with more than their own Local.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.silos.setup import setting_of

from . import figures, render
from .conf import Column, Job, Keys, Row, make_jobs
from .results import (
    RUN_COLUMNS,
    Results,
    column_cells,
    failures,
    grouped,
    write_cells,
    write_csv,
)
from .runs import Run
from .scores import over_silos


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
    cells = [c for column in columns for c in column_cells(results, column, rows)]
    if not cells:
        raise SpcacwError(f"No run that is scored on test data is finished in {output}.")
    files = {end: output / f"{name}{end}" for end in (".csv", "-cells.csv", ".md", ".tex", ".png")}
    write_csv(files[".csv"], RUN_COLUMNS, results.lines())
    write_cells(files["-cells.csv"], cells)
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


ALONE = "local"
SILO_COLUMNS = ("column", "method", "seed", "target", "epochs", "best_accuracy", "last_accuracy",
               "seconds")  # fmt: skip


def targets_of(column: Column, more: Keys, wanted: str) -> list[int]:
    """Return the silos that ``wanted`` names: ``all``, or numbers with commas."""
    if wanted != "all":
        return [int(number) for number in wanted.split(",")]
    return list(range(setting_of(Config.from_flat({**column.keys, **more})).num_silos))


def silo_jobs(
    columns: Sequence[Column], rows: Sequence[Row], seeds: Sequence[int], more: Keys, wanted: str,
    tuned: bool,
) -> list[Job]:  # fmt: skip
    """Return the runs of each row with each wanted silo as target."""
    return [
        job for seed in seeds for column in columns for target in targets_of(column, more, wanted)
        for job in make_jobs([column], rows, [seed], {**more, "target": target}, tuned=tuned,
                             note=f"target {target}")
    ]  # fmt: skip


def report_silos(
    jobs: Sequence[Job], runs: Sequence[Run], columns: Sequence[Column], rows: Sequence[Row],
    output: Path,
) -> list[Path]:  # fmt: skip
    """Write silos.csv and silos.md of what is finished; return them."""
    found = grouped(jobs, runs, lambda _, config: (config.run.target,))
    lines: list[dict[str, Any]] = []
    for (column, row, target), c in found.items():
        for k, seed in enumerate(c.seeds):
            at = c.accuracy[k]
            values = (column, row, seed, target, len(at), round(at.max(), 3), round(at[-1], 3),
                      c.seconds[k, -1])  # fmt: skip
            lines.append(dict(zip(SILO_COLUMNS, values, strict=True)))
    write_csv(output / "silos.csv", SILO_COLUMNS, lines)
    last = {where: float(c.accuracy[:, -1].mean()) for where, c in found.items()}
    text = ["Accuracy in percent at the last epoch, mean over seeds, each silo as the target."]
    for column in columns:
        text += ["", f"### {column.title}", "",
                 render.line(["", "silos", "mean", "worst decile", "beat their own Local"]),
                 render.line(["---", "--:", "--:", "--:", "--:"])]  # fmt: skip
        for row in rows:
            mine = {t: a for (c, r, t), a in last.items() if (c, r) == (column.name, row.name)}
            alone = {t: last.get((column.name, ALONE, t)) for t in mine}
            both = [(mine[t], a) for t, a in alone.items() if a is not None]
            if both:
                mean, worst, share = over_silos(*zip(*both, strict=True))
                beats = f"{100 * share:.0f} %" if row.name != ALONE else render.NONE
                text.append(
                    render.line([row.title, str(len(both)), f"{mean:.2f}", f"{worst:.2f}", beats])
                )
    (output / "silos.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    return [output / "silos.csv", output / "silos.md"]
