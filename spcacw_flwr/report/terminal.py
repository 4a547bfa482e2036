"""The display of a command during a run, and the short tables at the run's end."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine import checkpoint
from spcacw_flwr.engine.directory import write_atomically
from spcacw_flwr.report.facts import MOST_SILOS, REFUSED, THEORY, facts_of
from spcacw_flwr.report.page import absence_table, write_report_if_possible
from spcacw_flwr.report.sentences import advice
from spcacw_flwr.report.words import called, counted, metric_rows
from spcacw_flwr.silos.evaluation import CASES
from spcacw_flwr.silos.metrics import METRICS

LARGEST = 4
"""Most weights shown during training: the largest ones at the time."""
COLUMNS = {"bias": "bias ‖b‖", "sigma": "noise σ", "epsilon": "ε"}
"""Titles for the method's figures of the silos."""


class Display:
    """Live progress on a terminal, otherwise a line per epoch; each warning once."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TextColumn("rounds"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
            console=console,
        )  # fmt: skip
        self.task = self.progress.add_task("starting", total=None)
        self.line, self.epoch = "", 0
        self.warned: set[str] = set()

    def __rich__(self) -> Group:
        """Return the content for a terminal."""
        return Group(self.progress, self.line)

    def running(self) -> AbstractContextManager[object]:
        """Keep the display on the terminal during the block."""
        live = Live(self, console=self.console, refresh_per_second=4)
        return live if self.console.is_terminal else nullcontext()

    def show(self, status: dict[str, Any]) -> None:
        """Show the progress of the run."""
        if not status:
            return
        for words in status.get("warnings", ()):
            if words not in self.warned:
                self.console.print(f"Warning: {words}", soft_wrap=True)
            self.warned.add(words)
        epoch, total = status["epoch"], status["rounds"]
        count = f"epoch {epoch}/{status['epochs']}"
        text = f"{status['state']}: {count}" if total else status["state"]
        self.progress.update(
            self.task, description=text, completed=status["round"], total=total or None
        )
        self.line = describe(status)
        if epoch > self.epoch and not self.console.is_terminal:
            self.console.print(f"{count}  {self.line}", soft_wrap=True)
        self.epoch = epoch


def describe(status: dict[str, Any]) -> str:
    """Return the metric, the loss and the largest weights of a status in one line."""
    if status.get("value") is None:
        return ""
    metric, alpha = METRICS[status["metric"]], status["alpha"]
    beside = "" if status.get("alone") is None else f" (alone {metric.text(status['alone'])})"
    text = f"{metric.label} {metric.text(status['value'])}{beside}  loss {status['loss']:.4f}"
    largest = [i for i in _heaviest(alpha)[:LARGEST] if alpha[i] > 0]
    weights = "".join(f"  silo {i}: {alpha[i]:.3f}" for i in largest)
    return f"{text}  α{weights}" if alpha else text


def _heaviest(alpha: list[float]) -> list[int]:
    return sorted(range(len(alpha)), key=lambda i: (-alpha[i], i))


def metrics_table(summary: dict[str, Any]) -> Table:
    """Return each metric of the last model with its interval, the run's metric first.

    If training alone (α = e₀) was run, the table also has its value and the gain over it.
    """
    percents = any(METRICS[name].percent for name in summary["metrics"])
    table = Table(caption="Differences of accuracy are in points." if percents else None)
    names = ["metric", "last", "95 % interval"]
    names += ["alone", "better by", "95 % interval"] if summary["alone"] else []
    for name in names:
        table.add_column(name, justify="left" if name == "metric" else "right")
    for metric, cells in metric_rows(summary["metrics"], summary["metric"]):
        table.add_row(metric.name, *cells)
    return table


def alpha_table(summary: dict[str, Any]) -> Table:
    """Return the final α with each silo's true cluster or angle, the heaviest first."""
    alpha, groups = summary["alpha"], summary["groups"]
    some = f", the {MOST_SILOS} heaviest" if len(alpha) > MOST_SILOS else ""
    known = summary.get("figures") or {}
    figures = {name: values for name, values in known.items() if name not in (THEORY, REFUSED)}
    table = Table(title=f"final α of {counted(len(alpha), 'silo')}{some}")
    truth = ["true group"] if any(group is not None for group in groups) else []
    for name in ("silo", *truth, "α", *(COLUMNS.get(name, name) for name in figures)):
        table.add_column(name, justify="right")
    for silo in _heaviest(alpha)[:MOST_SILOS]:
        mark = " (target)" if silo == summary["target"] else ""
        group = ["–" if groups[silo] is None else f"{groups[silo]:g}"] if truth else []
        values = [by_silo[silo] for by_silo in figures.values()]
        rest = ("–" if value is None else f"{value:.4f}" for value in values)
        table.add_row(called(summary["names"], silo) + mark, *group, f"{alpha[silo]:.4f}", *rest)
    return table


def print_left_out(console: Console, directory: Path) -> None:
    """Print the target's loss without each of the peers left out of a run."""
    if found := facts_of(directory).leave_one_out:
        content = absence_table(found)
        table = Table(*content.head, caption=content.caption)
        for row in content.rows:
            table.add_row(*row)
        console.print(table)


def print_report(console: Console, directory: Path) -> None:
    """Print both tables, whether to go on with these peers, and the results' directory."""
    summary = json.loads((directory / "summary.json").read_text())
    on = "held-out" if summary["holdout"] else "test"
    who = called(summary["names"], summary["target"])
    what = f"{summary['setting']}: silo {who} by {summary['method']}"
    console.print(f"{what}, {counted(summary[CASES], f'{on} case')}")
    console.print(metrics_table(summary))
    metric = METRICS[summary["metric"]]
    best = summary["metrics"][metric.name]
    said = f"The best epoch, known with hindsight: {best['best_epoch']}, {metric.label} "
    console.print(said + metric.text(best["best"]))
    for sentence in islice(advice(facts_of(directory)), 1):
        console.print(sentence, soft_wrap=True)
    if summary["alpha"] is not None:
        console.print(alpha_table(summary))
    console.print(
        f"{counted(summary['epochs'], 'epoch')}, {counted(summary['rounds'], 'round')}, "
        f"{summary['seconds']:.1f} s; {counted(summary['target_gradients'], 'gradient')} at the "
        f"target, {summary['floats']:.3g} floats "
        "to and from peers. Results:"
    )
    console.print(str(directory), soft_wrap=True)


@contextmanager
def reported(console: Console, output: Path, again: str) -> Iterator[Callable[..., None]]:
    """Show a run and, when it has finished, its report; the block gets the function to call.

    If the run ends early, print its directory and the command ``again`` that goes on with it. If a
    resumed run could not go on, its old status is restored.
    """
    display, status = Display(console), output / "status.json"
    before = status.read_bytes() if status.exists() else b""

    def trained() -> bool:
        now = status.read_bytes() if status.exists() else before
        return now != before and bool(json.loads(now).get("rounds"))

    try:
        with display.running():
            yield display.show
    except (SpcacwError, KeyboardInterrupt):
        if (lines := output / "metrics.jsonl").exists() and lines.stat().st_size:
            console.print(f"What was learned so far is in {output}", soft_wrap=True)
        if trained() and checkpoint.exists(output / checkpoint.DIRECTORY):
            console.print(f"{again} goes on from the last checkpoint.", soft_wrap=True)
        raise
    finally:
        if before and not trained():
            write_atomically(status, before)
        warning = write_report_if_possible(output)
    print_report(console, output)
    if warning:
        console.print(warning, soft_wrap=True)
