"""The commands of ``python -m spcacw_flwr.experiments``: tables, studies, attacks and pages.

``spcacw table1`` and ``spcacw federations`` are two of them.
"""

import functools
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from spcacw_flwr.config.config import absolute, parse_assignments, read_toml
from spcacw_flwr.config.declare import SpcacwError, names_in
from spcacw_flwr.console import new_console, one_sentence, say
from spcacw_flwr.engine.directory import write_atomically

from . import conf, federations, overviews, pages, readings, shapley, studies, table1
from .attacks import ATTACKS, study
from .sweep import Where

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
RESULTS = Path("experiments/results")
OVERVIEWS = {"ranks": overviews.rank_table, "gains": overviews.gain_table}
"""Tables made from the CSV of other tables."""
KINDS = {"calibration": readings, "variants": readings, "shapley": shapley}
"""Who makes the studies that are no grid of runs."""

Columns = Annotated[str, typer.Option(help="comma-separated, or TOML files; empty is all")]
Rows = Annotated[str, typer.Option(help="comma-separated, first things first; empty is all")]
Seeds = Annotated[str, typer.Option(help="as 0-4,7")]
DataDir = Annotated[Path | None, typer.Option(help="directory of the data sets")]
Workers = Annotated[int, typer.Option(help="processes; 0 is one for each core or device")]
Device = Annotated[str, typer.Option(help="comma-separated; one named twice takes two runs")]
Minutes = Annotated[
    float, typer.Option(help="after which unfinished runs are left for another time")
]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="any key")]
SetNew = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="any key; lines that are there stay"),
]
"""For tables whose lines are found again by columns that do not name all keys."""
Ray = Annotated[
    str, typer.Option("--ray-address", help="a Ray cluster's, or local; empty: processes here")
]
ReportOnly = Annotated[bool, typer.Option("--report-only", help="run nothing")]


def more_keys(data_dir: Path | None, engine: str, assignments: list[str] | None) -> dict[str, Any]:
    """Return the keys that the command line adds to every run."""
    where = {"data-dir": absolute(str(data_dir))} if data_dir else {}
    return {**where, "engine": engine, **parse_assignments(assignments or [])}


def shares_of(text: str) -> list[float]:
    """Return comma-separated shares; SpcacwError unless they are numbers in (0, 1]."""
    found: list[float] = []
    with suppress(ValueError):
        found = [float(word) for word in names_in(text)]
    if not found or not all(0 < share <= 1 for share in found):
        raise SpcacwError(f"--shares {text}: each must be a number in (0, 1].")
    return found


def tell_what_stays(table: Path, assignments: list[str] | None) -> None:
    """Say that a table's lines may be of other keys than those that the command line adds."""
    if assignments and table.exists():
        say(f"{table}: its lines stay, whatever keys their runs had.")


def files_of(command: Callable[..., list[Path]]) -> Callable[..., None]:
    """Print the files that a command made, or one sentence that says why it failed."""

    @functools.wraps(command)
    @one_sentence("stopped; the same command goes on from here.")
    def printed(*args: Any, **kwargs: Any) -> None:
        for file in command(*args, **kwargs):
            say(str(file))

    return printed


@app.command("table1")
@files_of
def table(
    columns: Columns = "", rows: Rows = "", seeds: Seeds = "0-4", data_dir: DataDir = None,
    output: Annotated[Path, typer.Option(help="directory of all results")] = Path("runs/table1"),
    workers: Workers = 0, device: Device = "cpu",
    engine: Annotated[str, typer.Option(help="in-process or ray")] = "in-process",
    tuned: Annotated[bool, typer.Option("--tuned", help="keys from experiments/tuned")] = False,
    validation: Annotated[
        bool, typer.Option(help="also the twins that choose the honest epoch")
    ] = True,
    targets: Annotated[str, typer.Option(help="all, or silos: each as target in turn")] = "",
    minutes: Minutes = math.inf, report_only: ReportOnly = False, set_: Set = None,
    ray: Ray = "",
) -> list[Path]:  # fmt: skip
    """Fill and write the paper's Table 1; with --targets, the table over silos as targets."""
    more = more_keys(data_dir, engine, set_)
    of, which = conf.columns(names_in(columns)), conf.rows(names_in(rows))
    where = Where(output, tuple(names_in(device)), workers, report_only, 60 * minutes, ray)
    if targets:
        jobs = table1.silo_jobs(of, which, conf.numbers(seeds), more, targets, tuned)
        return table1.report_silos(jobs, where.run(jobs, new_console()), of, which, output)
    jobs = conf.make_jobs(of, which, conf.numbers(seeds), more, tuned=tuned, validation=validation)
    runs = where.run(jobs, new_console())
    return table1.report(jobs, runs, of, which, output, "table1-tuned" if tuned else "table1")


@app.command("federations")
@files_of
def selfish(
    setting: Annotated[str, typer.Option(help="comma-separated; empty is all listed")] = "",
    methods: Rows = "", seeds: Seeds = "",
    sizes: Annotated[str, typer.Option(help="rows of the target, 0 is all; as 20,40,0")] = "",
    data_dir: DataDir = None,
    output: Annotated[Path, typer.Option(help="directory of results")] = Path("runs/federations"),
    workers: Workers = 0,
    minutes: Minutes = math.inf, report_only: ReportOnly = False, set_: Set = None,
    ray: Ray = "",
) -> list[Path]:  # fmt: skip
    """Gain over Local, and harm, on real federations: every silo as the target, few data or all."""
    listed = read_toml(conf.CONF / "federations.toml")
    default, other, trials = (listed.pop(name) for name in ("methods", "other", "trials"))
    of = list(dict.fromkeys(["local", *(names_in(methods) or default)]))
    asked = {"seeds": seeds, "sizes": sizes and conf.numbers(sizes)}
    more = more_keys(data_dir, "in-process", set_)
    jobs = []
    for name in names_in(setting) or listed:
        plan = listed.get(name, other) | {key: value for key, value in asked.items() if value}
        jobs += federations.jobs_of(name, plan, of, more, {} if methods else trials)
    where = Where(output, ("cpu",), workers, report_only, 60 * minutes, ray)
    return federations.federations(jobs, where, new_console())


@app.command("studies")
@files_of
def run_studies(
    which: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="none is all")] = None,
    data_dir: DataDir = None,
    results: Annotated[Path, typer.Option(help="directory of the CSV")] = RESULTS,
    picture: Annotated[Path | None, typer.Option(help="PNG of the study of privacy")] = None,
    file: Annotated[Path, typer.Option(help="TOML that lists the studies")] = studies.STUDIES,
    runs: Annotated[Path, typer.Option(help="directory of the runs")] = Path("runs/studies"),
    workers: Workers = 0, device: Device = "cpu",
    report_only: ReportOnly = False, set_: SetNew = None, ray: Ray = "",
) -> list[Path]:  # fmt: skip
    """Run what the studies' tables lack; each run is a line of CSV."""
    console, more = new_console(), more_keys(data_dir, "in-process", set_)
    where = Where(runs, tuple(names_in(device)), workers, report_only, ray=ray)
    listed = studies.read_studies(file)
    made: list[Path] = []
    failed = 0
    for name in conf.chosen(which or [], listed, "study"):
        tell_what_stays(results / f"{name}.csv", set_)
        if "kind" in listed[name]:
            (kind,) = conf.chosen([listed[name]["kind"]], KINDS, f"kind of study (of {name})")
            made += KINDS[kind].study(name, listed[name], results, where, more, console)
            continue
        table = studies.table_of(name, listed[name], results)
        conf.chosen(listed[name]["figures"], studies.FIGURES, f"figure (of {name})")
        jobs = list(studies.jobs_of(name, listed[name], more))
        lacking = sum(table.lacks(job.place) for job in jobs)
        console.print(f"{name}: {lacking} of {len(jobs)} runs are missing")
        failed += len(where.fill(table, jobs, studies.figures, console))
        made += [table.path] * bool(lacking and not report_only)
        if file.samefile(studies.STUDIES):  # one's own study may have the name of one of ours
            made += studies.write(name, table.path, picture)
    if failed:
        raise SpcacwError(f"{failed} runs failed: the same command tries them again.")
    return made


@app.command("attacks")
@files_of
def attack(
    table: Annotated[Path, typer.Argument(help="CSV to add to")],
    columns: Columns = "digits-relabel", methods: Rows = "",
    attacks: Annotated[str, typer.Option(help="comma-separated; empty is all")] = "",
    shares: Annotated[str, typer.Option(help="of the peers that attack")] = "0.1,0.3,0.5,0.8",
    seeds: Seeds = "0-2", data_dir: DataDir = None, workers: Workers = 0, set_: SetNew = None,
    ray: Ray = "", picture: Annotated[
        Path | None, typer.Option(help="PNG to draw, with Markdown beside the table")
    ] = None,
) -> list[Path]:  # fmt: skip
    """Attack methods: run what the table lacks; with --picture, report all that it holds."""
    tell_what_stays(table, set_)
    study.extend(
        table, conf.columns(names_in(columns)), names_in(methods), conf.numbers(seeds),
        more_keys(data_dir, "in-process", set_), conf.chosen(names_in(attacks), ATTACKS, "attack"),
        shares_of(shares), Where(table.parent, workers=workers, ray=ray),
        new_console(),
    )  # fmt: skip
    return [table, *(study.write(table, picture) if picture else [])]


@app.command("pages")
@files_of
def fill_pages(
    check: Annotated[bool, typer.Option("--check", help="write nothing; fail if one is stale")] = (
        False
    ),
) -> list[Path]:
    """Fill the tables of docs/*.md from the committed results, in the repository's root."""
    made = {} if check else {RESULTS / f"{name}.csv": of for name, of in OVERVIEWS.items()}
    for path, of in made.items():
        write_atomically(path, of(RESULTS).to_csv(index=False).encode())
    return [*made, *pages.pages(Path(), check)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command."""
    app(arguments, prog_name="python -m spcacw_flwr.experiments" if arguments is None else "spcacw")


if __name__ == "__main__":
    main()
