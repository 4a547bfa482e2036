"""What the options of SP-CACW do: the studies of ``conf/options.toml``, as one table.

    -m spcacw_flwr.experiments options experiments/results/options.csv --data-dir DIR

The CSV has a line per study × column × keys × seed; the Markdown beside it is made from it alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from spcacw_flwr.silos.setup import setting_of

from . import conf
from .conf import CONF, Column, Job, Keys, Row, make_jobs, read
from .render import line
from .runs import FINISHED, Run

DIGITS = Column("digits-relabel", "digits relabel", {"setting": "digits-relabel"}, {})
SPCACW = Row("spcacw", "SP-CACW", {"method": "spcacw"})
COLUMNS = (
    "study", "column", "keys", "seed", "best_accuracy", "last_accuracy", "alpha_target",
    "alpha_cluster", "floats", "regret", "regret_bound", "seconds",
)  # fmt: skip
"""``alpha_target`` is the target's own final weight, ``alpha_cluster`` that of the peers whose
distribution is the target's (on the rotation: within ``oracle-radius``)."""
FIGURES = {
    "best_accuracy": "best %", "last_accuracy": "last %", "alpha_target": "α of the target",
    "alpha_cluster": "α of its cluster", "floats": "floats", "regret": "regret R_T",
    "regret_bound": "bound",
}  # fmt: skip
LARGE = ("floats", "regret_bound")


def option_jobs(
    seeds: Sequence[int], more: Keys, only: Sequence[str] = (), path: Path = CONF / "options.toml"
) -> list[Job]:
    """Return the runs of the studies; SpcacwError for an unknown one."""
    tables = read(path)
    jobs = []
    for study in conf.chosen(only, tables, "study"):
        axes = {name: values for name, values in tables[study].items() if name != "title"}
        names = axes.pop("columns")
        known = {DIGITS.name: DIGITS, **{column.name: column for column in conf.columns()}}
        for values in product(*axes.values()):
            keys = dict(zip(axes, values, strict=True))
            note = json.dumps({"study": study, "keys": keys})
            of = [known[name] for name in names]
            row = Row(SPCACW.name, SPCACW.title, {**SPCACW.keys, **keys})
            jobs += make_jobs(of, [row], seeds, more, note=note)
    return jobs


def row_of(job: Job, run: Run) -> dict[str, Any]:
    """Return the line of a finished run."""
    assert run.config is not None
    summary = json.loads((run.directory / "summary.json").read_text())
    last = json.loads((run.directory / "metrics.jsonl").read_text().splitlines()[-1])
    note, alpha = json.loads(job.note), summary["alpha"]
    target = run.config.run.target
    cluster = set(setting_of(run.config).oracle(target)) - {target}
    return {
        "study": note["study"], "column": job.column, "keys": json.dumps(note["keys"]),
        "seed": job.seed, "best_accuracy": round(summary["best_accuracy"], 3),
        "last_accuracy": round(summary["last_accuracy"], 3),
        "alpha_target": round(alpha[target], 4),
        "alpha_cluster": round(sum(alpha[silo] for silo in cluster), 4),
        "floats": summary["floats"], "regret": last.get("regret"),
        "regret_bound": last.get("regret_bound"), "seconds": summary["seconds"],
    }  # fmt: skip


def table(jobs: Sequence[Job], runs: Sequence[Run]) -> pd.DataFrame:
    """Return the lines of the finished runs."""
    pairs = zip(jobs, runs, strict=True)
    lines = [row_of(job, run) for job, run in pairs if run.state == FINISHED]
    return pd.DataFrame(lines, columns=list(COLUMNS))


def render(lines: pd.DataFrame, titles: Keys) -> str:
    """Return the page: a table a study and column, means over seeds (± sample deviation)."""
    parts = []
    for study, rows in lines.groupby("study", sort=False):
        parts += [f"## {titles[study]}", ""]
        for column, of in rows.groupby("column", sort=False):
            names = list(json.loads(of["keys"].iloc[0]))
            parts += [f"`{column}`, seeds {_seeds(of)}", "", line([*names, *FIGURES.values()])]
            parts.append(line(["---"] * len(names) + ["--:"] * len(FIGURES)))
            for keys, cell in of.groupby("keys", sort=False):
                values = (f"`{json.dumps(value)}`" for value in json.loads(keys).values())
                parts.append(line([*values, *(_figure(cell[name]) for name in FIGURES)]))
            parts.append("")
    return "\n".join(parts)


def _seeds(rows: pd.DataFrame) -> str:
    return ", ".join(str(seed) for seed in sorted(set(rows.seed)))


def _figure(values: pd.Series) -> str:
    """Return a mean, and for accuracies the sample standard deviation."""
    mean = values.mean()
    if values.name in LARGE:
        return f"{mean:.2g}"
    if str(values.name).startswith("alpha"):
        return f"{mean:.3f}"
    if values.name == "regret":
        return f"{mean:.2f}"
    return f"{mean:.2f} ± {values.std():.2f}" if len(values) > 1 else f"{mean:.2f}"


def write(lines: pd.DataFrame, csv: Path) -> list[Path]:
    """Write the table, which keeps its other studies, and the Markdown beside it."""
    titles = {name: study["title"] for name, study in read(CONF / "options.toml").items()}
    if csv.exists():
        before = pd.read_csv(csv)
        both = pd.concat([before[~before.study.isin(lines.study)], lines])
        lines = both.sort_values("study", key=lambda names: names.map(list(titles).index),
                                 kind="stable")  # fmt: skip
    csv.parent.mkdir(parents=True, exist_ok=True)
    lines.to_csv(csv, index=False, lineterminator="\n")
    page = csv.with_suffix(".md")
    page.write_text(render(lines, titles), encoding="utf-8")
    return [csv, page]
