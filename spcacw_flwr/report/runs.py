"""Lists and comparisons of runs: a line for each run of a folder, or two or more compared.

A line uses only a run's ``config.toml``, ``status.json`` and ``summary.json``, so listing hundreds
of runs is fast. It shows the keys that differ between the runs.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.ticker import MaxNLocator
from rich.filesize import decimal
from rich.table import Table

from spcacw_flwr.config.config import parse_assignments
from spcacw_flwr.config.declare import SpcacwError, did_you_mean
from spcacw_flwr.engine import plots
from spcacw_flwr.engine.checkpoint import FREE
from spcacw_flwr.report.read import DAMAGED, Run, read, read_run
from spcacw_flwr.report.words import counted, duration, metric_rows, signed, span

SORTS = ("run", "value", "gain", "alpha", "seconds")
SAME = ("setting", "silo", "hf.dataset", "hf.split", "hf.label", "target", "metric", "holdout")
"""Keys that are equal in two runs with the same kind of test cases."""
NAMING = ("setting", "method")
"""Keys that are shown even if all runs have the same values."""
MOST_KEYS = 4
"""Most differing keys that are listed with each run."""
MOST_SILOS = 20
"""Most silos whose weights are listed and drawn."""


def runs_below(folder: Path, where: Sequence[str], sort: str) -> list[Run]:
    """Return the runs in a folder, at any depth, that have the keys ``where``, sorted.

    A damaged run has only a status, which reports the damage.

    Raises SpcacwError if there is no such run, or an option is wrong.
    """
    if sort not in SORTS:
        raise SpcacwError(f"--sort {sort} is not known{did_you_mean(sort, SORTS)}: choose one of "
                          f"{', '.join(SORTS)}.")  # fmt: skip
    found = []
    for path in sorted(folder.rglob("config.toml")):
        try:
            run = read_run(path.parent)
        except SpcacwError as error:
            run = Run(path.parent, {}, {"state": DAMAGED, "error": str(error)}, {})
        if "setting" in run.config or run.state == DAMAGED:  # else the file is not of a run
            found.append(run)
    if not found:
        raise SpcacwError(f"There is no run in {folder}: name the folder that holds the runs.")
    wanted = parse_assignments(list(where), "--where")
    known = {"state", *(name for run in found for name in run.config)}
    if unknown := [name for name in wanted if name not in known]:
        raise SpcacwError(f"--where: no run has the key {unknown[0]!r}"
                          f"{did_you_mean(unknown[0], known)}.")  # fmt: skip
    chosen = [run for run in found
              if all((run.config | {"state": run.status.get("state")}).get(name) == value
                     for name, value in wanted.items())]  # fmt: skip
    if not chosen:
        raise SpcacwError(
            f"None of {counted(len(found), 'run')} in {folder} has {', '.join(where)}."
        )
    return sorted(chosen, key=lambda run: run.rank(sort))


def differing(runs: Sequence[Run]) -> list[str]:
    """Return the keys that differ between runs, except those about where they run (``FREE``)."""
    values: dict[str, set[str]] = {}
    for run in runs:
        for name, value in run.config.items():
            values.setdefault(name, set()).add(str(value))
    return [name for name, some in values.items() if len(some) > 1 and name not in FREE]


def listing(runs: Sequence[Run], folder: Path) -> Table:
    """Return a row per run: differing keys, metric, gain over training alone, own α, cost."""
    keys = differing(runs)
    known = next((run.config for run in runs if run.config), {})
    common = (str(known.get(name)) for name in NAMING if name not in keys)
    more = f" Keys that differ, too: {', '.join(keys[MOST_KEYS:])}." if keys[MOST_KEYS:] else ""
    said = f"{counted(len(runs), 'run')}. Below a value: its 95 % interval.{more}"
    table = Table(title=", ".join(common), caption=said, show_lines=True)
    table.add_column("run", overflow="fold")
    for name in ("value", "gain", "own α", "cost"):
        table.add_column(name, justify="right", no_wrap=name != "cost")
    for run in runs:
        place = str(run.directory.relative_to(folder))
        told = ", ".join(f"{name}={run.config[name]}" for name in keys[:MOST_KEYS]
                         if name in run.config)  # fmt: skip
        told = str(run.status["error"]) if run.state == DAMAGED else told
        ends = span(run.metric, run.found.get("interval") or [None], unit=False)
        gain = span(run.metric, run.found.get("gain_interval") or [None], signs=True, unit=False)
        sent = run.summary.get("bytes")
        cost = [duration(run.seconds) if run.summary else run.state, decimal(sent) if sent else ""]
        table.add_row(
            f"{place}\n{told}", f"{run.metric.text(run.value)}\n{ends}",
            f"{signed(run.metric, run.gain)}\n{gain}",
            "–" if math.isnan(run.own_weight) else f"{run.own_weight:.4f}", "\n".join(cost),
        )  # fmt: skip
    return table


def comparison(runs: Sequence[Run]) -> Table:
    """Return a column per run: each metric with its interval, gains, weights, differing keys."""
    table = Table("")
    for run in runs:
        table.add_column(run.directory.name, justify="right", overflow="fold")
    parts = [_parts(run, differing(runs)) for run in runs]
    for group in zip(*parts, strict=True):
        for name in dict.fromkeys(name for part in group for name in part):
            table.add_row(name, *(part.get(name, "–") for part in group))
    return table


def _parts(run: Run, keys: Sequence[str]) -> list[dict[str, str]]:
    """Return the parts of a column: metrics, gains, weights, keys, cost."""
    metrics = [*metric_rows(run.summary.get("metrics") or {}, run.metric.name)]
    names = run.names or [""] * len(run.alpha)
    return [
        {metric.label: "\n".join(cells[:2]) for metric, cells in metrics},
        {f"{metric.label}, better than alone": "\n".join(cells[3:])
         for metric, cells in metrics if cells[3:]},
        {f"α of silo {silo} {names[silo]}".strip(): f"{weight:.4f}"
         for silo, weight in enumerate(run.alpha[:MOST_SILOS])},
        {name: str(run.config.get(name, "–")) for name in keys},
        {"state": run.state, "time": duration(run.seconds) if run.summary else "–"},
    ]  # fmt: skip


def difference(first: Run, second: Run) -> str:
    """Say by how much the second run is better, with an interval for two draws of test cases.

    A run keeps no test case, so the two runs cannot be paired, and the interval is wide.
    """
    metric = first.metric
    found = [run.found.get("interval") or [None] for run in (first, second)]
    ends = [interval for interval in found if None not in interval]
    both = f"{first.directory.name} and {second.directory.name}"
    if other := [name for name in SAME if first.config.get(name) != second.config.get(name)]:
        return f"{both} differ in {', '.join(other)}: neither can be called the better one."
    if len(ends) < 2:
        why = f"have not both finished with a known {metric.label}"
        return f"{both} {why}: which is better cannot be told."
    gap = metric.sign * (second.value - first.value)
    half = math.hypot(*((high - low) / 2 for low, high in ends))
    better = "better" if gap >= 0 else "worse"
    clear = "by more than" if abs(gap) > half else "which may be"
    interval = span(metric, (gap - half, gap + half), signs=True)
    return (
        f"{second.directory.name} is {metric.gap(gap)} {better} than {first.directory.name}, "
        f"{clear} the draw of the test cases ({interval}, as if each had its own)."
    )


def check_picture(path: Path) -> None:
    """Raise SpcacwError if the path's directory is none, or Matplotlib cannot write its suffix."""
    if not path.absolute().parent.is_dir():
        raise SpcacwError(f"--output {path} is in no directory that there is: make it first.")
    kinds = plots.new_figure(1, 1).canvas.get_supported_filetypes()
    if path.suffix and path.suffix[1:].lower() not in kinds:
        raise SpcacwError(f"--output {path} ends in {path.suffix}, which is not a picture's: it "
                          f"must be one of .{', .'.join(kinds)}.")  # fmt: skip


@matplotlib.rc_context({"axes.spines.top": False, "axes.spines.right": False})
def draw(runs: Sequence[Run], path: Path) -> None:
    """Draw each run's metric over epochs, and its last weights, into a picture."""
    figure = plots.new_figure(11, 4.2, dpi=120)
    left, right = figure.subplots(1, 2)
    width = 0.8 / len(runs)
    for k, run in enumerate(runs):
        lines = read(run.directory).epochs
        name, colour = run.metric.name, f"C{k}"
        shown = [line for line in lines if line.get(name) is not None]
        at = [shown[i] for i in plots.thin(len(shown))] if shown else []
        left.plot([line["epoch"] for line in at], [line[name] for line in at], color=colour,
                  label=run.directory.name)  # fmt: skip
        alpha = run.alpha[:MOST_SILOS]
        right.bar(np.arange(len(alpha)) + (k - (len(runs) - 1) / 2) * width, alpha, width,
                  color=colour)  # fmt: skip
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.set_xlabel("epoch")
    left.set_ylabel(" / ".join(dict.fromkeys(run.metric.label for run in runs)))
    left.legend(frameon=False, fontsize=8)
    right.set_xlabel("silo")
    right.set_ylabel("α at the end")
    plots.save(figure, path)
