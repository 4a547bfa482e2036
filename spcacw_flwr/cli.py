"""The command ``spcacw``: run the app, and list its methods, settings, keys and runs.

Each command imports what it needs: PyTorch takes seconds to import, and ``--help`` must not wait.
"""

import io
import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from spcacw_flwr.config.config import Config, absolute, asked_keys, flat_keys, read_toml
from spcacw_flwr.config.declare import SpcacwError, allowed, import_by_path, names_in
from spcacw_flwr.config.registry import METHODS, SETTINGS, method_class, setting_class
from spcacw_flwr.console import end_like_ctrl_c, new_console, one_sentence, say

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
ELSEWHERE = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Typer's options for a command whose arguments another module reads."""


@app.command()
@one_sentence()
def run(
    setting: Annotated[str | None, typer.Option(help="who holds what")] = None,
    method: Annotated[str | None, typer.Option(help="method of the target")] = None,
    seed: Annotated[int | None, typer.Option(help="seed of everything random")] = None,
    target: Annotated[int | None, typer.Option(help="the target silo")] = None,
    epochs: Annotated[int | None, typer.Option(help="passes of the target over its data")] = None,
    engine: Annotated[
        str | None, typer.Option(help="what computes the rounds: ray or in-process")
    ] = None,
    device: Annotated[str | None, typer.Option(help="where: cpu, cuda, …")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="directory of the data sets")] = None,
    output: Annotated[Path | None, typer.Option(help="directory of the results")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="directory of a run to go on with; it knows its keys")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="a TOML file of run-config keys, such as a config.toml")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="any run-config key")
    ] = None,
) -> None:
    """Train the target silo and wait; exit with 0 only if training finished."""
    named = {
        "setting": setting, "method": method, "seed": seed, "target": target,
        "epochs": epochs, "engine": engine, "device": device,
        "data-dir": data_dir and str(data_dir), "output": output and str(output),
        "resume": resume and str(resume),
    }  # fmt: skip
    known = read_toml(resume / "config.toml", "--resume") if resume else {}
    train(known | flat_keys(config, set_, named))


def train(flat: dict[str, Any]) -> None:
    """Check the configuration, run it and print the report.

    Raises SpcacwError if the configuration, the data or the run has an error.
    """
    from spcacw_flwr.engine.directory import claim_directory, default_output, run_directory
    from spcacw_flwr.engine.simulate import simulate
    from spcacw_flwr.flower import launch
    from spcacw_flwr.report.terminal import reported
    from spcacw_flwr.silos.device import find_device
    from spcacw_flwr.silos.setting import prepare
    from spcacw_flwr.silos.setup import checked_setting

    config = Config.from_flat(flat)
    output = absolute(str(run_directory(config) or default_output(config, Path("runs"))))
    data_dir = config.partition.data_dir and absolute(config.partition.data_dir)
    places = {"output": output, "resume": config.run.resume and output, "data-dir": data_dir}
    config = Config.from_flat(config.to_flat() | places)
    setting = checked_setting(config)
    prepare(setting)
    find_device(config.run.device, config.run.precision)
    claim_directory(Path(output), bool(config.run.resume))
    end_like_ctrl_c()
    with reported(new_console(), Path(output), f"'spcacw run --resume {output}'") as show:
        if config.run.engine == "in-process":
            simulate(config, show)
        else:
            launch.run(config, setting.num_silos, show)


@app.command()
@one_sentence()
def report(
    directory: Annotated[Path, typer.Argument(help="directory of a run's results")],
    leave_one_out: Annotated[
        int, typer.Option(min=0, help="rerun without each of so many of the heaviest peers")
    ] = 0,
    lowest: Annotated[bool, typer.Option(help="leave the lightest peer out as well")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="seeds of these reruns")] = 1,
    data_dir: Annotated[Path | None, typer.Option(help="where the data are here")] = None,
    device: Annotated[str | None, typer.Option(help="where to compute: cpu, cuda, …")] = None,
) -> None:
    """Write report.html for a run: who helped, in plain words and pictures."""
    from spcacw_flwr.report.leave_one_out import leave_one_out as rerun_without
    from spcacw_flwr.report.page import write_report
    from spcacw_flwr.report.terminal import print_left_out

    if leave_one_out or lowest:
        given = {"data-dir": data_dir and absolute(str(data_dir)), "device": device}
        changes = {name: value for name, value in given.items() if value is not None}
        rerun_without(directory, leave_one_out, lowest, seeds, changes, say)
        print_left_out(new_console(), directory)
    say(str(write_report(directory)))


@app.command()
@one_sentence()
def runs(
    folder: Annotated[Path, typer.Argument(help="a folder of runs, at any depth")] = Path("runs"),
    sort: Annotated[str, typer.Option(help="run, value, gain, alpha or seconds")] = "run",
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="only runs with this key, or state=finished"),
    ] = None,
) -> None:
    """List the runs of a folder: metric, gain over training alone, weights, cost."""
    from spcacw_flwr.report.runs import listing, runs_below

    new_console().print(listing(runs_below(folder, where or [], sort), folder))


@app.command()
@one_sentence()
def compare(
    directories: Annotated[list[Path], typer.Argument(metavar="A B …", help="runs' directories")],
    output: Annotated[Path, typer.Option(help="picture to draw")] = Path("compare.png"),
) -> None:
    """Compare runs: metrics, weights, differing keys, and a picture."""
    from spcacw_flwr.report.runs import check_picture, comparison, difference, draw, read_run

    check_picture(output)
    found = [read_run(directory) for directory in directories]
    console = new_console()
    console.print(comparison(found))
    for one in found[1:]:
        console.print(difference(found[0], one))
    draw(found, output)
    say(str(output))


@app.command()
@one_sentence()
def tune(
    setting: Annotated[str, typer.Option(help="who holds what, or the file of a column")],
    methods: Annotated[str, typer.Option(help="comma-separated; empty is all")] = "",
    seeds: Annotated[int, typer.Option(min=3, help="how many seeds, from 0 on")] = 3,
    epochs: Annotated[int, typer.Option(help="epochs of each trial")] = 15,
    data_dir: Annotated[Path | None, typer.Option(help="directory of the data sets")] = None,
    output: Annotated[Path, typer.Option(help="directory of trials and choices")] = Path("tuned"),
    ray_address: Annotated[str, typer.Option(help="a Ray cluster's; empty: processes here")] = "",
) -> None:
    """Choose each method's hyper-parameters on held-out training data of the target."""
    where = absolute(str(data_dir)) if data_dir else ""
    tune_all = import_by_path("spcacw_flwr.experiments.tune:tune", "command")
    choice = tune_all(setting, names_in(methods), seeds, epochs, where, output, ray=ray_address)
    table = Table("method", "choice", title=f"tuned on held-out training data of {setting}")
    for name, chosen in choice.items():
        table.add_row(name, ", ".join(f"{key} = {value}" for key, value in chosen.items()))
    new_console().print(table)


@app.command(add_help_option=False, context_settings=ELSEWHERE)
def deploy(ctx: typer.Context) -> None:
    """Run a federation of real silos (--help says more)."""
    from spcacw_flwr.flower.deploy import app as commands

    commands(ctx.args, prog_name="spcacw deploy")


@app.command(add_help_option=False, context_settings=ELSEWHERE)
def audit(ctx: typer.Context) -> None:
    """Check and compare the audit logs of real silos (--help says more)."""
    from spcacw_flwr.flower.auditing import app as commands

    commands(ctx.args, prog_name="spcacw audit")


@app.command(add_help_option=False, context_settings=ELSEWHERE)
def table1(ctx: typer.Context) -> None:
    """Fill and write the paper's Table 1: methods × settings × seeds (--help says more)."""
    _experiments(ctx)


@app.command(add_help_option=False, context_settings=ELSEWHERE)
def federations(ctx: typer.Context) -> None:
    """Compare methods on real federations: gain over Local, and harm (--help says more)."""
    _experiments(ctx)


def _experiments(ctx: typer.Context) -> None:
    command = import_by_path("spcacw_flwr.experiments.__main__:main", "command")
    command([str(ctx.info_name), *ctx.args])


@app.command()
def methods() -> None:
    """List the methods that the key ``method`` names."""
    _print_classes(Table("method", "what it is"), METHODS, method_class)


@app.command()
def settings() -> None:
    """List the settings that the key ``setting`` names."""
    _print_classes(Table("setting", "who holds what"), SETTINGS, setting_class)


def _print_classes(table: Table, names: Iterable[str], find: Callable[[str], Any]) -> None:
    for name in names:
        table.add_row(name, (find(name).__doc__ or "").splitlines()[0])
    new_console().print(table)


@app.command()
@one_sentence()
def keys(
    name: Annotated[str, typer.Argument(help="one key; empty is those that matter most")] = "",
    setting: Annotated[str, typer.Option(help="those a setting decides, and its own")] = "",
    method: Annotated[str, typer.Option(help="a method's own")] = "",
    all_: Annotated[bool, typer.Option("--all", help="every key")] = False,
) -> None:
    """List run-config keys: their table, default, allowed values and meaning."""
    console, above = new_console(), ""
    found = asked_keys(name, setting, method, all_)
    for key, (table, default, field) in found.items():
        if table != above:
            console.print(f"# {table}", style="dim")
        above = table
        head = f"{key} = {json.dumps(default, ensure_ascii=False)}  ({allowed(field)})"
        lines = textwrap.wrap(head, console.width, subsequent_indent=4 * " ")
        rest = "\n".join(lines).removeprefix(key)
        console.print(Text.assemble((key, "bold"), rest))
        console.print(Padding(field.metadata.get("doc", "A key of your own."), (0, 0, 0, 4)))
    if not found:
        console.print(f"{method or setting} has no keys of its own.")
    elif not (name or all_ or setting or method):
        console.print("\n'spcacw keys --all' lists every key, 'spcacw keys NAME' one;")
        console.print("'--setting S' and '--method M' list their own.")


def _version(wanted: bool) -> None:
    if wanted:
        from spcacw_flwr import __version__

        typer.echo(f"spcacw-flwr {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="say which it is")
    ] = False,
) -> None:
    """SP-CACW for Flower: one silo learns from its peers without being harmed by them."""
    # PyTorch's threads (GNU OpenMP) spin for milliseconds after each operation, and would keep the
    # cores from NumPy's BLAS. PyTorch reads this at its import, which no command has done yet.
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    for stream in (sys.stdout, sys.stderr):  # a terminal may have no α
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    with one_sentence():
        try:
            os.environ["SPCACW_PATH"] = os.getcwd()  # may hold a user's own method
        except FileNotFoundError as error:
            raise SpcacwError("The directory that you are in is gone: go to another.") from error
