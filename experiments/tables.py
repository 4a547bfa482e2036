"""The tables of studies as Markdown beside their CSV, and the picture of privacy: from it alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from spcacw_flwr.engine.plots import new_figure

from .conf import read
from .pages import NONE, cell, fields, table
from .studies import STUDIES

OPTIONS = fields(
    "best_accuracy: best %: ±.2f; last_accuracy: last %: ±.2f; alpha_target: α of the target: .3f;"
    "alpha_cluster: α of its cluster: .3f; floats: floats: .2g; regret: regret R_T: .2f;"
    "regret_bound: bound: .2g"
)
BELOW = 6.0
"""Points below training alone at which the picture of accuracies ends; the table goes on."""


@dataclass(frozen=True)
class Look:
    """A line of the picture of privacy."""

    title: str
    mark: str = "o-"
    colour: str = "C0"


PRIVATE = {
    "all": Look("SP-CACW, all peers private"),
    "sampled": Look("SP-CACW, all private, sampled batches", "s-", "C1"),
    "one": Look("SP-CACW, only silo 2 private", "^-", "C2"),
    "average-noisy": Look("average of the true cluster, all private", "x:", "C3"),
}
REFERENCES = {
    "spcacw": Look("SP-CACW, nobody private", "--"),
    "clipped": Look("SP-CACW, samples clipped, no noise", ":"),
    "average": Look("average of the true cluster, nobody private", "--", "C3"),
    "average-clipped": Look("average of the true cluster, samples clipped, no noise", ":", "C3"),
    "local": Look("training alone", "-.", "0.3"),
}


def options(lines: pd.DataFrame) -> str:
    """Return the page: a table a study and column, means over seeds (± sample deviation)."""
    titles = {grid["study"]: grid["title"] for grid in read(STUDIES)["options"]["grid"]}
    parts = []
    for study, rows in lines.groupby("study", sort=False):
        parts += [f"## {titles[study]}", ""]
        for column, of in rows.groupby("column", sort=False):
            names = list(json.loads(of["keys"].iloc[0]))
            shown = [
                [*(f"`{json.dumps(value)}`" for value in json.loads(keys).values()),
                 *(cell(lines[name], form) for name, _, form in OPTIONS)]
                for keys, lines in of.groupby("keys", sort=False)
            ]  # fmt: skip
            seeds = ", ".join(str(seed) for seed in sorted(set(of.seed)))
            heads = [*names, *(title for _, title, _ in OPTIONS)]
            body = table(heads, shown, "l" * len(names) + "r")
            parts += [f"`{column}`, seeds {seeds}", "", *body, ""]
    return "\n".join(parts)


def in_order(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the lines by setting, variant (references first), noise and seed."""
    order = {name: k for k, name in enumerate([*REFERENCES, *PRIVATE])}
    return rows.sort_values(
        ["setting", "variant", "noise", "seed"],
        key=lambda of: of.map(order) if of.name == "variant" else of,
    )


def privacy(rows: pd.DataFrame) -> str:
    """Return a Markdown table, means over seeds (± sample deviation of the accuracy)."""
    rows = in_order(rows)
    titles = {name: look.title for name, look in {**REFERENCES, **PRIVATE}.items()}
    heads = ["setting", "who", "z", "ε", "last %", "α of the target", "α of private silos"]
    lines = []
    for (setting, variant, noise), of in rows.groupby(["setting", "variant", "noise"], sort=False):
        private = noise or of.alpha_private.any()
        lines.append([
            f"`{setting}`", titles[variant], f"{noise:g}" if noise else NONE,
            f"{of.epsilon.max():.3g}" if noise else NONE,
            cell(of.last_accuracy, "±.2f"), cell(of.alpha_target, ".3f"),
            cell(of.alpha_private, ".3f") if private else NONE,
        ])  # fmt: skip
    return "\n".join(table(heads, lines, "llr"))


def draw_privacy(rows: pd.DataFrame, path: Path) -> None:
    """Draw, for each setting, ε against accuracy and against the weights of private silos."""
    rows = in_order(rows)
    settings = list(dict.fromkeys(rows.setting))
    figure = new_figure(11.0, 4.2 * len(settings))
    for setting, (left, right) in zip(
        settings, figure.subplots(len(settings), 2, squeeze=False), strict=True
    ):
        of = rows[rows.setting == setting]
        for name, reference in REFERENCES.items():
            level = of[of.variant == name].last_accuracy.mean()
            left.axhline(level, ls=reference.mark, color=reference.colour, label=reference.title,
                         lw=1)  # fmt: skip
        for name, variant in PRIVATE.items():
            _curve(left, of[of.variant == name], "last_accuracy", variant, variant.title)
            if name != "average-noisy":
                _curve(right, of[of.variant == name], "alpha_private", variant, variant.title)
        clean = Look("there, silo 1 of the same cluster, not private", "^--", "C2")
        _curve(right, of[of.variant == "one"], "alpha_silo1", clean, clean.title)
        alone = of[of.variant == "local"].last_accuracy.min()
        left.set_ylim(bottom=alone - BELOW)
        left.set_ylabel("target's last accuracy (%)")
        right.set_ylabel("last α, summed over the private silos")
        right.set_ylim(bottom=0)
        left.set_title(f"{setting}: accuracy")
        right.set_title(f"{setting}: weight that private silos keep")
        for axes in (left, right):
            axes.set_xscale("log")
            axes.invert_xaxis()
            axes.set_xlabel("ε at δ = 1e-5 (more private to the right)")
            axes.grid(alpha=0.3)
            axes.legend(fontsize=7)
    figure.savefig(path)


def _curve(axes: Axes, rows: pd.DataFrame, column: str, variant: Look, title: str) -> None:
    """Draw means over seeds, with bars from the least to the largest."""
    cells = rows.groupby("noise")
    mean, low, high = (getattr(cells[column], how)() for how in ("mean", "min", "max"))
    axes.errorbar(
        cells.epsilon.max(), mean, [mean - low, high - mean], fmt=variant.mark,
        color=variant.colour, label=title, capsize=2, ms=4, lw=1,
    )  # fmt: skip


TABLES: dict[str, Callable[[pd.DataFrame], str]] = {"options": options, "privacy": privacy}
"""What makes a study's tables."""


def write(name: str, csv: Path, picture: Path | None) -> list[Path]:
    """Write a study's tables beside its CSV, and its picture where it has one; return the files."""
    if name not in TABLES:
        return []
    lines, path = pd.read_csv(csv), csv.with_suffix(".md")
    path.write_text(TABLES[name](lines).strip() + "\n", encoding="utf-8")
    if name != "privacy" or picture is None:
        return [path]
    draw_privacy(lines, picture)
    return [path, picture]
