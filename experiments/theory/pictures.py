"""The studies' pictures, drawn from their tables."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from spcacw_flwr.engine import plots
from spcacw_flwr.engine.plots import new_figure

from .problems import Logistic, Quadratics
from .trials import best

LOOKS = {
    "Autarky": ("0.35", "s"), "uniform FL": ("tab:purple", "D"),
    "Oracle (α uniform on I₀)": ("black", "x"), "SP-CACW, β = 1/t": ("tab:blue", "o"),
    "SP-CACW, β = .1": ("tab:cyan", "v"),
    "SP-CACW, β = 1/t, FTAL": ("tab:green", "^"),
    "SP-CACW, β = 1/t, T × 4": ("navy", "o"), "FC, told n₀": ("tab:orange", "P"),
    "FC, told n₀, Δ = 4σ": ("tab:brown", "P"), "FC, τ = √(σΔ)": ("tab:red", "*"),
    "Lemma 3.1, told b and σ": ("black", "x"), "cosine of mean gradients": ("tab:red", "*"),
    "inverse variance, told σ": ("tab:orange", "P"),
}  # fmt: skip
ERROR = "err$_T$ = (1/T) Σ ‖∇f$^{(0)}$(w$_t$)‖²"
THEORY: dict[str, Any] = {"color": "0.6", "linewidth": 0.9, "linestyle": "--"}


def line(axes: Axes, rows: pd.DataFrame, label: str, text: str = "", of: str = "error") -> None:
    """Draw a method's error with two standard errors."""
    colour, marker = LOOKS.get(label, (None, "o"))
    axes.errorbar(
        rows["x"], rows[of], 2 * rows["standard_error"], color=colour, marker=marker,
        markersize=5, linewidth=1.3, capsize=2, label=text or label,
    )  # fmt: skip


def label_each(axes: Axes, values: pd.Series) -> None:
    """Label exactly those x on the axis that were run."""
    ticks = sorted(set(values))
    axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
    axes.xaxis.set_minor_locator(NullLocator())


def logarithmic(axes: Axes, across: str, title: str, up: str = ERROR) -> None:
    """Scale, name and title the axes."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.set_title(title, fontsize=10)
    axes.grid(visible=True, which="major", color="0.92")
    axes.set_axisbelow(True)


def rates(
    path: Path, table: pd.DataFrame, slopes: pd.DataFrame, across: str, title: str,
    floor: float = 0.0,
) -> None:  # fmt: skip
    """Draw error against T or n₀, with the fitted slopes in the legend."""
    figure = new_figure(9.4, 5.2)
    axes = figure.add_subplot()
    chosen = best(table)
    fitted = slopes[slopes["step_size"] == "best"].set_index("label")
    for label, rows in chosen.groupby("label", sort=False):
        found = fitted.loc[label]
        words = f"slope {found['slope']:.2f} [{found['low']:.2f}, {found['high']:.2f}]"
        line(axes, rows, label, f"{label}\n  " + words.replace("-", "−"))
    for label in ("Autarky", "Oracle (α uniform on I₀)"):
        exponent = fitted.loc[label, "theory"]
        name = "theory: " + ("slope −½" if exponent else "no change")
        known = axes.get_legend_handles_labels()[1]
        x, y = chosen.loc[chosen["label"] == label, ["x", "error"]].to_numpy().T
        guide = y[0] * (x / x[0]) ** exponent  # through the line's first point
        axes.plot(x, guide, label=name if name not in known else "", zorder=1, **THEORY)
    if floor:
        axes.axhline(floor, color="tab:purple", linewidth=0.9, linestyle=":")
        axes.text(chosen["x"].max(), 1.02 * floor, "FL's floor (M − n₀)²‖b‖²/M²", fontsize=8,
                  color="tab:purple", va="bottom", ha="right")  # fmt: skip
    logarithmic(axes, across, title)
    label_each(axes, chosen["x"])
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    plots.save(figure, path)


def separation(path: Path, table: pd.DataFrame) -> None:
    """Draw error, and weight on the off-target cluster, against Δ/σ."""
    figure = new_figure(11, 4.6)
    left, right = figure.subplots(1, 2)
    for label, rows in table.groupby("label", sort=False):
        line(left, rows, label)
        colour, marker = LOOKS[label]
        right.plot(rows["x"], rows["off_weight"], color=colour, marker=marker, markersize=5)
    x = np.array(sorted(set(table["x"])))
    oracle = table[table["label"] == "Oracle (α uniform on I₀)"]["error"].mean()
    # FC's bound in units of the Oracle's error: √(1/n₀ + σ/Δ) / √(1/n₀).
    own = Quadratics.own
    left.plot(x, oracle * np.sqrt(1 + own / x), label="shape of FC's bound", **THEORY)
    logarithmic(left, "Δ/σ = ‖b‖/σ", "Error")
    left.set_ylim(0.03, 1.0)  # uniform FL's larger errors are outside the picture
    left.legend(fontsize=7.5, loc="upper right")
    right.set_xscale("log")
    right.set_xlabel("Δ/σ = ‖b‖/σ")
    right.set_ylabel("mean of Σ α$^{(i)}$ over the off-target cluster")
    right.set_title("Weight on the off-target cluster", fontsize=10)
    for axes in (left, right):
        label_each(axes, table["x"])
    figure.suptitle("Separation of the clusters: quadratics, n₀ = 8 of M = 16, T = 1000, "
                    "η = 2 × formula", fontsize=10)  # fmt: skip
    plots.save(figure, path)


BETA_COLOURS = {0.0: "tab:blue", 0.01: "tab:green", 0.1: "tab:red"}
CASES = {"stationary": "tab:blue", "moves with w (A_off = 2A)": "tab:orange",
         "appears at T/2": "tab:red"}  # fmt: skip


def moving(path: Path, traces: pd.DataFrame, table: pd.DataFrame) -> None:
    """Draw the error of b̂ against t for each kind of bias, and the training error against β."""
    figure = new_figure(11, 8)
    panels = figure.subplots(2, 2).flatten()
    for axes, case in zip(panels, CASES, strict=False):
        for beta, rows in traces[traces["label"] == case].groupby("beta"):
            name = f"β = {beta:g}" if beta else "β = 1/t"
            axes.plot(rows["t"], rows["estimate"], color=BETA_COLOURS[beta], label=name)
            axes.plot(rows["t"], rows["theory"], **THEORY)
        if case == "stationary":
            axes.plot([], [], label="theory", **THEORY)
        logarithmic(axes, "round t", f"b {case}", "mean of ‖b̂$_t$ − b$_t$‖²")
        if "T/2" in case:
            axes.set_xscale("linear")
        axes.legend(fontsize=8)
    axes = panels[3]
    for case, colour in CASES.items():
        rows = table[table["label"] == case].set_index("x")
        swept = rows[rows.index > 0]
        axes.errorbar(swept.index, swept["error"], 2 * swept["standard_error"], color=colour,
                      marker="o", markersize=4, capsize=2, label=case)  # fmt: skip
        axes.axhline(rows.loc[0, "error"], color=colour, linestyle="-.", linewidth=1)
        axes.axhline(rows.loc[-1, "error"], color=colour, linestyle=":", linewidth=1)
    axes.plot([], [], color="0.4", linestyle="-.", label="β = 1/t")
    axes.plot([], [], color="0.4", linestyle=":", label="Oracle")
    logarithmic(axes, "β", "Training with SP-CACW")
    axes.set_ylim(bottom=0.028)
    axes.legend(fontsize=8, loc="lower center", ncol=2)
    plots.save(figure, path)


def schedule(path: Path, table: pd.DataFrame) -> None:
    """Draw error against K and against T_start."""
    figure = new_figure(10.5, 4.2)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, axis in zip(panels, ("K", "T_start"), strict=True):
        for label, rows in table[table["label"].str.startswith(axis)].groupby("label", sort=False):
            line(axes, rows, "", label.partition(": ")[2])
        for label, style in (("Autarky, same η", "--"), ("Oracle (α uniform on I₀)", ":")):
            error = table.loc[table["label"] == label, "error"].iloc[0]
            axes.axhline(error, color="0.4", linestyle=style, linewidth=1, label=label)
        what = "rounds between updates of α" if axis == "K" else "first round that counts"
        logarithmic(axes, f"{axis.replace('T_start', 'T$_{start}$')}, {what}", "")
    panels[1].set_ylabel("")
    panels[0].set_title("T$_{start}$ = 1", fontsize=10)
    panels[1].set_title("K = 20", fontsize=10)
    panels[0].legend(fontsize=8)
    figure.suptitle("SP-CACW on quadratics, n₀ = 8 of M = 16, T = 1000, η = 2 × formula",
                    fontsize=10)  # fmt: skip
    plots.save(figure, path)


def participation(path: Path, draws: pd.DataFrame, table: pd.DataFrame) -> None:
    """Draw G̃(α)'s variance next to the proposition's, and the training error, against p."""
    figure = new_figure(10, 4)
    left, right = figure.subplots(1, 2)
    some = draws[draws["p"] < 1]
    left.errorbar(some["p"], some["variance"], 2 * some["variance_error"], fmt="o", capsize=3,
                  label=f"simulated, {int(some['draws'].iloc[0]):,} draws of z")  # fmt: skip
    p = np.geomspace(0.09, 0.6, 50)
    scale = 1 / (1 / some["p"].iloc[0] - 1)
    for column, style, name in (("theory_peers", "-", "sum over the peers"),
                                ("theory_all", "--", "sum over all silos")):  # fmt: skip
        value = some[column].iloc[0] * scale
        left.plot(p, (1 / p - 1) * value, color="0.5", linestyle=style, linewidth=1,
                  label=f"(1/p − 1) Σ α²‖g‖², {name}")  # fmt: skip
    logarithmic(left, "participation p", "Variance of G̃(α)", "E ‖G̃(α) − Σ α g‖²")
    left.legend(fontsize=8)
    for label, rows in table.groupby("label", sort=False):
        line(right, rows, label)
    logarithmic(right, "participation p", "Training, T = 1000, η = 2 × formula")
    right.legend(fontsize=8)
    for axes in (left, right):
        label_each(axes, table["x"])
    plots.save(figure, path)


def noises(path: Path, table: pd.DataFrame) -> None:
    """Draw excess loss, and the weight of the shifted silo, against the ratio of variances."""
    figure = new_figure(11, 7.4)
    panels = figure.subplots(2, 2, sharex=True)
    for (shift, rows), (above, below) in zip(table.groupby("shift"), panels.T, strict=True):
        for label, each in rows.groupby("label", sort=False):
            line(above, each, label, of="excess")
            colour, marker = LOOKS[label]
            below.plot(each["x"], each["off"], color=colour, marker=marker, markersize=5)
        across = "σ² of target and peer / σ² of the shifted silo"
        logarithmic(above, "", f"Shifted silo of {shift}", "excess loss of the target")
        label_each(above, table["x"])
        below.set_xlabel(across)
        below.set_ylabel("α of the shifted silo at the end")
    known = panels[0, 0].get_legend_handles_labels()
    figure.legend(*known, loc="outside lower center", ncol=4, fontsize=8)
    plots.save(figure, path)


def draw(tables: dict[str, pd.DataFrame], to: Path) -> None:
    """Draw all pictures."""
    slopes = tables["slopes"].groupby("study")
    problem, logistic = Quadratics(), Logistic()
    half = problem.off / (problem.own + problem.off)
    for name, across, title, floor in (
        ("quadratics-rounds", "T, rounds", "Quadratics: n₀ = 8 of M = 16, σ² = 10, ‖b‖ = 1, L = 1, "
         "δ₁ = 1, d = 20", half**2 * problem.distance**2),
        ("quadratics-helpers", "n₀, silos of the target's cluster",
         "Quadratics: M = n₀ + 8, T = 1000, σ² = 10, ‖b‖ = 1", 0.0),
        ("logistic-rounds", "T, rounds", f"Logistic regression: n₀ = 8 of M = 16, "
         f"σ² = {logistic.variance:.1f}, L = {logistic.smoothness:.2f}, δ₁ = {logistic.gap:.2f}, "
         "labels turned by 90°", 0.0),
    ):  # fmt: skip
        rates(to / f"{name}.png", tables[name], slopes.get_group(name), across, title, floor)
    separation(to / "separation.png", tables["separation"])
    moving(to / "moving-bias.png", tables["bias-estimates"], tables["moving-bias"])
    noises(to / "unequal-noise.png", tables["unequal-noise"])
    schedule(to / "schedule.png", tables["schedule"])
    draws, training = tables["participation"], tables["participation-training"]
    participation(to / "participation.png", draws, training)
