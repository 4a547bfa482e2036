"""A sweep in pieces, on a machine that is lent for minutes at a time and is given back bare.

Neither the network nor the data directory is there, and what travels is limited in size. So the
data go in parcels, each below a limit, the sweep stops in time and keeps its unfinished runs for a
next call on the same machine, and what is finished comes back as one small archive, which the next
lease takes along::

    -m spcacw_flwr.experiments.lease pack --data-dir DIR --sets cifar100,shakespeare    # here, once
    -m experiments.lease run --minutes 9 --device cuda,cuda                 # there, again

The machine needs PyTorch and the scientific stack, rich, typer and filelock; no Flower, no Ray.
"""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from spcacw_flwr.config.declare import SpcacwError

from . import conf, table1
from .__main__ import Columns, Device, Rows, Seeds, Set, more_keys, names, one_sentence
from .runs import Run

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

MIB = 2**20
LEFT = ("model.safetensors", "worker.log", "checkpoint")
"""What a finished run leaves behind when it travels: all tables and figures are made without."""


def pack(data_dir: Path, sets: Sequence[str], output: Path, limit: int) -> list[Path]:
    """Copy the files of data sets (folders of ``data_dir``) into parcels of ``limit`` bytes.

    Returns the parcels, ``part-1`` …, which hold the files at their own relative paths.

    Raises
    ------
    SpcacwError
        If a data set is not there, a single file is larger than a parcel may be, or ``output``
        exists.
    """
    if output.exists():
        raise SpcacwError(f"{output} exists: name another directory for the parcels.")
    sizes: list[int] = []
    for name in sets:
        files = sorted(path for path in (data_dir / name).rglob("*") if path.is_file())
        if not files:
            raise SpcacwError(f"There are no files in {data_dir / name}.")
        for file in files:
            size = file.stat().st_size
            if size > limit:
                raise SpcacwError(f"{file} has {size / MIB:.0f} MiB, more than a parcel may have.")
            part = next((k for k, full in enumerate(sizes) if full + size <= limit), len(sizes))
            if part == len(sizes):
                sizes.append(0)
            sizes[part] += size
            copy = output / f"part-{part + 1}" / file.relative_to(data_dir)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
    return [output / f"part-{k + 1}" for k in range(len(sizes))]


def unpack(parcels: Path, into: Path) -> None:
    """Put the files of all parcels that are there together again; SpcacwError if there are none."""
    parts = sorted(parcels.glob("part-*"))
    if not parts:
        raise SpcacwError(f"There are no parcels in {parcels}: carry the folders part-1, … there.")
    for part in parts:
        shutil.copytree(part, into, dirs_exist_ok=True)


def archive(runs: Sequence[Run], path: Path) -> Path:
    """Write the finished runs, without their models, as one compressed archive."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:xz") as tar:
        for run in dict.fromkeys(runs):
            if run.done:
                tar.add(
                    run.directory, run.directory.name,
                    filter=lambda member: None if Path(member.name).name in LEFT else member,
                )  # fmt: skip
    return path


def restore(path: Path, root: Path) -> None:
    """Put runs of an earlier lease where a sweep finds them."""
    root.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path) as tar:
        tar.extractall(root, filter="data")


@app.command("pack")
@one_sentence
def pack_command(
    data_dir: Annotated[Path, typer.Option(help="directory of the data sets")],
    sets: Annotated[str, typer.Option(help="folders of it")] = "cifar100,shakespeare",
    output: Annotated[Path, typer.Option(help="directory of the parcels")] = Path("carry"),
    mib: Annotated[int, typer.Option(help="most MiB of a parcel")] = 48,
) -> list[Path]:
    """Copy data into parcels that are small enough to travel."""
    return pack(data_dir, names(sets), output, mib * MIB)


@app.command("run")
@one_sentence
def run_command(
    minutes: Annotated[float, typer.Option(help="after which unfinished runs are kept for later")],
    columns: Columns = "", rows: Rows = "", seeds: Seeds = 5,
    parcels: Annotated[Path, typer.Option(help="directory of the parcels")] = Path("carry"),
    work: Annotated[Path, typer.Option(help="a fast disk")] = Path("/tmp/spcacw-lease"),
    earlier: Annotated[Path | None, typer.Option(help="runs.tar.xz of an earlier lease")] = None,
    output: Annotated[Path, typer.Option(help="directory of what comes back")] = Path("lease"),
    validation: Annotated[bool, typer.Option(help="also the held-out twins")] = False,
    device: Device = "cuda", set_: Set = None,
) -> list[Path]:  # fmt: skip
    """Go on with Table 1 for some minutes; leave tables and an archive of what is finished."""
    data, root = work / "data", work / "table1"
    unpack(parcels, data)
    if earlier:
        restore(earlier, root / "runs")
    of, which = conf.columns(names(columns)), conf.rows(names(rows))
    more = more_keys(data, "in-process", set_)
    jobs = conf.make_jobs(of, which, range(seeds), more, validation=validation)
    where = table1.Where(root, tuple(names(device)), seconds=60 * minutes)
    runs = where.run(jobs, Console())
    made = [archive(runs, output / "runs.tar.xz")]
    for file in table1.report(jobs, runs, of, which, root):
        if file.parent == root:
            made.append(output / file.name)
            shutil.copyfile(file, made[-1])
    return made


if __name__ == "__main__":
    app()
