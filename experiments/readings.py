"""The paper's open points in numbers: calibration of a column, and the alternative readings.

*Calibration* (READING 8): the values that the paper does not give (samples per silo, input scale)
are chosen so that the row Local alone matches; everything else is then a prediction. Each
combination of ``conf/calibration.toml`` runs Local, and the study's CSV has its distance to the
paper's Local, in points and in standard errors, by the paper's own rule.

*Variants*: each set of keys in ``conf/variants.toml`` is another reading. Rows run with it and
without it on the same seeds. ``variants.csv`` has the mean difference of the best scores in points,
and the p of the paired t-test over seeds at the last epoch, by Holm over all variants of a column
and row.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console

from spcacw_flwr.config.config import flattened, read_toml
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.directory import write_atomically

from .conf import CONF, Column, Job, Keys, Row, chosen, columns, make_jobs, rows, seeds_of
from .pages import NONE, table
from .results import grouped, paired, read_csv, write_csv
from .runs import FINISHED, Run
from .scores import difference, holm, pair
from .sweep import Where

AS_IS = "as it is"
SIGNIFICANT = 0.05


def calibration_jobs(
    columns: Sequence[Column], local: Row, seeds: Sequence[int], more: Keys,
    path: Path = CONF / "calibration.toml",
) -> list[Job]:  # fmt: skip
    """Return Local's runs for every combination of the columns' lists."""
    grids = read_toml(path)
    jobs = []
    for column in columns:
        axes = flattened(grids.get(column.name, {}))
        for values in product(*axes.values()):
            keys = dict(zip(axes, values, strict=True))
            if keys:
                jobs += make_jobs([column], [local], seeds, {**more, **keys}, note=json.dumps(keys))
    return jobs


def variant_jobs(
    columns: Sequence[Column], rows: Sequence[Row], seeds: Sequence[int], more: Keys,
    names: Sequence[str] = (), path: Path = CONF / "variants.toml",
) -> tuple[list[Job], dict[str, int]]:  # fmt: skip
    """Return the runs without and with each variant, and the number of each variant's reading."""
    tables = {AS_IS: {"reading": 0}, **read_toml(path)}
    wanted = {AS_IS, *chosen(names, list(tables)[1:], "variant")}
    jobs, readings = [], {}
    for name, listed in tables.items():
        keys = flattened(listed)
        readings[name] = keys.pop("reading")
        prefixes = tuple(keys.pop("columns", ("",)))
        of = [column for column in columns if column.name.startswith(prefixes)]
        if name in wanted:
            jobs += make_jobs(of, rows, seeds, {**more, **keys}, note=name)
    return jobs, readings


def complete(csv: Path, jobs: Sequence[Job]) -> bool:
    """Whether a table has a line for each cell of some runs, with at least as many seeds.

    SpcacwError if it is a table of something else.
    """
    lines = read_csv(csv) if csv.exists() else []
    if lines and "seeds" not in lines[0]:
        raise SpcacwError(f"{csv} is no table of variants: name another.")
    there = {
        (line["column"], line.get("method", "local"), line.get("variant") or line["keys"]):
        int(line["seeds"]) for line in lines
    }  # fmt: skip
    wanted = Counter((job.column, job.row, job.note) for job in jobs)
    return all(there.get(cell, 0) >= seeds for cell, seeds in wanted.items())


def study(
    name: str, listed: Mapping[str, Any], results: Path, where: Where, more: Keys, console: Console
) -> list[Path]:
    """Run a study of ``conf/studies.toml`` unless its table is complete; return the files written.

    A cell's p needs the runs of all its row's variants, so a table that lacks one is made anew,
    from finished runs and new ones. SpcacwError if a run failed; the table stays as it was.
    """
    of, which, seeds = columns(listed["columns"]), rows(listed["rows"]), seeds_of(listed["seeds"])
    numbers: dict[str, int] = {}
    if listed["kind"] == "calibration":
        jobs = calibration_jobs(of, which[0], seeds, more)
    else:
        jobs, numbers = variant_jobs(of, which, seeds, more, listed.get("only", ()))
    if complete(results / f"{name}.csv", jobs):
        return []
    if where.report_only:
        console.print(f"{name} lacks some of {len(jobs)} runs", highlight=False)
        return []
    runs = where.run(jobs, console)
    if failed := sum(run.state != FINISHED for run in runs):
        raise SpcacwError(f"{failed} runs of {name} failed: the same command tries them again.")
    if numbers:
        return moved(jobs, runs, numbers, results, name)
    return calibrated(jobs, runs, of, results, name)


def rounded(value: float | None, digits: int = 2) -> float | None:
    """Round a number that may be missing."""
    return None if value is None else round(value, digits)


def side_by_side(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table row for each variant: its effect in each column and row of Table 1.

    The first row has the scores. Others have the points by which scores move, bold where p < .05.
    """
    across = list(dict.fromkeys((one["column"], one["method"]) for one in lines))
    rows: dict[str, list[str]] = {}
    for one in sorted(lines, key=lambda one: one["reading"] or 0):
        name = one["variant"]
        row = rows.setdefault(name, [str(one["reading"] or NONE), name, *[NONE] * len(across)])
        by, p = one["moves_by"], one["p_holm"]
        moves = pair(one["mean"], one["std"]) if by is None else f"{by:+.2f}".replace("-", "−")
        significant = p is not None and p < SIGNIFICANT
        at = 2 + across.index((one["column"], one["method"]))
        row[at] = f"**{moves}**" if significant else moves
    heads = ["reading", "variant", *(f"{column}, {row}" for column, row in across)]
    return table(heads, rows.values(), "rlr")


def calibrated(
    jobs: Sequence[Job], runs: Sequence[Run], columns: Sequence[Column], output: Path, name: str
) -> list[Path]:
    """Write the CSV of a calibration; in each column the nearest to the paper's Local is first."""
    paper = {column.name: column.paper.get("local") for column in columns}
    lines: list[dict[str, Any]] = []
    for (column, _, keys), curves in grouped(jobs, runs, lambda job, _: (job.note,)).items():
        score, theirs = curves.best(), paper[column]
        mean, std = theirs or (None, None)
        lines.append({
            "column": column, "keys": keys, "seeds": score.seeds, "mean": round(score.mean, 2),
            "std": rounded(score.std), "epoch": score.epoch,
            "last": round(curves.accuracy[:, -1].mean(), 2), "paper_mean": mean, "paper_std": std,
            "points": None if mean is None else round(score.mean - mean, 2),
            "standard_errors": rounded(difference(score, theirs), 1) if theirs else None,
        })  # fmt: skip
    order = list(paper)
    lines.sort(key=lambda one: (order.index(one["column"]), abs(one["points"] or 0)))
    write_csv(path := output / f"{name}.csv", lines)
    return [path]


def moved(
    jobs: Sequence[Job], runs: Sequence[Run], readings: Mapping[str, int], output: Path, name: str
) -> list[Path]:
    """Write the CSV and Markdown of a study of variants."""
    found = grouped(jobs, runs, lambda job, _: (job.note,))
    lines: list[dict[str, Any]] = []
    for column, row in dict.fromkeys(where[:2] for where in found):
        of = {note: curves for (c, r, note), curves in found.items() if (c, r) == (column, row)}
        base = of.get(AS_IS)
        tests = {note: paired(curves.at(), base.at())
                 for note, curves in of.items() if base and note != AS_IS}  # fmt: skip
        p = holm(tests)
        for note, curves in of.items():
            score = curves.best()
            by = score.mean - base.best().mean if base and note in tests else None
            lines.append({
                "column": column, "method": row, "variant": note,
                "reading": readings[note] or None, "seeds": score.seeds,
                "mean": round(score.mean, 2), "std": rounded(score.std), "moves_by": rounded(by),
                "p_holm": rounded(p.get(note), 4),
            })  # fmt: skip
    csv, page = output / f"{name}.csv", output / f"{name}.md"
    write_csv(csv, lines)
    write_atomically(page, ("\n".join(side_by_side(lines)) + "\n").encode())
    return [csv, page]
