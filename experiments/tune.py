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

import csv
import json
import math
import multiprocessing
import os
import statistics
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import tomli_w
import torch
from rich.progress import track

from spcacw_flwr.config.config import Config, flattened
from spcacw_flwr.config.declare import SpcacwError, did_you_mean
from spcacw_flwr.config.registry import METHODS, method_class
from spcacw_flwr.engine.simulate import simulate

from .conf import columns, rows

GRIDS = Path(__file__).parent / "grids.toml"
COLUMNS = ("setting", "method", "keys", "seed", "epochs", "held_out_accuracy", "seconds")
"""The first five name a trial."""
HOLDOUT = 0.2
LAST = 5
"""The score is the mean held-out accuracy after the last epochs: of one epoch it would be luck."""
MIDDLE = 0.05
"""The middle of every grid's step sizes."""


@dataclass(frozen=True)
class Trial:
    """A candidate of a method on a setting with a seed."""

    setting: str
    method: str
    keys: str
    """The candidate's run-config keys, as JSON."""
    seed: int
    epochs: int
    of_column: Mapping[str, Any] = field(default_factory=dict)
    """The keys of the column that ``setting`` names, if it is none of the settings itself."""

    @property
    def name(self) -> dict[str, Any]:
        """What the table calls it."""
        return {column: vars(self)[column] for column in COLUMNS[:5]}

    def config(self, data_dir: str) -> Config:
        """Return the configuration of the trial's run."""
        of_setting = {"setting": self.setting, **self.of_column}
        known = self.method in METHODS
        of_row = {"method": self.method} if known else rows([self.method])[0].keys
        return Config.from_flat(of_setting | json.loads(self.keys) | of_row | {
            "seed": self.seed, "epochs": self.epochs, "data-dir": data_dir, "holdout": HOLDOUT,
            "engine": "in-process", "compare-alone": False,
        })  # fmt: skip


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


def score(trial: Trial, data_dir: str) -> dict[str, Any]:
    """Run a trial and return its row of the table."""
    torch.set_num_threads(1)  # trials run side by side, one on each core
    accuracy, seconds = math.nan, math.nan
    try:
        result = simulate(trial.config(data_dir))
    except SpcacwError as error:  # a candidate that the method refuses, or that diverges
        print(f"{trial.method} {trial.keys}: {error}")
    else:
        accuracy = statistics.fmean(result.accuracy[-LAST:])
        seconds = result.epochs[-1]["seconds"]
    return trial.name | {"held_out_accuracy": round(accuracy, 3), "seconds": seconds}


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows of the trials that are done."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def trials(
    setting: str, methods: Iterable[str], seeds: int, epochs: int,
    candidates: Mapping[str, list[dict[str, Any]]], of_column: Mapping[str, Any],
) -> Iterator[Trial]:  # fmt: skip
    """Yield every trial of a tuning."""
    for method, seed in product(methods, range(seeds)):
        if method not in candidates:
            hint = did_you_mean(method, candidates)
            raise SpcacwError(f"There is no grid for method {method!r}{hint} in {GRIDS}: add one.")
        for keys in candidates[method]:
            yield Trial(setting, method, json.dumps(keys), seed, epochs, of_column)


def run(todo: list[Trial], path: Path, data_dir: str, workers: int) -> None:
    """Run trials side by side; append each one's row when it ends."""
    fresh = not path.exists()
    context = multiprocessing.get_context("spawn")  # a fork would inherit PyTorch's threads
    with (
        path.open("a", newline="") as file,
        ProcessPoolExecutor(workers, mp_context=context) as pool,
    ):
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if fresh:
            writer.writeheader()
        running = [pool.submit(score, trial, data_dir) for trial in todo]
        for done in track(as_completed(running), "trials", total=len(running)):
            writer.writerow(done.result())
            file.flush()


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

    Raises
    ------
    SpcacwError
        If there is no such file, setting or method, or no grid for it.
    """
    of_column: Mapping[str, Any] = {}
    if setting.endswith(".toml"):
        (column,) = columns([setting])
        setting, of_column = column.name, column.keys
    candidates = grids(of_column.get("eta", MIDDLE), methods)
    output.mkdir(parents=True, exist_ok=True)
    path = output / f"{setting}.csv"
    done = {tuple(row[c] for c in COLUMNS[:5]) for row in read(path)}
    todo = [
        trial for trial in trials(setting, methods or list(candidates), seeds, epochs, candidates,
                                  of_column)
        if tuple(map(str, trial.name.values())) not in done
    ]  # fmt: skip
    run(todo, path, data_dir, workers or os.cpu_count() or 1)
    choice = best(pd.read_csv(path), candidates)
    order = [method for method in candidates if method in choice]
    (output / f"{setting}.toml").write_text(tomli_w.dumps({m: choice[m] for m in order}))
    return choice
