"""What a command shows while a run goes on, how it ends, and the short tables at its end."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine import checkpoint
from spcacw_flwr.engine.directory import Stopped
from spcacw_flwr.report.facts import MOST_SILOS
from spcacw_flwr.report.page import write_report_if_possible
from spcacw_flwr.report.words import called, signed, span
from spcacw_flwr.silos.evaluation import CASES
from spcacw_flwr.silos.metrics import METRICS

LARGEST = 4
"""Weights shown while training: the current largest ones."""
COLUMNS = {"bias": "bias ‖b‖", "sigma": "noise σ", "closed_form": "closed form", "epsilon": "ε"}
"""Titles of what is found out about each silo."""


class Display:
    """Live progress on a terminal; a line per epoch elsewhere."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TextColumn("rounds"), TimeElapsedColumn(), console=console,
        )  # fmt: skip
        self.task = self.progress.add_task("starting", total=None)
        self.live: Live | None = None
        self.epoch = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Keep the display on the terminal for the duration of the block."""
        if not self.console.is_terminal:
            yield
            return
        with Live(self.progress, console=self.console, refresh_per_second=4) as self.live:
            yield

    def show(self, status: dict[str, Any]) -> None:
        """Show where the run is."""
        if not status:
            return
        epoch, total = status["epoch"], status["rounds"]
        text = f"{status['state']}: epoch {epoch}/{status['epochs']}" if total else status["state"]
        self.progress.update(
            self.task, description=text, completed=status["round"], total=total or None
        )
        line = describe(status)
        if self.live is not None:
            self.live.update(Group(self.progress, line))
        elif epoch > self.epoch:
            line = f"epoch {epoch}/{status['epochs']}  {line}"
            self.console.print(line, highlight=False, soft_wrap=True)
        self.epoch = epoch


def describe(status: dict[str, Any]) -> str:
    """Say the metric, the loss and the largest weights of a status in one line."""
    if status.get("value") is None:
        return ""
    metric = METRICS[status["metric"]]
    text = f"{metric.label} {metric.text(status['value'])}  loss {status['loss']:.4f}"
    if not (alpha := status["alpha"]):
        return text
    largest = _heaviest(alpha)[:LARGEST]
    weights = "  ".join(f"silo {i}: {alpha[i]:.3f}" for i in largest if alpha[i] > 0)
    return f"{text}  α  {weights}"


def _heaviest(alpha: list[float]) -> list[int]:
    return sorted(range(len(alpha)), key=lambda i: (-alpha[i], i))


def metrics_table(summary: dict[str, Any]) -> Table:
    """Return each metric of the last model with its interval, that of the run first.

    Beside it training alone (α = e₀), if that was run, and how much better than it the model is.
    """
    table = Table(caption="Of accuracies, differences are in points.")
    for name in ("metric", "last", "95 % interval"):
        table.add_column(name, justify="left" if name == "metric" else "right")
    if summary["alone"]:
        for name in ("alone", "better by", "95 % interval"):
            table.add_column(name, justify="right")
    found = summary["metrics"]
    for name in dict.fromkeys((summary["metric"], *found)):
        metric, row = METRICS[name], found[name]
        cells = [metric.text(row["last"]), span(metric, row["interval"], unit=False)]
        if summary["alone"]:
            gain = span(metric, row["gain_interval"], signs=True, unit=False)
            cells += [metric.text(row["alone"]), signed(metric, row["gain"]), gain]
        table.add_row(name, *cells)
    return table


def alpha_table(summary: dict[str, Any]) -> Table:
    """Return the final α with each silo's true cluster or angle, heaviest first."""
    alpha, groups = summary["alpha"], summary["groups"]
    heaviest = _heaviest(alpha)[:MOST_SILOS]
    some = f", the {MOST_SILOS} heaviest" if len(alpha) > MOST_SILOS else ""
    figures = summary.get("figures") or {}
    table = Table(title=f"final α of {len(alpha)} silos{some}")
    truth = ["true group"] if any(group is not None for group in groups) else []
    for name in ("silo", *truth, "α", *(COLUMNS.get(name, name) for name in figures)):
        table.add_column(name, justify="right")
    for silo in heaviest:
        mark = " (target)" if silo == summary["target"] else ""
        group = ["–" if groups[silo] is None else f"{groups[silo]:g}"] if truth else []
        values = [by_silo[silo] for by_silo in figures.values()]
        rest = ("–" if value is None else f"{value:.4f}" for value in values)
        table.add_row(f"{called(summary, silo)}{mark}", *group, f"{alpha[silo]:.4f}", *rest)
    return table


def print_report(console: Console, directory: Path) -> None:
    """Print both tables and where everything lies."""
    summary = json.loads((directory / "summary.json").read_text())
    on = "held-out" if summary["holdout"] else "test"
    who = f"{summary['setting']}: silo {called(summary, summary['target'])} by {summary['method']}"
    console.print(f"{who}, {summary[CASES]:,.0f} {on} cases", highlight=False)
    console.print(metrics_table(summary))
    metric = METRICS[summary["metric"]]
    best = summary["metrics"][metric.name]
    said = f"The best epoch, known with hindsight: {best['best_epoch']}, {metric.label} "
    console.print(said + metric.text(best["best"]), highlight=False)
    if summary["alpha"] is not None:
        console.print(alpha_table(summary))
    console.print(
        f"{summary['epochs']} epochs, {summary['rounds']} rounds, {summary['seconds']:.1f} s; "
        f"{summary['target_gradients']:,} gradients at the target, {summary['floats']:.3g} floats "
        "to and from peers. Results:",
        highlight=False,
    )
    console.print(str(directory), soft_wrap=True, highlight=False)


@contextmanager
def reported(console: Console, output: Path, again: str) -> Iterator[Callable[..., None]]:
    """Show a run, by calls of what the block is given, and its report when it has finished.

    One that ends early tells where its results are, and the command ``again`` that goes on with it.
    """
    display = Display(console)
    try:
        with display.running():
            yield display.show
    except (SpcacwError, KeyboardInterrupt):
        console.print(f"What was learned so far is in {output}", soft_wrap=True, highlight=False)
        if checkpoint.exists(output / checkpoint.DIRECTORY):
            how = f"{again} goes on from the last checkpoint."
            console.print(how, soft_wrap=True, highlight=False)
        raise
    finally:
        warning = write_report_if_possible(output)
    print_report(console, output)
    if warning:
        console.print(warning, soft_wrap=True, highlight=False, markup=False)


@contextmanager
def one_sentence(console: Console) -> Iterator[None]:
    """End the command with a user's error as its sentence and 1, or with 130 on Ctrl-C."""
    try:
        yield
    except SpcacwError as error:
        console.print(f"[bold red]spcacw:[/] {error}", highlight=False, soft_wrap=True)
        raise typer.Exit(130 if isinstance(error, Stopped) else 1) from None
    except KeyboardInterrupt:
        console.print("[bold red]spcacw:[/] stopped.")
        raise typer.Exit(130) from None


def end_like_ctrl_c() -> None:
    """Let the signals that end a program do what Ctrl-C does: end everything that it started."""
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.default_int_handler)
