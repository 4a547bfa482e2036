"""The table of attacks as Markdown and as a picture: the worst cases, and which fail the goal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from spcacw_flwr.engine.plots import new_figure

from ..conf import rows
from ..pages import NONE
from ..pages import table as markdown
from . import ATTACKS
from .study import LOCAL, METHODS, NOBODY

GOAL = -0.5
"""Percentage points: the least difference to Local that keeps the promise."""
EXPLANATION = """Differences to Local with the same seed, in points of test accuracy after the last
epoch; **bold** ones are below −0.5. A cell is the worst of its runs (shares and seeds); behind it,
in how many of them it is below −0.5.

"""


def read(path: Path) -> pd.DataFrame:
    """Return the lines of the table but Local's."""
    table = pd.read_csv(path, keep_default_na=False, na_values={"attackers_weight": [""]})
    return table[table.method != LOCAL.name]


def ordered(values: pd.Series, order: list[str]) -> list[str]:
    """Return the names that occur, in ``order``."""
    there = set(values)
    return [name for name in order if name in there]


def difference(value: float) -> str:
    """Return a difference, bold if it breaks the promise."""
    return f"**{value:+.2f}**" if value < GOAL else f"{value:+.2f}"


def worst(lines: pd.DataFrame) -> str:
    """Return the worst difference of some runs, and how many are below the goal."""
    if lines.empty:
        return NONE
    below = int((lines.difference < GOAL).sum())
    return difference(lines.difference.min()) + (f" ({below}/{len(lines)})" if below else "")


def matrix(table: pd.DataFrame, of: str, across: list[str], titles: dict[str, str]) -> list[str]:
    """Return a Markdown table of worst differences: methods down, values of ``of`` across."""
    rows = []
    for method in ordered(table.method, list(titles)):
        mine = table[table.method == method]
        rows.append([titles[method], *(worst(mine[mine[of].astype(str) == name])
                                       for name in across)])  # fmt: skip
    return markdown(["method", *across], rows)


def costs(table: pd.DataFrame, titles: dict[str, str]) -> list[str]:
    """Return what each method gains without attack, and the weight that attackers end with."""
    rows = []
    for method in ordered(table.method, list(titles)):
        mine = table[table.method == method]
        calm, hostile = mine[mine.attack == NOBODY], mine[mine.attack != NOBODY]
        weight = hostile.attackers_weight.astype(float)
        judged = hostile[hostile.accepted.astype(str) != ""]
        refused = f"{(judged.accepted.astype(str) == 'False').sum()} of {len(judged)}"
        rows.append([
            titles[method], f"{calm.difference.mean():+.2f}" if len(calm) else NONE,
            f"{weight.median():.3f}" if len(weight) else NONE,
            f"{weight.max():.3f}" if len(weight) else NONE, refused if len(judged) else NONE,
        ])  # fmt: skip
    heads = ["method", "no attack: mean difference", "attackers' final weight: median", "largest",
             "runs that the guard refused"]  # fmt: skip
    return markdown(heads, rows)


def summary(table: pd.DataFrame, titles: dict[str, str]) -> list[str]:
    """Return a line a column and method: how many attacked runs break the promise, and how far."""
    rows = []
    for column, of in table.groupby("column", sort=False):
        for method in ordered(of.method, list(titles)):
            mine = of[of.method == method]
            calm, hostile = mine[mine.attack == NOBODY], mine[mine.attack != NOBODY]
            rows.append([
                str(column), titles[method], str(len(hostile)),
                str(int((hostile.difference < GOAL).sum())),
                difference(hostile.difference.min()) if len(hostile) else NONE,
                f"{calm.difference.mean():+.2f} ({len(calm)})" if len(calm) else NONE,
            ])  # fmt: skip
    below = f"below {GOAL:g}".replace("-", "−")
    heads = ["column", "method", "attacked runs", below, "worst", "no attack (seeds)"]
    return markdown(heads, rows, "llr")


def page(table: pd.DataFrame, titles: dict[str, str]) -> str:
    """Return the Markdown: for each column, by attack, by share, and what it costs."""
    parts = [*summary(table, titles), ""]
    for column, of in table.groupby("column", sort=False):
        seeds = ", ".join(str(seed) for seed in sorted(set(of.seed)))
        epochs = ", ".join(str(epoch) for epoch in sorted(set(of.epochs)))
        parts += [f"## {column}", "", f"Seeds {seeds}; {epochs} epochs; {len(of)} runs.", ""]
        attacks = ordered(of.attack, list(ATTACKS))
        shares = sorted({f"{share:g}" for share in of.share} - {"0"})
        parts += [*matrix(of, "attack", attacks, titles), "", "By the share of attackers:", ""]
        named = of.assign(share=[f"{share:g}" for share in of.share])
        parts += [*matrix(named, "share", shares, titles), "", *costs(of, titles), ""]
    return "\n".join(parts)


def picture(table: pd.DataFrame, titles: dict[str, str], path: Path) -> None:
    """Draw the worst difference of each method under each attack, a panel for each column."""
    columns = list(dict.fromkeys(table.column))
    attacks, methods = ordered(table.attack, list(ATTACKS)), ordered(table.method, list(titles))
    figure = new_figure(2.2 + 4.6 * len(columns), 1.6 + 0.36 * len(methods))
    axes = figure.subplots(1, len(columns), squeeze=False, sharey=True)[0]
    for panel, column in zip(axes, columns, strict=True):
        of = table[table.column == column].groupby(["method", "attack"]).difference.min()
        values = of.unstack().reindex(index=methods, columns=attacks).to_numpy(dtype=float)
        shown = np.clip(values, -5, 5)
        image = panel.imshow(shown, cmap="RdBu", vmin=-5, vmax=5, aspect="auto")
        for (i, k), value in np.ndenumerate(values):
            if np.isfinite(value):
                colour = "white" if abs(value) > 3 else "black"
                panel.text(k, i, f"{value:.1f}", ha="center", va="center", size=7, color=colour)
        panel.set_title(str(column), size=9)
        panel.set_xticks(range(len(attacks)), attacks, rotation=60, ha="right", size=7)
        panel.set_yticks(range(len(methods)), [titles[m] for m in methods], size=7)
    bar = figure.colorbar(image, ax=axes.tolist(), fraction=0.03, pad=0.02)
    bar.set_label("worst difference to Local, points (clipped at ±5)", size=7)
    figure.savefig(path)


def write(csv: Path, drawn: Path) -> list[Path]:
    """Write the Markdown beside the table, and the picture; return both."""
    table, titles = read(csv), {row.name: row.title for row in rows(path=METHODS)}
    picture(table, titles, drawn)
    text = csv.with_suffix(".md")
    text.write_text(EXPLANATION + page(table, titles), encoding="utf-8")
    return [text, drawn]
