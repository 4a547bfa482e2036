"""The short table at the end of a run: how accurate, against training alone, and who helped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

MOST_SILOS = 12
"""Rows of the α table; of many silos the heaviest are shown."""
COLUMNS = {"bias": "bias ‖b‖", "sigma": "noise σ", "closed_form": "closed form", "epsilon": "ε"}
"""Titles of what is found out about each silo."""


def accuracy_table(summary: dict[str, Any]) -> Table:
    """Return best and last accuracy, beside the same run with α = e₀ when it was made."""
    on = "held-out" if summary.get("holdout") else "test"
    table = Table(title=f"{summary['setting']}: {on} accuracy")
    table.add_column(f"target silo {summary['target']}, method")
    table.add_column("best %", justify="right")
    table.add_column("last %", justify="right")
    rows = [(summary["method"], summary)]
    if summary["alone"]:
        rows.append(("alone (α = e₀)", summary["alone"]))
    for name, row in rows:
        table.add_row(name, f"{row['best_accuracy']:.2f}", f"{row['last_accuracy']:.2f}")
    return table


def alpha_table(summary: dict[str, Any]) -> Table:
    """Return the final α with each silo's true cluster or angle, heaviest first."""
    alpha, groups = summary["alpha"], summary["groups"]
    heaviest = sorted(range(len(alpha)), key=lambda i: (-alpha[i], i))[:MOST_SILOS]
    some = f", the {MOST_SILOS} heaviest" if len(alpha) > MOST_SILOS else ""
    figures = summary.get("figures") or {}
    table = Table(title=f"final α of {len(alpha)} silos{some}")
    for name in ("silo", "true group", "α", *(COLUMNS.get(name, name) for name in figures)):
        table.add_column(name, justify="right")
    for silo in heaviest:
        mark = " (target)" if silo == summary["target"] else ""
        group = "–" if groups[silo] is None else f"{groups[silo]:g}"
        rest = (decimal(values[silo]) for values in figures.values())
        table.add_row(f"{silo}{mark}", group, f"{alpha[silo]:.4f}", *rest)
    return table


def decimal(value: float | None) -> str:
    """Return four decimals, and a dash for what is not known."""
    return "–" if value is None else f"{value:.4f}"


def print_report(console: Console, directory: Path) -> None:
    """Print both tables and where everything lies."""
    summary = json.loads((directory / "summary.json").read_text())
    console.print(accuracy_table(summary))
    if summary["alpha"] is not None:
        console.print(alpha_table(summary))
    console.print(
        f"{summary['epochs']} epochs, {summary['rounds']} rounds, {summary['seconds']:.1f} s; "
        f"{summary['target_gradients']:,} gradients at the target, {summary['floats']:.3g} floats "
        "to and from peers. Results:",
        highlight=False,
    )
    console.print(str(directory), soft_wrap=True, highlight=False)
