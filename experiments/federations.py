"""Selfish learning on federations: what does a method give a target, and when does it harm?

    spcacw federations --data-dir DIR                            # all of conf/federations.toml
    spcacw federations --data-dir DIR --setting heart --seeds 10,11 --methods local,spcacw

Every silo is the target in turn, with few data and with all, over several splits. A gain is the
metric after the last epoch minus Local's on the same split: nothing is chosen on test data. A pair
is a split and a silo. Pairs with fewer than :data:`FEWEST` test cases are left out.
``federations.csv`` has a line per run; ``.md`` and ``.png`` are made from it.

The question is whether joining helps a silo like these. Splits of one silo share its rows, so they
say little about other silos: the interval of a mean gain is clustered by target (the formula is in
:func:`~.scores.clustered`). Of a single target it is over splits, and holds for its rows alone.
"""

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from spcacw_flwr.config.config import Config, flattened, read_toml
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.registry import METHODS, setting_class
from spcacw_flwr.engine import plots
from spcacw_flwr.engine.directory import write_atomically
from spcacw_flwr.engine.plots import new_figure
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.silos.evaluation import CASES
from spcacw_flwr.silos.metrics import METRICS, Metric
from spcacw_flwr.silos.setting import data_of, prepare
from spcacw_flwr.silos.setup import checked_setting

from .conf import CONF, Job, Keys, Row, numbers, refuse_told, rows
from .pages import NONE, table
from .results import Table
from .runs import own_code
from .scores import clustered, unharmed, worst_decile
from .sweep import Where, complain

FEWEST, HARMLESS = 10, 0.9
PLACE = ("setting", "target", "seed", "size", "method", "keys")
NAMES = (*PLACE, "metric", "value", "test_cases", "alpha_target")
LOCAL, TRIAL, TUNED = "local", "-trial", "-tuned"
CODE = "code"
"""The entry of a line's keys that names the version of the user's own code."""
COMMON = {"engine": "in-process", "compare-alone": False, "threads": 1}


def row(name: str) -> Row:
    """Return a row of Table 1 by its name, or any other method."""
    if name.endswith(TUNED):
        plain = row(name.removesuffix(TUNED))
        return Row(name, f"{plain.title}, tuned", plain.keys)
    known = name in read_toml(CONF / "rows.toml") or ":" in name or name not in METHODS
    return rows([name])[0] if known else Row(name, name, {"method": name})


def jobs_of(
    name: str, plan: Mapping[str, Any], methods: Sequence[str], more: Keys,
    trials: Mapping[str, Sequence[Any]] | None = None,
) -> list[Job]:  # fmt: skip
    """Return the runs on a setting.

    ``trials`` has lists of values by key, and the ``methods`` that try every combination of them.
    """
    cls, found = setting_class(name), []
    natural = "target_samples" in getattr(cls.Keys, "__dataclass_fields__", {})
    size_key = f"{cls.name}.target-samples" if natural else "samples-per-silo"
    refuse_told(more, (*PLACE, size_key))
    seeds, chosen = numbers(plan["seeds"]), [row(method) for method in methods]
    if trials and "tuning" in plan:
        axes = {key: values for key, values in trials.items() if key != "methods"}
        tries = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
        chosen += [
            Row(one.name + TRIAL, "", {**one.keys, **keys})
            for one in map(row, trials["methods"]) for keys in tries
        ]  # fmt: skip
    keys = {**COMMON, "setting": name, **flattened(plan.get("set", {})), **more}
    unnamed = {*COMMON, *PLACE, size_key, "data-dir"}
    count = checked_setting(Config.from_flat(keys)).num_silos
    for target in range(0, count, plan.get("every", 1)):
        setting = checked_setting(Config.from_flat({**keys, "target": target, "seed": seeds[0]}))
        prepare(setting)
        test, train = (len(data_of(setting, part, target).y) for part in ("test", "train"))
        known = setting.oracle(target)
        for size, one in product(plan["sizes"], chosen):
            few = (train + test - size if natural and size else test) < FEWEST
            if few or (one.keys["method"].startswith("oracle") and not known):
                continue
            of = {**keys, "target": target, size_key: size, **one.keys}
            own = {k: v for k, v in of.items() if k not in unnamed}
            if code := own_code(of.values()):
                own[CODE] = code  # a method that was edited since then has no lines yet
            said = {"setting": name, "target": target, "size": size, "method": one.name,
                    "keys": json.dumps(own, sort_keys=True)}  # fmt: skip
            splits = numbers(plan["tuning"]) if one.name.endswith(TRIAL) else seeds
            found += [Job(name, one.name, {**of, "seed": seed}, "", {**said, "seed": seed})
                      for seed in splits]  # fmt: skip
    return found


def tuned(jobs: Sequence[Job], kept: Table) -> list[Job]:
    """Return the runs of methods with the keys that were best in their trials, by setting and size.

    "Best" is the best mean over splits and silos. If a trial is missing, no run is returned for it.
    """
    values: dict[tuple[str, int, str], dict[str, list[float]]] = {}
    for job in jobs:
        if job.row.endswith(TRIAL):
            line = kept.lines.get(kept.place(job.place))
            value = METRICS[line["metric"]].sign * float(line["value"]) if line else math.nan
            cell = job.column, job.place["size"], job.row.removesuffix(TRIAL)
            values.setdefault(cell, {}).setdefault(job.place["keys"], []).append(value)
    found = []
    for job in jobs:
        of = values.get((job.column, job.place["size"], job.row), {})
        means = {keys: float(np.mean(value)) for keys, value in of.items()}
        if means and not any(math.isnan(mean) for mean in means.values()):
            best = max(means, key=means.__getitem__)
            own = {key: value for key, value in json.loads(best).items() if key != CODE}
            name, keys = job.row + TUNED, {**job.keys, **own}
            place = {**job.place, "method": name, "keys": best}
            found.append(Job(job.column, name, keys, "", place))
    return found


def measure(keys: Keys) -> list[dict[str, Any]]:
    """Run, and return the figures of its line of CSV."""
    result = simulate(Config.from_flat(keys))
    metric, last = result.config.run.metric, result.epochs[-1]
    alpha = None if result.alpha is None else round(float(result.alpha[keys["target"]]), 5)
    return [{"metric": metric, "value": round(last[metric], 8), "test_cases": int(last[CASES]),
             "alpha_target": alpha}]  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """The results of a method for targets of one size; ``size`` None is all sizes together."""

    setting: str
    size: int | None
    method: str
    metric: Metric
    targets: int
    pairs: int
    value: float
    gain: float
    half: float
    """Half of the 95 % interval of the gain, clustered by target; by split, if there is one."""
    ipr: float
    """The share of runs that do no harm (:func:`~.scores.unharmed`)."""
    worst: float
    alpha: float | None


def cells_of(lines: Sequence[Mapping[str, str]]) -> list[Cell]:
    """Return the cells of a CSV, in its order; runs without a matching Local do not count."""
    runs, where = pd.DataFrame(lines, columns=NAMES), ["setting", "size", "seed", "target"]
    runs = runs.astype({"value": float, "test_cases": int})
    runs["alpha"] = pd.to_numeric(runs["alpha_target"])
    alone = runs.loc[runs["method"] == LOCAL, [*where, "value"]].rename(columns={"value": "alone"})
    rivals = runs[(runs["method"] != LOCAL) & ~runs["method"].str.endswith(TRIAL)]
    rivals, found = rivals.merge(alone, on=where), []
    for of in (rivals, rivals.assign(size="")):
        for (setting, size, method), its in of.groupby(["setting", "size", "method"], sort=False):
            metric, targets = METRICS[its["metric"].iloc[0]], its["target"].nunique()
            gains = metric.sign * (its["value"] - its["alone"])
            alpha = float(its["alpha"].mean())
            found.append(Cell(
                setting, int(size) if size else None, method, metric, targets,
                len(its[["target", "seed"]].drop_duplicates()), float(its["value"].mean()),
                *clustered(gains, its["target" if targets > 1 else "seed"]),
                unharmed(gains, its["test_cases"], 100 if metric.percent else 1),
                worst_decile(gains), None if math.isnan(alpha) else alpha,
            ))  # fmt: skip
    return found


def size_text(size: int | None) -> str:
    """Return a target's size in words."""
    return "all sizes" if size is None else str(size or "all data")


def markdown(cells: Sequence[Cell]) -> str:
    """Return a Markdown table for each setting."""
    parts = []
    for setting in dict.fromkeys(cell.setting for cell in cells):
        its = [cell for cell in cells if cell.setting == setting]
        metric = its[0].metric
        unit, form = (" (points)", ".1f") if metric.percent else ("", ".3f")
        shown = [[
            size_text(cell.size), row(cell.method).title,
            str(cell.targets), str(cell.pairs), f"{cell.value:{form}}",
            f"{cell.gain:+{form}}" + (f" ± {cell.half:{form}}" if cell.pairs > 1 else ""),
            f"{cell.ipr:.2f}", f"{cell.worst:+{form}}",
            NONE if cell.alpha is None else f"{cell.alpha:.2f}",
        ] for cell in its]  # fmt: skip
        heads = ["rows of the target", "method", "targets", "pairs", metric.label,
                 f"gain over Local{unit}", "IPR", "worst decile", "α₀"]  # fmt: skip
        parts += [f"### {setting}", "", *table(heads, shown, "llr"), ""]
    return "\n".join(parts)


def draw(cells: Sequence[Cell], path: Path) -> None:
    """Draw gains with their intervals: a panel per setting, a row per method, a colour per size.

    A loss much larger than all gains is drawn as an arrow at the edge.
    """
    cells = [cell for cell in cells if cell.size is not None]
    methods = list(dict.fromkeys(cell.method for cell in cells))
    settings = list(dict.fromkeys(cell.setting for cell in cells))
    figure = new_figure(1.6 + 3.6 * len(settings), 2.0 + 0.5 * len(methods), dpi=120)
    panels = figure.subplots(1, len(settings), sharey=True, squeeze=False)[0]
    for axes, setting in zip(panels, settings, strict=True):
        its = [cell for cell in cells if cell.setting == setting]
        sizes = [*dict.fromkeys(cell.size for cell in its)]
        unit = 1.0 if its[0].metric.percent else 0.01
        ends = [cell.gain + float(np.nan_to_num(cell.half)) for cell in its if cell.gain > 0]
        high = 1.1 * max([unit, *ends])
        low = min(max(1.5 * min(cell.gain for cell in its), -1.5 * high), -0.3 * high)
        for cell in its:
            place = sizes.index(cell.size)
            y = methods.index(cell.method) + 0.24 * (place - (len(sizes) - 1) / 2)
            fill = {"color": f"C{place}", "mfc": f"C{place}" if cell.ipr >= HARMLESS else "white"}
            if cell.gain < low:
                axes.plot(0.97 * low, y, "<", ms=5, **fill)
                axes.text(0.93 * low, y, f"{cell.gain:+.3g}", va="center", fontsize=7)
            else:
                axes.errorbar(
                    cell.gain, y, xerr=np.nan_to_num(cell.half), fmt="o", ms=5, lw=1.5, **fill
                )
        for place, size in enumerate(sizes):
            axes.plot([], [], "o", color=f"C{place}", label=size_text(size))
        axes.axvline(0, color="0.2", lw=1)
        axes.axvspan(low, 0, color="crimson", alpha=0.06, lw=0)
        axes.set_xlim(low, high)
        points = "points of " if its[0].metric.percent else ""
        axes.set_xlabel(f"← harm   gain over Local, {points}{its[0].metric.label}   help →", size=8)
        axes.set_title(setting)
        axes.grid(axis="x", alpha=0.3)
        axes.legend(title="rows of the target", fontsize=8, title_fontsize=8, ncols=len(sizes),
                    loc="upper center", bbox_to_anchor=(0.5, -0.7 / len(methods)))  # fmt: skip
    panels[0].set_yticks(range(len(methods)), [row(name).title for name in methods])
    panels[0].set_ylim(len(methods) - 0.5, -0.5)
    figure.suptitle(f"Full marks: at least {100 * HARMLESS:.0f} % of the runs lose no more than .5 "
                    "points (.005), or one test case, to Local. Lines: 95 % intervals over targets "
                    "(over splits, if there is one).", fontsize=9)  # fmt: skip
    plots.save(figure, path, bbox_inches="tight")


def federations(jobs: Sequence[Job], where: Where, console: Console) -> list[Path]:
    """Make the runs that ``federations.csv`` lacks, a line each; then report all that it has."""
    where.output.mkdir(parents=True, exist_ok=True)
    kept = Table(where.output / "federations.csv", NAMES, PLACE)
    ends, seed = time.monotonic() + where.seconds, attrgetter("seed")
    failed = where.add(kept, measure, sorted(jobs, key=seed), console)
    if more := tuned(jobs, kept):
        jobs, left = [*jobs, *more], replace(where, seconds=ends - time.monotonic())
        failed += left.add(kept, measure, sorted(more, key=seed), console)
    kept.arrange(job.place for job in jobs)
    cells = cells_of([kept.lines[kept.place(job.place)] for job in jobs
                      if not kept.lacks(job.place)])  # fmt: skip
    if cells:
        page, picture = (kept.path.with_suffix(end) for end in (".md", ".png"))
        write_atomically(page, markdown(cells).encode())
        draw(cells, picture)
    complain(failed)
    if not cells:
        raise SpcacwError(f"{kept.path} has no method besides Local on one split: run one.")
    return [kept.path, page, picture]
