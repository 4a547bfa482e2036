"""The report's pictures, as data URIs: narrow enough for a phone, and readable in grey.

Each is an SVG with letters as outlines, so it needs no fonts. Heat-maps are small bitmaps inside
it. The two colours, from Okabe and Ito, stay distinct for colour-blind readers.
"""

import base64
import io
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from spcacw_flwr.engine import plots
from spcacw_flwr.engine.plots import BLUE, ORANGE, new_figure, thin
from spcacw_flwr.report.facts import MOST_SILOS, Course, LeaveOneOut, Weights
from spcacw_flwr.report.sentences import largest
from spcacw_flwr.report.words import percent, signed, span

GREY = "#595959"
WIDTH, DPI = 4.5, 150
"""Width in inches: letters of 11 points stay legible on a phone, 330 pixels wide; and DPI."""
SHARES = FuncFormatter(lambda share, _: f"{100 * share:.3g} %")
STYLE: Any = {
    "font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 11,
    "svg.fonttype": "path", "svg.hashsalt": "spcacw", "axes.labelcolor": "#1b1b1b",
    "text.parse_math": False,
}  # fmt: skip


@dataclass(frozen=True)
class Picture:
    """A picture for an <img>."""

    source: str
    """A data URI."""
    alt: str
    """A description for readers who cannot see the picture."""


def _picture(figure: Figure, alt: str) -> Picture:
    content = io.BytesIO()
    figure.savefig(content, format="svg", metadata={"Date": None})
    encoded = base64.b64encode(content.getvalue()).decode("ascii")
    return Picture(f"data:image/svg+xml;base64,{encoded}", alt)


@matplotlib.rc_context(STYLE)
def course(found: Course) -> Picture:
    """Draw the target's metric over epochs with training alone, and the last value's interval."""
    figure, metric = new_figure(WIDTH, 3.1, DPI), found.metric
    axes = figure.add_subplot()
    plots.draw_metric(axes, metric, found.epochs, found.values, found.alone)
    told = metric.label[0].upper() + metric.label[1:]
    alone = f"; training alone ended at {metric.text(found.alone[-1])}" if found.alone else ""
    if found.interval:
        last, (low, high) = found.values[-1], found.interval
        axes.errorbar([found.epochs[-1]], [last], [[max(0.0, last - low)], [max(0.0, high - last)]],
                      color=BLUE, capsize=4, lw=1.4, clip_on=False)  # fmt: skip
        alone += f"; the last one's 95 % interval is {span(metric, found.interval)}"
    return _picture(figure, f"{told} over {len(found.values)} epochs, from "
                    f"{metric.text(found.values[0])} to "
                    f"{metric.text(found.values[-1])}{alone}.")  # fmt: skip


@matplotlib.rc_context(STYLE)
def helpers(weights: Weights) -> Picture:
    """Draw the last α of the heaviest peers as bars, with their mean weights."""
    shown = weights.peers[:MOST_SILOS]
    figure = new_figure(WIDTH, 1.5 + 0.27 * len(shown), DPI)
    axes, rows = figure.add_subplot(), np.arange(len(shown))
    axes.barh(rows, weights.final[shown], color=BLUE, height=0.62, label="at the end")
    axes.plot(weights.mean[shown], rows, "|", color="black", ms=12, mew=2,
              label="mean over the run", clip_on=False)  # fmt: skip
    axes.set_yticks(rows, [f"silo {weights.names[i]}" for i in shown])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0, pad=8)  # a marker at 0 must not hide the name
    _weight_axis(axes, weights, "x")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend([handles[-1], *handles[:-1]], [labels[-1], *labels[:-1]], frameon=False,
                  loc="outside upper center", ncols=2, columnspacing=1.1, handletextpad=0.5,
                  handlelength=1.5)  # fmt: skip
    rest = weights.peers[MOST_SILOS:]
    some = f"The {len(shown)} heaviest peers" if rest else "Peers"
    amount = percent if weights.shares else "{:.3g}".format
    said = ", ".join(f"silo {i} {amount(float(weights.final[i]))}" for i in shown)
    return _picture(figure, f"{some} by weight at the end: {said}.")


def _weight_axis(axes: Axes, weights: Weights, which: Literal["x", "y"]) -> None:
    """Label an axis of weights, in percent if they are shares."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_label_text("weight of the peer" + (" (share of all)" if weights.shares else ""))
    axis.set_major_locator(MaxNLocator(5))
    axes.grid(axis=which, alpha=0.25)
    if weights.shares:
        axis.set_major_formatter(SHARES)
        low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
        limits = (min(0.0, low), max(high, 0.01))
        axes.set_xlim(limits) if which == "x" else axes.set_ylim(limits)


@matplotlib.rc_context(STYLE)
def truth(weights: Weights) -> Picture | None:
    """Draw each peer's weight against its true angle or cluster; None if fewer than 2 are known."""
    if len(weights.gaps) < 2:
        return None
    peers, circular = weights.peers, weights.group_kind == "angle"
    groups = [group or 0.0 for group in weights.groups]
    own, known = groups[weights.target], [groups[i] for i in peers]
    place = [(group - own + 180) % 360 - 180 for group in known] if circular else known
    figure = new_figure(WIDTH, 2.8, DPI)
    axes = figure.add_subplot()
    heights = weights.final[peers]
    if circular:
        axes.vlines(place, 0, heights, color=BLUE, lw=2.4)
    axes.plot(place, heights, "o", color=BLUE, ms=4 if circular else 8, alpha=0.75)
    axes.axvline(0 if circular else own, color=ORANGE, ls="--", lw=1.6, zorder=0)
    axes.set_title("dashed: the target's own " + ("angle" if circular else "group"),
                   color=ORANGE, loc="left")  # fmt: skip
    if circular:
        axes.set_xlim(-184, 184)
        axes.set_xticks(range(-180, 181, 60))
    else:
        axes.set_xticks(sorted(set(known) | {own}))
    axes.set_xlabel("degrees between its images and the target's" if circular
                    else "true group of the peer")  # fmt: skip
    _weight_axis(axes, weights, "y")
    axes.set_ylabel("weight of the peer")
    heaviest = peers[0]
    return _picture(figure, f"Weight of each of {len(peers)} peers against its true "
                    f"{'angle' if circular else 'group'}; the heaviest, silo {heaviest}, "
                    f"is at {weights.gaps[heaviest]:g} from the target.")  # fmt: skip


@matplotlib.rc_context(STYLE)
def over_time(weights: Weights) -> Picture:
    """Draw α over the rounds, by true group or heaviest first; below it, the weight that moved."""
    order = [weights.target, *weights.peers]
    if weights.gaps:
        order = plots.by_group(weights.groups, weights.target, weights.group_kind == "angle")
    figure = new_figure(WIDTH, 2.9 + 0.2 * min(len(order), 16), DPI)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(len(order[:16]) + 3, 6))
    _heat(figure, upper, weights, order)
    rounds = weights.rounds
    groups = np.array_split(np.arange(1, len(rounds)), min(len(rounds) - 1, plots.MOST_POINTS))
    at = [group[np.argmax(weights.moved[group - 1])] for group in groups]
    lower.vlines(rounds[at], 0, weights.moved[np.array(at) - 1], color=GREY, lw=1.4)
    for k in largest(weights):
        share = float(weights.moved[k - 1])
        lower.plot(rounds[k], share, "v", color=ORANGE, ms=8, clip_on=False, zorder=3)
    lower.set_ylim(bottom=0)
    lower.set_ylabel("weight moved")
    if weights.shares:
        lower.yaxis.set_major_formatter(SHARES)
    lower.yaxis.set_major_locator(MaxNLocator(3))
    lower.set_xlabel("round (▼ the largest moves)")
    named = ", ".join(str(rounds[k]) for k in largest(weights)) or "none"
    return _picture(figure, f"Weights of {len(order)} silos over {rounds[-1]} rounds; rounds "
                    f"with the largest moves: {named}.")  # fmt: skip


def _heat(figure: Figure, axes: Axes, weights: Weights, order: list[int]) -> None:
    at = np.array(thin(len(weights.rounds)))
    shown = weights.alphas[at][:, order].T
    edges, top = [*weights.rounds[at], weights.end], float(max(1e-12, shown.max()))
    mesh = plots.heat(axes, shown, edges, top=top)
    axes.set_title("white: exactly no weight", loc="left", color=GREY)
    few = len(order) <= MOST_SILOS
    rows = range(len(order)) if few else plots.some_rows(order, weights.target, 10)
    names = ["target" if order[k] == weights.target else f"silo {weights.names[order[k]]}"
             for k in rows]  # fmt: skip
    axes.set_yticks([row + 0.5 for row in rows], names)
    axes.tick_params(axis="y", length=0)
    bar = figure.colorbar(mesh, ax=axes, aspect=25, pad=0.02)
    bar.locator = MaxNLocator(5)
    if weights.shares:
        bar.formatter = SHARES
    bar.update_ticks()


@matplotlib.rc_context(STYLE)
def leave_one_out(found: LeaveOneOut) -> Picture:
    """Draw the target's loss without each peer, with its interval; below 0 it is a gain."""
    some = sorted(found.absences, key=lambda one: (-one.alpha, one.silo))
    lost, metric = [one.mean for one in some], found.metric
    figure = new_figure(WIDTH, 1.2 + 0.34 * len(some), DPI)
    axes, rows = figure.add_subplot(), np.arange(len(some))
    axes.barh(rows, lost, height=0.5, color=[BLUE if x >= 0 else ORANGE for x in lost])
    axes.errorbar(lost, rows, xerr=[one.margin for one in some], fmt="none", ecolor=GREY, capsize=3)
    for row, one in enumerate(some):
        if found.seeds > 1:
            axes.plot(one.lost, [row] * found.seeds, ".", color="black", ms=5)
    axes.axvline(0, color="black", lw=1)
    labels = [f"silo {one.silo}" + (f" ({percent(one.alpha)})" if 0 <= one.alpha <= 1 else "")
              for one in some]  # fmt: skip
    axes.set_yticks(rows, labels)
    axes.invert_yaxis()
    what = f"{'points of ' if metric.percent else ''}{metric.label}"
    axes.set_xlabel(f"{what} lost without it" + ("\n(dots: seeds)" if found.seeds > 1 else ""))
    said = ", ".join(f"without silo {one.silo} {signed(metric, one.mean)}" for one in some)
    return _picture(figure, f"What the target lost of its {metric.label} without a peer: {said}.")
