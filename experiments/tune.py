"""Fair tuning: one search for every method, chosen on held-out training data.

    spcacw tune --setting mnist-relabel --data-dir DIR --output experiments/tuned
    spcacw tune --setting experiments/conf/narrow/cifar100-10-narrow.toml --data-dir DIR …

A method tries its default keys, with its own η and with each of the one list of η in
``experiments/grids.toml``; then the neighbours of the best, key by key, until it is better than
them all; then other keys that its authors use, and what makes it Local, if there are such, and goes
on from there if that is better.
Lists grow (:func:`around`), so no choice lies at an edge. Then methods that tried fewer than
:data:`TRIALS` candidates try more, ever nearer to their best, until they have tried as many.

Every candidate trains in process without a fifth of the target's training data (the key
``holdout``) and is scored there; test data are never looked at (READING.md 21). The first seed
tries all, the others the best third of those. One that is refused or diverges, with any seed, is
said to be, is NaN in the file, and does not count. Trials go to
``<setting>.csv`` as they end, so that an interrupted tuning goes on where it stopped, and each
method's best candidate to ``<setting>.toml``. Trials of another length do not count. A column of
Table 1, by the path of its file, has its own keys; a row of Table 1 that has a grid by its own name
is tuned by itself.
"""

import itertools
import json
import math
import statistics
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from rich.console import Console

from spcacw_flwr.config.config import Config, flattened, read_toml
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.registry import METHODS, method_class
from spcacw_flwr.engine.directory import write_atomically
from spcacw_flwr.silos.metrics import METRICS

from .conf import HOLDOUT, Job, Keys, chosen, columns, rows
from .results import Table
from .runs import FINISHED, Run
from .sweep import Where

GRIDS = Path(__file__).parent / "grids.toml"
PLACE = ("setting", "method", "keys", "seed", "epochs")
COLUMNS = (*PLACE, "held_out_accuracy", "seconds")
TRIALS = 30
"""Candidates that every method tries at least: more than most need to be through with their lists.
To go on until all have tried the same number has no end, for who finds a better one begins anew."""
LAST = 5
"""The score is the mean after the last epochs of held-out accuracy, or of the metric that the
setting has (negative where less is better): of one epoch it would be luck."""
Candidate = dict[str, Any]
Axes = Mapping[str, Sequence[Any]]
Ends = Mapping[str, Sequence[tuple[Candidate, str]]]
Scores = Mapping[str, float]
"""The scores of candidates (as JSON), in the order in which they were tried: NaN for one that was
refused, −∞ for one that was out after one seed."""


def grids(own: Iterable[str] = ()) -> dict[str, Axes]:
    """Return the lists of each method, by key; η is the first.

    A method of one's ``own``, by its import path, brings its :attr:`Method.grid`.
    """
    file = read_toml(GRIDS)
    tables = file["methods"] | {name: method_class(name).grid for name in own if ":" in name}
    return {name: {"eta": file["eta"]} | flattened(table) for name, table in tables.items()}


def ends_of(file: Mapping[str, Any]) -> Ends:
    """Return what each method tries at the end: other keys of its authors, and those of Local."""
    found = defaultdict(list)
    for table in ("authors", "local"):
        for name, keys in file[table].items():
            found[name].append((flattened(keys), table if table == "local" else name))
    return found


def around(values: Sequence[Any], value: Any) -> list[Any]:
    """Return what lies next to a value in a list, below and above; of names all others do.

    Where nothing does, the list grows by the ratio of its last two positive numbers (whole numbers
    stay whole). Below 0 there is nothing, and a single number does not grow.
    """
    if isinstance(value, str):
        return [other for other in values if other != value]
    ladder = sorted(values)
    positive = [x for x in ladder if x > 0]
    whole = all(isinstance(x, int) for x in ladder)
    if len(positive) > 1:
        down, up = positive[0] / positive[1], positive[-1] / positive[-2]
        while (x := ladder[-1]) <= value:
            ladder.append(max(x + 1, round(x * up)) if whole else short(x * up))
        while 0 < (x := ladder[0]) >= value:
            ladder.insert(0, min(x - 1, round(x * down)) if whole else short(x * down))
    return [x for x in ladder if x < value][-1:] + [x for x in ladder if x > value][:1]


def short(value: float) -> float:
    """Return a number of five digits."""
    return float(f"{value:.5g}")


def neighbours(axes: Axes, choice: Candidate, halvings: int = 0) -> list[Candidate]:
    """Return the candidates next to one, key by key, nearer by some halvings.

    Half-way is the geometric mean, or the half where that is 0; whole numbers and names have none.
    """
    found = []
    for axis, values in axes.items():
        for value in around(values, here := choice[axis]):
            for _ in range(0 if isinstance(value, str | int) else halvings):
                value = short(math.sqrt(here * value) or max(here, value) / 2)
            found.append({**choice, axis: value})
    return found


def best(tried: Scores) -> Candidate | None:
    """Return the candidate of the best score, the first of equals; None if all were refused."""
    scored = {keys: score for keys, score in tried.items() if not math.isnan(score)}
    return json.loads(max(scored, key=lambda keys: scored[keys])) if scored else None


def wanted(axes: Axes, start: Iterable[Candidate], tried: Scores, more: int = 0) -> list[Candidate]:
    """Return what to try next: ``start``, then the neighbours of the best, then ``more`` nearer."""
    choice = best(tried)
    depths = range(99 if more else 1) if choice else ()
    stages = itertools.chain([start], (neighbours(axes, choice or {}, depth) for depth in depths))
    for stage in stages:
        fresh = [text for text in dict.fromkeys(map(json.dumps, stage)) if text not in tried]
        if fresh:
            return [json.loads(text) for text in fresh[: more or None]]
    return []


def following(
    axes: Mapping[str, Axes], first: Mapping[str, Candidate], ends: Ends,
    tried: Mapping[str, Scores],
) -> dict[str, list[Candidate]]:  # fmt: skip
    """Return what each method tries next, from its default keys on; nothing when all are through.

    ``ends`` has keys that some of them try then, with the best η so far of the method named.
    """
    starts, todo = {}, {}
    for name, default in first.items():
        starts[name] = [default, *(default | {"eta": eta} for eta in axes[name]["eta"])]
        of = tried.get(name, {})
        todo[name] = wanted(axes[name], starts[name], of)
        for keys, whose in ends.get(name, ()):
            if not todo[name]:
                eta = (best(tried.get(whose, {})) or default)["eta"]
                todo[name] = wanted(axes[name], [default | keys | {"eta": eta}], of)
    if any(todo.values()):
        return todo
    counts = {name: sum(not math.isnan(x) for x in tried[name].values()) for name in first}
    lack = {name: max(0, TRIALS - count) for name, count in counts.items()}
    return {name: wanted(axes[name], starts[name], tried[name], lack[name]) for name in first}


def standings(
    table: Table, seeds: int, epochs: int
) -> tuple[dict[str, dict[str, float]], dict[str, list[Candidate]]]:
    """Return the scores of each method's candidates, and those that more seeds are to try.

    A score is the mean over seeds. Who is not among the best third with the first seed is out, with
    −∞: the other seeds need not try it.
    """
    found: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for line in table.lines.values():
        if int(line["epochs"]) == epochs and (seed := int(line["seed"])) < seeds:
            found[line["method"]][line["keys"]][seed] = float(line["held_out_accuracy"])
    tried: dict[str, dict[str, float]] = {method: {} for method in found}
    waiting: dict[str, list[Candidate]] = {method: [] for method in found}
    for method, of in found.items():
        firsts = sorted(by[0] for by in of.values() if not math.isnan(by.get(0, math.nan)))
        bar = firsts[-math.ceil(len(firsts) / 3)] if firsts else math.inf
        for keys, by in ((keys, by) for keys, by in of.items() if 0 in by):
            if len(by) == seeds:
                tried[method][keys] = statistics.fmean(by.values())
            elif by[0] >= bar:
                waiting[method].append(json.loads(keys))
            else:
                tried[method][keys] = math.nan if math.isnan(by[0]) else -math.inf
    return tried, waiting


def keys_of(method: str, of_setting: Keys, candidate: Candidate) -> Candidate:
    """Return the keys of a candidate of a method, or of a row of Table 1."""
    named = method in METHODS or ":" in method
    return {**of_setting, **candidate, **({"method": method} if named else rows([method])[0].keys)}


def defaults(axes: Axes, keys: Keys) -> Candidate:
    """Return the values that the keys of a grid have when nobody sets them."""
    flat = Config.from_flat(keys).to_flat()
    flat |= flattened(json.loads(flat.get("own") or "{}"))
    return {axis: flat[axis] for axis in axes}


def trials(
    setting: str, candidates: Mapping[str, Sequence[Candidate]], seeds: Iterable[int], epochs: int,
    of_setting: Keys,
) -> list[Job]:  # fmt: skip
    """Return the runs of candidates of each method on a setting, or on a column by its keys."""
    common = {"epochs": epochs, "holdout": HOLDOUT, "engine": "in-process", "compare-alone": False}
    jobs = []
    for method, seed in itertools.product(candidates, seeds):
        for candidate in candidates[method]:
            keys = keys_of(method, of_setting, candidate) | common | {"seed": seed}
            text = json.dumps(candidate)
            place = dict(zip(PLACE, (setting, method, text, seed, epochs), strict=True))
            jobs.append(Job(setting, method, keys, text, place))
    return jobs


def score(_: Job, run: Run) -> dict[str, Any] | None:
    """Return the figures of a trial: NaN where the method refused its keys, or diverged."""
    if run.state != FINISHED or run.config is None:
        return None if run.killed else {"held_out_accuracy": math.nan, "seconds": math.nan}
    last, metric = run.logged()[-LAST:], METRICS[run.config.run.metric]
    mean = statistics.fmean(line[metric.name] for line in last) * metric.sign
    figure = round(mean, 3 if metric.percent else 5)
    return {"held_out_accuracy": figure, "seconds": last[-1]["seconds"]}


def tune(
    setting: str, methods: list[str], seeds: int, epochs: int, data_dir: str, output: Path,
    workers: int = 0, ray: str = "",
) -> dict[str, Candidate]:  # fmt: skip
    """Tune methods (none: all) on a setting, or on a column's file; write and return the choices.

    SpcacwError if there is no such file, setting or method, no grid for it, or no data.
    """
    of_setting: Keys = {"setting": setting}
    if setting.endswith(".toml"):
        (column,) = columns([setting])
        setting, of_setting = column.name, column.keys
    of_setting = {**of_setting, "data-dir": data_dir}
    axes, ends = grids(methods), ends_of(read_toml(GRIDS))
    names = chosen(methods, axes, "grid of method")
    first = {name: defaults(axes[name], keys_of(name, of_setting, {})) for name in names}
    table = Table(output / f"{setting}.csv", COLUMNS, PLACE)
    where = Where(output, workers=workers, ray=ray)
    while True:
        tried, waiting = standings(table, seeds, epochs)
        todo, those = {name: waiting.get(name, []) for name in names}, range(1, seeds)
        if not any(todo.values()):
            todo, those = following(axes, first, ends, tried), range(1)
        if not any(todo.values()):
            break
        jobs, before = trials(setting, todo, those, epochs, of_setting), len(table.lines)
        failed = where.fill(table, jobs, score, Console())
        if len(table.lines) == before:
            raise SpcacwError(failed[0])
    path = output / f"{setting}.toml"
    choices = tomllib.loads(path.read_text()) if path.exists() else {}
    choices |= {method: choice for method in names if (choice := best(tried[method]))}
    order = [*filter(choices.__contains__, axes), *(m for m in choices if m not in axes)]
    write_atomically(path, tomli_w.dumps({m: choices[m] for m in order}).encode())
    return choices
