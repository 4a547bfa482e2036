"""The page: what each of its parts says, shows and lists; written beside what it is made from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, StrictUndefined

from spcacw_flwr.config.config import MOVED, Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.recorder import write_atomically
from spcacw_flwr.report import sentences
from spcacw_flwr.report.facts import MOST_SILOS, Course, Facts, LeaveOneOut, Weights, facts_of
from spcacw_flwr.report.read import read
from spcacw_flwr.report.template import PAGE, STYLE
from spcacw_flwr.report.words import called, duration, metric_rows, percent, signed, span

if TYPE_CHECKING:
    from spcacw_flwr.report.pictures import Picture

NAME = "report.html"
COLUMNS = {"bias": "bias ‖b̂‖", "sigma": "noise σ", "closed_form": "closed form", "epsilon": "ε"}
REASONS = {
    "not-finite": "not a number, or infinite", "too-long": "larger than allowed",
    "shape": "of another shape", "dtype": "of another type", "round": "to another question",
    "silo": "for another silo", "malformed": "incomplete", "error": "an error instead",
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """A table whose first column names its rows."""

    caption: str
    head: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Section:
    """A part of the page."""

    name: str
    """Its anchor."""
    title: str
    said: list[str] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    folded: list[Table] = field(default_factory=list)
    """Tables that are opened by a click; like the others, left out if they have no rows."""


def sections(facts: Facts) -> Iterator[Section]:
    """Yield the parts of a run's report; a part of which nothing is known is left out."""
    from spcacw_flwr.report import pictures  # not before: Matplotlib takes a second

    course, weights = facts.course, facts.weights
    if course.values:
        yield Section("result", "How good the model became", sentences.learning(course),
                      [pictures.course(course)], [_metrics_table(course)])  # fmt: skip
    if said := sentences.advice(course):
        yield Section("advice", "Go on with these peers?", said)
    if weights is None and course.values:
        method = facts.run.config.get("method")
        none = f"The method {method} puts no weight on silos, so this run cannot tell who helped."
        yield Section("helpers", "Who helped", [none])
    if weights is not None and len(weights.final) > 1:
        said = sentences.helpers(weights) + sentences.closed_form(weights)
        yield Section("helpers", "Who helped", said, [pictures.helpers(weights)],
                      [_silo_table(weights)])  # fmt: skip
        if (picture := pictures.truth(weights)) and (said := sentences.truth(weights)):
            yield Section("truth", "Against the truth", said, [picture])
        if len(weights.rounds) > 1:
            yield Section("changes", "When the weights changed", sentences.changes(weights),
                          [pictures.over_time(weights)])  # fmt: skip
    if (found := facts.leave_one_out) and found.absences:
        yield Section("without", "With and without each peer", sentences.without(found),
                      [pictures.leave_one_out(found)], [_absence_table(found)])  # fmt: skip
    yield Section("replies", "Replies that were not used", sentences.replies(facts),
                  tables=[_reply_table(facts)])  # fmt: skip
    if said := sentences.cost(facts):
        yield Section("cost", "What it cost", said)
    yield Section("privacy", "Privacy", sentences.privacy(facts), tables=[_privacy_table(facts)])
    yield _configuration(facts)


def tiles(facts: Facts) -> list[tuple[str, str]]:
    """Return the few figures at the top: a label and a value each."""
    course, weights, found = facts.course, facts.weights, []
    metric = course.metric
    if course.values:
        found.append((f"{metric.label} at the end", metric.text(course.values[-1])))
    if course.interval and course.cases:
        found.append((f"95 % interval, {course.on}", span(metric, course.interval)))
    if course.alone and facts.run.config.get("method") != "local":
        found.append(("training alone", metric.text(course.alone[-1])))
    if course.gain is not None:
        unit = " points" if metric.percent else ""
        found.append(("better than alone by", signed(metric, course.gain) + unit))
    if course.gain_interval:
        ends = span(metric, course.gain_interval, signs=True)
        found.append(("95 % interval of that", ends))
    if weights is not None and weights.shares:
        share = float(weights.final[weights.peers].sum())
        found.append(("weight of the peers", percent(share)))
    if seconds := facts.run.summary.get("seconds") or facts.total("seconds"):
        found.append(("time", duration(seconds)))
    return found


def _metrics_table(course: Course) -> Table:
    """List all metrics, that of the run first; of runs of older versions none is known."""
    cells = metric_rows(course.table, course.metric.name)
    rows = [[metric.label, *row] for metric, row in cells]
    head = ["metric", "at the end", "95 % interval"]
    caption = f"The last model on {course.on}, by every metric that applies to them."
    if rows and len(rows[0]) > len(head):
        head += ["alone", "better by", "95 % interval"]
        caption += " Better by: than training alone, on the same cases; less than 0 is worse."
    return Table(caption, head, rows)


def _silo_table(weights: Weights) -> Table:
    """List the target and the heaviest peers, and sum up the rest."""
    known = any(group is not None for group in weights.groups)
    title, unit = ("true angle", "°") if weights.group_kind == "angle" else ("true group", "")
    head = ["silo", "weight", "mean", *(COLUMNS.get(name, name) for name in weights.figures)]
    head += [title] if known else []
    shown, rest = weights.peers[:MOST_SILOS], weights.peers[MOST_SILOS:]
    rows = []
    for silo in [weights.target, *shown]:
        group = weights.groups[silo]
        last = ["–" if group is None else f"{group:g}{unit}"] if known else []
        figures = [_decimal(values[silo]) for values in weights.figures.values()]
        name = weights.names[silo] + " (target)" * (silo == weights.target)
        rows.append([name, _decimal(weights.final[silo]), _decimal(weights.mean[silo]),
                     *figures, *last])  # fmt: skip
    if rest:
        sums = (weights.final[rest].sum(), weights.mean[rest].sum())
        lemma = {"closed_form": np.sum}  # shares add up; of the others the mean is telling
        figures = [_decimal(lemma.get(name, np.mean)(values[rest]))
                   for name, values in weights.figures.items()]  # fmt: skip
        rows.append([f"{len(rest)} others", *map(_decimal, sums), *figures, *["–"] * known])
    caption = "Each silo's weight after the last update, its mean over the run"
    caption += ", and what was found out about it" if weights.figures else ""
    caption += "; of the others, sums of weights and means of the rest." if rest else "."
    return Table(caption, head, rows)


def _decimal(value: np.floating[Any]) -> str:
    return "–" if math.isnan(value) else f"{value:.4f}"


def _absence_table(found: LeaveOneOut) -> Table:
    metric = found.metric
    rows = [
        [str(one.silo), f"{one.alpha:.4f}".replace("nan", "–"), metric.text(one.value),
         signed(metric, one.mean), f"± {metric.text(one.margin).removesuffix(' %')}"]
        for one in found.absences
    ]  # fmt: skip
    lost = "points lost" if metric.percent else "lost"
    head = ["without silo", "weight", metric.label, lost, "95 % interval"]
    caption = f"The target's last {metric.label} without each peer, and what that cost."
    return Table(caption, head, rows)


def _reply_table(facts: Facts) -> Table:
    rows = [
        [str(silo), REASONS.get(reason, reason), f"{count:,}"]
        for silo, reasons in sorted((facts.rejections or {}).items())
        for reason, count in reasons.items()
    ]
    return Table("Replies that were not used.", ["silo", "what came", "times"], rows)


def _privacy_table(facts: Facts) -> Table:
    rows = [
        [str(silo), f"{line['epsilon']:.3g}", f"{line['delta']:.1g}", f"{line['answers']:,}"]
        for silo, line in sorted(facts.privacy.items())
    ]
    caption = (
        "What each private silo has spent: the smaller ε, the less its answers tell of any record."
    )
    return Table(caption, ["silo", "ε", "δ", "answers"], rows)


def _configuration(facts: Facts) -> Section:
    given = {MOVED.get(name, name): _text(value) for name, value in facts.run.config.items()}
    usual, said = _usual(facts.run.config), []
    changed = [[name, value, usual[name]] for name, value in given.items()
               if usual.get(name, value) != value]  # fmt: skip
    if usual:
        said.append(f"{len(changed) or 'No'} key{'s differ' if len(changed) != 1 else ' differs'} "
                    "from the default.")  # fmt: skip
    said.append("The command 'spcacw run --config config.toml' repeats the run.")
    table = Table("Keys that differ from their defaults.", ["key", "value", "default"], changed)
    versions = facts.run.summary.get("versions") or {}
    folded = [
        Table("All keys", ["key", "value"], [[*one] for one in given.items()]),
        Table("Versions", ["package", "version"], [[*one] for one in versions.items()]),
    ]
    return Section("configuration", "Configuration", said, tables=[table], folded=folded)


def _usual(config: dict[str, Any]) -> dict[str, str]:
    """Return the defaults of the run's setting and method; empty if they are not known here."""
    try:
        chosen = {name: config[name] for name in ("setting", "method")}
        known = Config.from_flat(chosen).to_flat()
    except (SpcacwError, KeyError):
        return {}
    return {name: _text(value) for name, value in (known | chosen | {"output": ""}).items()}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def tied(value: object) -> object:
    """Keep a number and its percent sign on one line."""
    return value.replace(" %", "\N{NO-BREAK SPACE}%") if isinstance(value, str) else value


def render(facts: Facts) -> str:
    """Return the page; whatever comes from the run is escaped."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, finalize=tied)
    config = facts.run.config
    name = f"{config.get('setting')}, method {config.get('method')}, seed {config.get('seed')}"
    return environment.from_string(PAGE).render(
        title=f"Who helped silo {called(facts.run.summary, facts.target)}?", name=name, style=STYLE,
        headline=sentences.headline(facts), tiles=tiles(facts), sections=sections(facts),
    )  # fmt: skip


def write_report(directory: Path) -> Path:
    """Write ``report.html`` into a run's directory and return its path.

    Raises SpcacwError if the directory holds no run, or a file of it is damaged.
    """
    path = directory / NAME
    write_atomically(path, render(facts_of(read(directory))).encode())
    return path


def write_report_if_possible(directory: Path) -> str:
    """Write the report at the end of a run; return a warning, empty if all is well.

    Whatever goes wrong with a report must not cost the run that it is about.
    """
    try:
        write_report(directory)
    except Exception as error:
        return f"There is no report of this run ({type(error).__name__}: {error})."
    return ""
