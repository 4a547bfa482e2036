"""Every silo as the target: does a method help all who might use it, or only client 0?

The same runs with each silo in turn as the target, for each row and, as the measure, for Local.
A silo's score is its mean accuracy over seeds after the last epoch: to choose the epoch on test
data, for each silo by itself, would flatter M times. ``silos.csv`` has a line per run, ``silos.md``
for each row the mean over silos, the worst decile (mean of the lowest tenth of silos, one at least)
and the share of silos with more than their own Local.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spcacw_flwr.config.config import Config
from spcacw_flwr.silos.setup import setting_of

from .conf import Column, Job, Keys, Row, make_jobs
from .render import NONE, line
from .results import grouped, write_csv
from .runs import Run
from .scores import over_silos

ALONE = "local"
RUN_COLUMNS = ("column", "method", "seed", "target", "epochs", "best_accuracy", "last_accuracy",
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


def report(
    jobs: Sequence[Job], runs: Sequence[Run], columns: Sequence[Column], rows: Sequence[Row],
    output: Path,
) -> list[Path]:  # fmt: skip
    """Write silos.csv and silos.md of what is finished; return them."""
    found = grouped(jobs, runs, "target")
    lines: list[dict[str, Any]] = []
    for (column, row, target), c in found.items():
        for k, seed in enumerate(c.seeds):
            at = c.accuracy[k]
            values = (column, row, seed, target, len(at), round(at.max(), 3), round(at[-1], 3),
                      c.seconds[k, -1])  # fmt: skip
            lines.append(dict(zip(RUN_COLUMNS, values, strict=True)))
    write_csv(output / "silos.csv", RUN_COLUMNS, lines)
    last = {where: float(c.accuracy[:, -1].mean()) for where, c in found.items()}
    text = ["Accuracy in percent at the last epoch, mean over seeds, each silo as the target."]
    for column in columns:
        text += ["", f"### {column.title}", "",
                 line(["", "silos", "mean", "worst decile", "beat their own Local"]),
                 line(["---", "--:", "--:", "--:", "--:"])]  # fmt: skip
        for row in rows:
            mine = {t: a for (c, r, t), a in last.items() if (c, r) == (column.name, row.name)}
            alone = {t: last.get((column.name, ALONE, t)) for t in mine}
            both = [(mine[t], a) for t, a in alone.items() if a is not None]
            if both:
                mean, worst, share = over_silos(*zip(*both, strict=True))
                beats = f"{100 * share:.0f} %" if row.name != ALONE else NONE
                text.append(line([row.title, str(len(both)), f"{mean:.2f}", f"{worst:.2f}", beats]))
    (output / "silos.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    return [output / "silos.csv", output / "silos.md"]
