"""Fair tuning: the same search for every method, with choices made on held-out training data.

    spcacw tune --setting mnist-relabel --data-dir DIR --output experiments/tuned
    spcacw tune --setting experiments/conf/narrow/cifar100-10-narrow.toml --data-dir DIR …

A method tries its default keys, with its own η and with each η of the list that all methods share
(in ``experiments/grids.toml``). Then it tries the neighbours of its best candidate, key by key,
until none is better. Then it tries other keys of its authors and the keys that make it Local, if
the file has any; if one of these is the best, the search goes on from there. Lists grow
(:func:`around`), so no choice lies at an edge. At last, methods with fewer than :data:`TRIALS`
candidates try more, ever nearer to their best, until they have that many.

Every candidate trains in process without a fifth of the target's training data (the key
``holdout``) and is scored on that fifth. No trial uses test data (READING.md 21). The first seed
tries all candidates, the other seeds the best third. A candidate that is refused or diverges, with
any seed, is reported; it is NaN in the file and does not count. Each trial is added to
``<setting>.csv`` when it ends, so an interrupted tuning continues where it stopped. Each method's
best candidate goes to ``<setting>.toml``. Trials of another length do not count. A column of Table
1, given by the path of its file, brings its own keys. A row of Table 1 that has a grid by its own
name is tuned by itself.
"""

import itertools
import json
import math
import statistics
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
"""The least number of candidates per method: more than most need to finish their lists. An equal
number for all would never be reached: a method that finds a better candidate starts anew."""
LAST = 5
"""The score is the mean over so many last epochs of held-out accuracy, or of the setting's own
metric (negative where less is better). A single epoch would be luck."""
Candidate = dict[str, Any]
Axes = Mapping[str, Sequence[Any]]
Ends = Mapping[str, Sequence[tuple[Candidate, str]]]
Scores = Mapping[str, float]
"""The scores of candidates (as JSON), in the order in which they were tried. NaN: the candidate was
refused. −∞: it was dropped after one seed."""


def grids(own: Iterable[str] = ()) -> dict[str, Axes]:
    """Return the lists of each method, by key; η is the first.

    ``own`` has names of methods; one that is an import path brings its own :attr:`Method.grid`.
    """
    file = read_toml(GRIDS)
    tables = file["methods"] | {name: method_class(name).grid for name in own if ":" in name}
    return {name: {"eta": file["eta"]} | flattened(table) for name, table in tables.items()}


def ends_of(file: Mapping[str, Any]) -> Ends:
    """Return the keys that each method tries at the end: others of its authors, and Local's."""
    found = defaultdict(list)
    for table in ("authors", "local"):
        for name, keys in file[table].items():
            found[name].append((flattened(keys), table if table == "local" else name))
    return found


def around(values: Sequence[Any], value: Any) -> list[Any]:
    """Return the next values below and above a value in a list; for a name, all other names.

    At an end, the list grows by the ratio of its two positive numbers there (whole numbers stay
    whole). It does not grow below 0, nor if it has a single positive number.
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
    """Return the number, rounded to five digits."""
    return float(f"{value:.5g}")


def neighbours(axes: Axes, choice: Candidate, halvings: int = 0) -> list[Candidate]:
    """Return the candidates next to ``choice``, key by key, nearer to it by some halvings.

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
    """Return the candidate with the best score, the first of equals; None if all were refused."""
    scored = {keys: score for keys, score in tried.items() if not math.isnan(score)}
    return json.loads(max(scored, key=lambda keys: scored[keys])) if scored else None


def wanted(axes: Axes, start: Iterable[Candidate], tried: Scores, more: int = 0) -> list[Candidate]:
    """Return what to try next: ``start``, then neighbours of the best, then ``more`` nearer."""
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
    """Return what each method tries next, default keys first; nothing when all have finished.

    ``ends`` has keys that some methods try at the end, with the best η so far of a named method.
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
    """Return the scores of each method's candidates, and the candidates that more seeds must try.

    A score is the mean over seeds. A candidate outside the best third of the first seed scores −∞:
    the other seeds need not try it.
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
    """Return the default values of the keys of a grid."""
    flat = Config.from_flat(keys).to_flat()
    flat |= flattened(json.loads(flat.get("own") or "{}"))
    return {axis: flat[axis] for axis in axes}


def trials(
    setting: str, candidates: Mapping[str, Sequence[Candidate]], seeds: Iterable[int], epochs: int,
    of_setting: Keys,
) -> list[Job]:  # fmt: skip
    """Return the runs of each method's candidates on a setting, or on a column (by its keys)."""
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
    """Return the figures of a trial: NaN where the method refused its keys or diverged."""
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

    SpcacwError if the file, setting or method does not exist, or its grid or the data are missing.
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
    choices = read_toml(path) if path.exists() else {}
    choices |= {method: choice for method in names if (choice := best(tried[method]))}
    order = [*filter(choices.__contains__, axes), *(m for m in choices if m not in axes)]
    write_atomically(path, tomli_w.dumps({m: choices[m] for m in order}).encode())
    return choices
