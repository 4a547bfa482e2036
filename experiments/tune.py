"""Fair tuning: the same number of candidates for every method, chosen on held-out training data.

    spcacw tune --setting mnist-relabel --data-dir DIR --output experiments/tuned
    spcacw tune --setting experiments/conf/narrow/cifar100-10-narrow.toml --data-dir DIR …

Every candidate of ``experiments/grids.toml`` trains in process without a fifth of the target's
training data (the key ``holdout``) and is scored there; test data are never looked at (READING.md
21). All trials go to ``<setting>.csv`` as they end, so that an interrupted tuning goes on where it
stopped, and each method's best candidate to ``<setting>.toml``; of trials of several lengths the
longest count. A column of Table 1, by the path of its file, has its own keys, and step sizes around
its own; a row of Table 1 that has a grid by its own name is tuned by itself.
"""

from __future__ import annotations

import json
import math
import statistics
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import tomli_w
from rich.console import Console

from spcacw_flwr.config.config import flattened
from spcacw_flwr.config.declare import SpcacwError, did_you_mean
from spcacw_flwr.config.registry import METHODS, method_class

from .conf import HOLDOUT, Job, Keys, columns, rows
from .results import Table
from .runs import FINISHED, Run
from .sweep import Where

GRIDS = Path(__file__).parent / "grids.toml"
PLACE = ("setting", "method", "keys", "seed", "epochs")
COLUMNS = (*PLACE, "held_out_accuracy", "seconds")
LAST = 5
"""The score is the mean held-out accuracy after the last epochs: of one epoch it would be luck."""
MIDDLE = 0.05
"""The middle of every grid's step sizes."""


def grids(eta: float = MIDDLE, own: Iterable[str] = ()) -> dict[str, list[dict[str, Any]]]:
    """Return the candidates of each method, tables of run-config keys, with η around ``eta``.

    A method of one's ``own``, by its import path, brings its :attr:`Method.grid`.
    """
    tables = tomllib.loads(GRIDS.read_text())["methods"]
    tables |= {name: tables["local"] | method_class(name).grid for name in own if ":" in name}
    found = {}
    for method, table in tables.items():
        axes = flattened(table)
        axes["eta"] = [round(step * eta / MIDDLE, 9) for step in axes["eta"]]
        found[method] = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    return found


def trials(
    setting: str, methods: Iterable[str], seeds: int, epochs: int,
    candidates: Mapping[str, list[dict[str, Any]]], of_setting: Keys,
) -> Iterator[Job]:  # fmt: skip
    """Yield the run of every candidate on a setting, or on a column by its keys."""
    for method, seed in product(methods, range(seeds)):
        if method not in candidates:
            hint = did_you_mean(method, candidates)
            raise SpcacwError(f"There is no grid for method {method!r}{hint} in {GRIDS}: add one.")
        named = method in METHODS or ":" in method
        of_row = {"method": method} if named else rows([method])[0].keys
        for candidate in candidates[method]:
            keys = {
                **of_setting, **candidate, **of_row, "seed": seed, "epochs": epochs,
                "holdout": HOLDOUT, "engine": "in-process", "compare-alone": False,
            }  # fmt: skip
            text = json.dumps(candidate)
            place = dict(zip(PLACE, (setting, method, text, seed, epochs), strict=True))
            yield Job(setting, method, keys, text, place)


def score(_: Job, run: Run) -> dict[str, Any] | None:
    """Return the figures of a trial: NaN where the method refused its keys, or diverged."""
    if run.state != FINISHED:
        return None if run.killed else {"held_out_accuracy": math.nan, "seconds": math.nan}
    lines = (run.directory / "metrics.jsonl").read_text().splitlines()
    last = [json.loads(line) for line in lines[-LAST:]]
    accuracy = statistics.fmean(line["accuracy"] for line in last)
    return {"held_out_accuracy": round(accuracy, 3), "seconds": last[-1]["seconds"]}


def best(
    table: pd.DataFrame, candidates: Mapping[str, list[dict[str, Any]]]
) -> dict[str, dict[str, Any]]:
    """Return each method's best candidate by mean score over seeds; the first of equals.

    Of a method's trials only those of the most epochs count.
    """
    scored = table.dropna(subset="held_out_accuracy")
    longest = scored["epochs"] == scored.groupby("method")["epochs"].transform("max")
    means = scored[longest].groupby(["method", "keys"])["held_out_accuracy"].mean()
    choice = {}
    for method in means.index.unique(0):
        of = means[method]
        order = [keys for keys in map(json.dumps, candidates[method]) if keys in of]
        choice[method] = json.loads(max(order, key=of.get))
    return choice


def tune(
    setting: str, methods: list[str], seeds: int, epochs: int, data_dir: str, output: Path,
    workers: int = 0,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Tune methods (none: all) on a setting, or on a column's file; write and return the choices.

    SpcacwError if there is no such file, setting or method, no grid for it, or no data.
    """
    of_setting: Keys = {"setting": setting}
    if setting.endswith(".toml"):
        (column,) = columns([setting])
        setting, of_setting = column.name, column.keys
    candidates = grids(of_setting.get("eta", MIDDLE), methods)
    of_setting = {**of_setting, "data-dir": data_dir}
    jobs = list(trials(setting, methods or list(candidates), seeds, epochs, candidates, of_setting))
    table = Table(output / f"{setting}.csv", COLUMNS, PLACE)
    failed = Where(output, workers=workers).fill(table, jobs, score, Console())
    if not table.lines:
        raise SpcacwError(failed[0])
    choice = best(pd.read_csv(table.path), candidates)
    order = [method for method in candidates if method in choice]
    (output / f"{setting}.toml").write_text(tomli_w.dumps({m: choice[m] for m in order}))
    return choice
