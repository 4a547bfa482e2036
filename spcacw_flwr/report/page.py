"""The page: the text, pictures and tables of its parts; written into the run's directory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, StrictUndefined

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.directory import write_atomically
from spcacw_flwr.engine.gate import REASONS
from spcacw_flwr.report import sentences
from spcacw_flwr.report.facts import (
    MOST_SILOS,
    REFUSED,
    Course,
    Facts,
    LeaveOneOut,
    Weights,
    facts_of,
)
from spcacw_flwr.report.words import called, duration, metric_rows, percent, signed, span

if TYPE_CHECKING:
    from spcacw_flwr.report.pictures import Picture

NAME = "report.html"
COLUMNS = {"bias": "bias ‖b̂‖", "sigma": "noise σ", "epsilon": "ε"}


@dataclass(frozen=True)
class Table:
    """A table whose first column names its rows; a table without rows is left out."""

    caption: str
    head: list[str]
    rows: list[list[str]]
    folded: bool = False
    """Whether the table is closed until a click."""


@dataclass(frozen=True)
class Section:
    """A part of the page."""

    name: str
    """The anchor of the part."""
    title: str
    said: Iterable[str]
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()


def sections(facts: Facts) -> Iterator[Section]:
    """Yield the parts of a run's report that the run has content for."""
    from spcacw_flwr.report import pictures  # late: importing Matplotlib takes a second

    course, weights = facts.course, facts.weights
    if said := [*sentences.advice(facts)]:
        yield Section("advice", "Go on with these peers?", said)
    if warnings := facts.run.status.get("warnings"):
        yield Section("warnings", "Warnings", warnings)
    if course.values:
        yield Section("result", "How good the model became", sentences.learning(course),
                      [pictures.course(course)], [_metrics_table(course)])  # fmt: skip
    if weights is None and course.values:
        method = facts.run.config.get("method")
        none = f"The method {method} puts no weight on silos, so this run cannot tell who helped."
        yield Section("helpers", "Who helped", [none])
    if weights is not None and len(weights.final) > 1:
        said = [*sentences.helpers(facts), *sentences.unlike(facts)]
        yield Section("helpers", "Who helped", said, [pictures.helpers(weights)],
                      [_silo_table(weights)])  # fmt: skip
        if (picture := pictures.truth(weights)) and (said := [*sentences.truth(weights)]):
            yield Section("truth", "Against the truth", said, [picture])
        if len(weights.rounds) > 1:
            yield Section("changes", "When the weights changed", sentences.changes(weights),
                          [pictures.over_time(weights)])  # fmt: skip
    if (found := facts.leave_one_out) and found.absences:
        yield Section("without", "With and without each peer", sentences.without(found),
                      [pictures.leave_one_out(found)], [absence_table(found)])  # fmt: skip
    yield Section("replies", "Replies that were not used", sentences.replies(facts),
                  tables=[_reply_table(facts), _silence_table(facts)])  # fmt: skip
    if said := [*sentences.cost(facts)]:
        yield Section("cost", "What it cost", said)
    yield Section("privacy", "Privacy", sentences.privacy(facts), tables=[_privacy_table(facts)])
    yield _configuration(facts)


def tiles(facts: Facts) -> Iterator[tuple[str, str, str]]:
    """Yield the few figures at the top: a label, a value, and its uncertainty or cases."""
    course, weights, metric = facts.course, facts.weights, facts.course.metric
    if course.values:
        sure = f"{span(metric, course.interval)}, " if course.interval else ""
        yield f"{metric.label} at the end", metric.text(course.values[-1]), sure + course.on
    if course.alone and not facts.is_alone:
        yield "training alone", metric.text(course.alone[-1]), course.on
    if course.gain is not None and not facts.is_alone:
        ends, unit = course.gain_interval, "points" if metric.percent else ""
        sure = span(metric, ends, signs=True) if ends else unit
        yield "better than alone by", signed(metric, course.gain), sure
    if weights is not None and weights.shares and not facts.is_alone:
        yield "weight of the peers", percent(float(weights.final[weights.peers].sum())), ""
    if facts.seconds:
        yield "time", duration(facts.seconds), ""


def _metrics_table(course: Course) -> Table:
    """List all metrics, the run's metric first."""
    rows, head = [], ["metric", "at the end"]
    caption = f"The last model on {course.on}, by every metric that applies to them"
    caption += "; below each, its 95 % interval."
    for metric, row in metric_rows(course.table, course.metric.name):
        last, ends, *more = row
        rows.append([metric.label, f"{last}\n{ends}"])
        if more:
            alone, gain, ends = more
            rows[-1] += [alone, f"{gain}\n{ends}"]
    if rows and len(rows[0]) > len(head):
        head += ["alone", "better by"]
        caption += " Better by: than training alone, on the same cases; less than 0 is worse."
    return Table(caption, head, rows)


def _silo_table(weights: Weights) -> Table:
    """List the target and the heaviest peers, and sum up the rest."""
    known = any(group is not None for group in weights.groups)
    title, unit = ("true angle", "°") if weights.group_kind == "angle" else ("true group", "")
    figures = {name: column for name, column in weights.figures.items() if name != REFUSED}
    head = ["silo", "weight", "mean", *(COLUMNS.get(name, name) for name in figures)]
    head += [title] * known
    rest, rows = weights.peers[MOST_SILOS:], []
    for silo in [weights.target, *weights.peers[:MOST_SILOS]]:
        name = weights.names[silo] + " (target)" * (silo == weights.target)
        cells = [_decimal(column[silo]) for column in (weights.final, weights.mean)]
        cells += [_decimal(column[silo], 3) for column in figures.values()]
        group = "–" if weights.groups[silo] is None else f"{weights.groups[silo]:g}{unit}"
        rows.append([name, *cells, *[group] * known])
    caption = "Each silo's weight after the last update, its mean over the run"
    caption += ", and what was found out about it" if figures else ""
    if rest:  # weights can be summed; for other figures the mean is useful
        found = [_decimal(one[rest].sum()) for one in (weights.final, weights.mean)]
        for values in figures.values():
            found.append(_decimal(np.mean(values[rest]), 3))
        rows.append([f"{len(rest)} others", *found, *["–"] * known])
        caption += "; of the others, sums of weights and means of the rest"
    return Table(f"{caption}.", head, rows)


def _decimal(value: np.floating[Any], places: int = 4) -> str:
    return "–" if math.isnan(value) else f"{value:.{places}f}"


def absence_table(found: LeaveOneOut) -> Table:
    """List the target's loss without each of the peers left out."""
    metric = found.metric
    rows = [
        [one.silo, f"{one.alpha:.4f}".replace("nan", "–"), metric.text(one.value),
         signed(metric, one.mean), f"± {metric.text(one.margin).removesuffix(' %')}"]
        for one in found.absences
    ]  # fmt: skip
    lost = "points lost" if metric.percent else "lost"
    head = ["without silo", "weight", metric.label, lost, "95 % interval"]
    caption = f"The target's last {metric.label} without each peer, and what that cost."
    return Table(caption, head, rows)


def _reply_table(facts: Facts) -> Table:
    rows = [
        [silo, REASONS.get(reason, reason), f"{count:,}"]
        for silo, reasons in facts.rejections.items()
        for reason, count in reasons.items()
    ]
    return Table("Replies that were not used.", ["silo", "what came", "times"], rows)


def _silence_table(facts: Facts) -> Table:
    rows = [
        [silo, f"{by['unanswered']:,}", f"{by['since']:,}" if by["since"] else "–"]
        for silo, by in facts.silences.items()
    ]
    head = ["silo", "unanswered", "silent since round"]
    return Table("Questions that were not answered.", head, rows)


def _privacy_table(facts: Facts) -> Table:
    rows = [
        [silo, f"{line['epsilon']:.3g}", f"{line['delta']:.1g}", f"{line['answers']:,}"]
        for silo, line in facts.privacy.items()
    ]
    what = "What each private silo has spent"
    caption = f"{what}: the smaller ε, the less its answers tell of any record."
    return Table(caption, ["silo", "ε", "δ", "answers"], rows)


def _configuration(facts: Facts) -> Section:
    config = facts.run.config
    given = {name: _text(value) for name, value in config.items()}
    said, changed = [], []
    with suppress(SpcacwError, KeyError):  # the setting or the method may be unknown here
        chosen = {name: config[name] for name in ("setting", "method")}
        usual = Config.from_flat(chosen).to_flat() | chosen | {"output": ""}
        changed = [[name, value, default] for name, value in given.items()
                   if (default := _text(usual.get(name, value))) != value]  # fmt: skip
        keys = "key differs" if len(changed) == 1 else "keys differ"
        said.append(f"{len(changed) or 'No'} {keys} from the default.")
    who = "command 'spcacw run --config config.toml'"
    if config.get("setting") == "own" and not config.get("silo"):  # a silo_app
        who = "app that has the data and the model"
    said.append(f"The {who} repeats the run.")
    versions = [[*one] for one in (facts.run.summary.get("versions") or {}).items()]
    tables = [
        Table("Keys that differ from their defaults.", ["key", "value", "default"], changed),
        Table("All keys", ["key", "value"], [[*one] for one in given.items()], folded=True),
        Table("Versions", ["package", "version"], versions, folded=True),
    ]
    return Section("configuration", "Configuration", said, tables=tables)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def tied(value: object) -> object:
    """Keep a number and its percent sign on one line."""
    return value.replace(" %", "\N{NO-BREAK SPACE}%") if isinstance(value, str) else value


def render(facts: Facts) -> str:
    """Return the page; all text from the run is escaped."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, finalize=tied)
    config = facts.run.config
    name = f"{config.get('setting')}, method {config.get('method')}, seed {config.get('seed')}"
    return environment.from_string(PAGE).render(
        title=f"Who helped silo {called(facts.run.names, facts.run.target)}?", name=name,
        style=STYLE, headline=sentences.headline(facts), tiles=[*tiles(facts)],
        sections=sections(facts),
    )  # fmt: skip


def write_report(directory: Path) -> Path:
    """Write ``report.html`` into a run's directory and return its path.

    Raises SpcacwError if the directory holds no run or a damaged file.
    """
    path = directory / NAME
    write_atomically(path, render(facts_of(directory)).encode())
    return path


def write_report_if_possible(directory: Path) -> str:
    """Write the report at the end of a run; return a warning, empty if the report is written.

    An error in a report must not make its run fail.
    """
    try:
        write_report(directory)
    except Exception as error:
        return f"There is no report of this run ({type(error).__name__}: {error})."
    return ""


# The template is a Python string because Flower ships no .html with an app.

STYLE = """
:root { --ink: #1b1b1b; --soft: #565656; --line: #d6d6d6; --paper: #ffffff; --card: #f4f6f8;
  --accent: #0072b2; color-scheme: light dark; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ececec; --soft: #b4b4b4; --line: #444a50; --paper: #16191c; --card: #22272c;
    --accent: #6cb6e8; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 1.0625rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 44rem; margin: 0 auto; padding: 2.25rem 1.25rem 3rem; }
header p, h1, h2, section > p, .texts td, .texts th, dd { overflow-wrap: anywhere; }
.run { margin: 0; color: var(--soft); font-size: .9rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: .25rem 0 1rem; letter-spacing: -.01em; }
h2 { font-size: 1.3rem; line-height: 1.25; margin: 3rem 0 .6rem; padding-top: 1.1rem;
  border-top: 1px solid var(--line); }
.lead { font-size: 1.2rem; line-height: 1.5; margin: 0 0 1.4rem; }
p { margin: 0 0 1rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(7.2rem, 1fr)); gap: .6rem;
  margin: 0; }
.tiles div { background: var(--card); border-radius: .5rem; padding: .7rem .85rem;
  display: flex; flex-direction: column-reverse; justify-content: flex-end; }
.tiles dt { color: var(--soft); font-size: .82rem; line-height: 1.3; }
.tiles dd { margin: 0; font-size: 1.15rem; font-weight: 650; font-variant-numeric: tabular-nums; }
.tiles .sure { order: -1; color: var(--soft); font-size: .82rem; font-weight: 400;
  line-height: 1.3; }
figure { margin: 1.1rem 0; background: #ffffff; border-radius: .5rem; }
figure img { display: block; width: 100%; max-width: 33rem; height: auto; margin: 0 auto; }
@media (prefers-color-scheme: dark) { figure { padding: .7rem; } }
.wide { overflow-x: auto; margin: 1.1rem 0; }
.wide:focus-visible { outline: 2px solid var(--accent); }
table { border-collapse: collapse; width: 100%; font-size: .92rem;
  font-variant-numeric: tabular-nums; }
p.note { color: var(--soft); font-size: .85rem; line-height: 1.45; margin: 1.1rem 0 .3rem; }
.note + .wide { margin-top: 0; }
th, td { padding: .34rem .55rem; text-align: right; border-bottom: 1px solid var(--line); }
thead th { font-weight: 600; color: var(--soft); vertical-align: bottom; line-height: 1.25; }
tbody th { font-weight: 500; }
th:first-child, td:first-child, .texts th, .texts td { text-align: left; }
th:first-child { padding-left: 0; }
.figures th, .figures td { white-space: pre; overflow-wrap: normal; }
.figures td { color: var(--soft); } .figures td::first-line { color: var(--ink); }
.figures thead th, .figures th:first-child { white-space: normal; }
.figures th:first-child { position: sticky; left: 0; background: var(--paper); }
details { margin: .8rem 0; }
summary { cursor: pointer; color: var(--accent); }
.words dt { font-weight: 600; margin-top: .7rem; }
.words dd { margin: 0; color: var(--soft); }
@media (max-width: 30rem) { main { padding: 1.4rem 1rem 2rem; } h1 { font-size: 1.6rem; }
  .lead { font-size: 1.1rem; } h2 { margin-top: 2.2rem; }
  table { font-size: .78rem; } th, td { padding: .34rem .2rem; } }
@media (max-width: 24rem) { main { padding: 1.4rem .6rem 2rem; } table { font-size: .72rem; } }
@page { size: A4; margin: 16mm 18mm; }
@media print {
  :root { --ink: #000; --soft: #444; --line: #bbb; --paper: #fff; --card: #f2f2f2;
    color-scheme: light; }
  body { font-size: 10.5pt; } main { max-width: none; padding: 0; }
  .figures th:first-child { position: static; }
  figure, .figures, tr, p, .tiles { break-inside: avoid; } h2, p { break-after: avoid; }
  h2 { margin-top: 1.4rem; } .wide { overflow: visible; } figure img { max-width: 12cm; } }
"""

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }} – {{ name }}</title>
<style>{{ style | safe }}</style>
</head>
<body>
<main>
<header>
<p class="run">{{ name }}</p>
<h1>{{ title }}</h1>
<p class="lead">{{ headline | join(" ") }}</p>
{%- if tiles %}
<dl class="tiles">
{%- for label, value, sure in tiles %}
<div><dt>{{ label }}</dt><dd class="sure">{{ sure }}</dd><dd>{{ value }}</dd></div>
{%- endfor %}
</dl>
{%- endif %}
</header>
{%- for section in sections %}
<section id="{{ section.name }}">
<h2>{{ section.title }}</h2>
<p>{{ section.said | join(" ") }}</p>
{%- for picture in section.pictures %}
<figure><img src="{{ picture.source }}" alt="{{ picture.alt }}"></figure>
{%- endfor %}
{%- for table in section.tables if table.rows %}
{%- if table.folded %}
<details>
<summary>{{ table.caption }}</summary>
{%- else %}
<p class="note">{{ table.caption }}</p>
{%- endif %}
<div class="wide" tabindex="0">
<table class="{{ 'texts' if table.head[0] in ('key', 'package') else 'figures' }}"
 aria-label="{{ table.caption }}">
<thead><tr>{% for name in table.head %}<th scope="col">{{ name }}</th>{% endfor %}</tr></thead>
<tbody>
{%- for row in table.rows %}
<tr><th scope="row">{{ row[0] }}</th>{% for cell in row[1:] %}<td>{{ cell }}</td>{% endfor %}</tr>
{%- endfor %}
</tbody>
</table>
</div>
{%- if table.folded %}
</details>
{%- endif %}
{%- endfor %}
</section>
{%- endfor %}
<section id="words">
<h2>What the words mean</h2>
<dl class="words">
<dt>Silo, target, peer</dt>
<dd>A silo is a place that holds data, such as a hospital. The target is the one that this model
is for; the others are its peers. Their data stay with them: they send gradients.</dd>
<dt>Weight (α)</dt>
<dd>How much a silo's gradient counts when the target's model takes a step.</dd>
<dt>Bias (‖b̂‖)</dt>
<dd>How far a peer's gradients stray from the target's on average; a peer with data like the
target's has little. It includes some noise of measurement.</dd>
<dt>Noise (σ)</dt>
<dd>How much a silo's gradients vary from one mini-batch to the next.</dd>
<dt>Epoch, round</dt>
<dd>An epoch is the target's pass over its own data; a round is one step of its model.</dd>
</dl>
</section>
</main>
</body>
</html>
"""
