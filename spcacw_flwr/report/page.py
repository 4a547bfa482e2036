"""Put the report together and write it beside the artefacts it is made from."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, StrictUndefined

from spcacw_flwr.engine.recorder import write_atomically
from spcacw_flwr.report.facts import Facts, facts_of
from spcacw_flwr.report.read import read
from spcacw_flwr.report.sentences import headline
from spcacw_flwr.report.template import PAGE, STYLE

NAME = "report.html"


def tied(value: object) -> object:
    """Keep a number and its percent sign on one line."""
    return value.replace(" %", "\N{NO-BREAK SPACE}%") if isinstance(value, str) else value


def render(facts: Facts) -> str:
    """Return the page; whatever comes from the run is escaped."""
    from spcacw_flwr.report.sections import sections, tiles  # here: they draw, by Matplotlib

    environment = Environment(autoescape=True, undefined=StrictUndefined, finalize=tied)
    config = facts.run.config
    name = f"{config.get('setting')}, method {config.get('method')}, seed {config.get('seed')}"
    return environment.from_string(PAGE).render(
        title=f"Who helped silo {facts.target}?", name=name, style=STYLE,
        headline=headline(facts), tiles=tiles(facts), sections=sections(facts),
    )  # fmt: skip


def write_report(directory: Path) -> Path:
    """Write ``report.html`` into a run's directory and return its path.

    Raises
    ------
    SpcacwError
        If the directory holds no run, or a file of it is damaged.
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
