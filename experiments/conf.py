"""The runs to make: columns × rows × seeds, from the small TOML files in ``experiments/conf/``.

``columns/<name>.toml`` is plain run config: ``flwr run --run-config`` and ``spcacw run --config``
read it too. ``rows.toml`` has the methods, ``paper.toml`` the paper's numbers. The keys of a run
are those of its column, then (with ``tuned``) those that ``experiments/tuned/<column>.toml`` has
for its method, then those of its row, then those of the command line. The last value wins.

Without ``tuned`` every method has the paper's optimiser. The paper does not disclose the keys of
its rivals, so they have their authors' defaults: no method is fitted to our data. Such defaults
suit other models and amounts of local work. So that table can show how near we are to the paper,
and not which method is best. With ``tuned`` every method that has a choice, SP-CACW included, had
30 candidates or more, and its keys were chosen on held-out training data.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from spcacw_flwr.config.config import Config, flattened, read_toml
from spcacw_flwr.config.declare import SpcacwError, did_you_mean

CONF = Path(__file__).parent / "conf"
COLUMNS = CONF / "columns"
TUNED = Path(__file__).parent / "tuned"
HOLDOUT = 0.2
"""Share of the target's training data that a validation run holds out, as in ``spcacw tune``."""
Keys = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A column of the table: its name, its title, its run-config keys and the paper's numbers."""

    name: str
    title: str
    keys: Keys
    paper: Mapping[str, tuple[float, float]]
    """For each row of the paper: mean and sample standard deviation over its five seeds."""


@dataclass(frozen=True)
class Row:
    """A row of the table: a method with its keys."""

    name: str
    title: str
    keys: Keys
    without: tuple[str, ...] = ()
    """Columns without this row, as prefixes: a full column's name covers its narrow version."""


@dataclass(frozen=True, eq=False)
class Job:
    """A run to be made, and its place in a table."""

    column: str
    row: str
    keys: Keys
    note: str = ""
    """The difference from other runs of its cell, such as a variant's name."""
    place: Keys = field(default_factory=dict)
    """The values that identify its line in the table of a study, by column."""

    @property
    def seed(self) -> int:
        """The seed of everything random."""
        seed: int = self.keys["seed"]
        return seed

    def config(self) -> Config:
        """Return the checked configuration; SpcacwError if the keys are wrong."""
        return Config.from_flat(self.keys)


def chosen(names: Sequence[str], known: Iterable[str], what: str) -> list[str]:
    """Return ``names``, or all known names if it is empty; SpcacwError for an unknown name."""
    known = list(known)
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise SpcacwError(f"There is no {what} {name!r}{hint}: choose of {', '.join(known)}.")
    return list(names) or known


def refuse_told(more: Keys, told: Iterable[str]) -> None:
    """Raise SpcacwError if the command line's keys ``more`` have one that a table's lines tell."""
    if clash := sorted(more.keys() & set(told)):
        raise SpcacwError(
            f"--set {clash[0]}: the lines of this table tell it, and it would not be that of their "
            "runs: choose it where the command or the file lists it."
        )


def seeds_of(given: int | list[int]) -> list[int]:
    """Return the seeds that a study gives: a list, or their number, from 0 on."""
    return given if isinstance(given, list) else [*range(given)]


def columns(names: Sequence[str] = ()) -> list[Column]:
    """Return columns by name, or by the path of any TOML file; without names, the paper's."""
    paper = read_toml(CONF / "paper.toml")
    files = (Path(name) for name in names if name.endswith(".toml"))
    own = {f.stem: CONF / f if (CONF / f).exists() and not f.exists() else f for f in files}
    stems = [Path(name).stem if name.endswith(".toml") else name for name in names]
    known = dict.fromkeys([*paper, *(path.stem for path in COLUMNS.glob("*.toml")), *own])
    found = []
    for name in chosen(stems or list(paper), known, "column"):
        table = dict(paper.get(name, {}))
        title = table.pop("title", name)
        keys = flattened(read_toml(own.get(name, COLUMNS / f"{name}.toml")))
        found.append(Column(name, title, keys, {row: tuple(x) for row, x in table.items()}))
    return found


def rows(names: Sequence[str] = (), path: Path = CONF / "rows.toml") -> list[Row]:
    """Return rows of the table by name, or methods by import path, in that order; no names: all."""
    tables = read_toml(path)
    chosen([name for name in names if ":" not in name], tables, "row")
    found = []
    for name in dict.fromkeys(names or tables):
        own = {"title": name.partition(":")[2], "method": name}
        keys = own if ":" in name else flattened(tables[name])
        title, without = keys.pop("title", name), tuple(keys.pop("without", ()))
        found.append(Row(name, title, keys, without))
    return found


def numbers(text: str) -> list[int]:
    """Return the whole numbers of ``10-12,20``."""
    try:
        ends = [[int(end) for end in part.split("-")] for part in text.split(",")]
        return [number for part in ends for number in range(part[0], part[-1] + 1)]
    except ValueError:
        raise SpcacwError(f"{text!r} is no list of whole numbers: write it as 10-12,20.") from None


def tuned_keys(column: str, row: str, method: str, directory: Path = TUNED) -> dict[str, Any]:
    """Return the keys that tuning chose for a row on a column, or for its method.

    SpcacwError if it chose for neither: default keys next to tuned keys would not be fair.
    """
    path = directory / f"{column}.toml"
    choices = read_toml(path) if path.exists() else {}
    for name in (row, method):
        if name in choices:
            return flattened(choices[name])
    raise SpcacwError(
        f"{path} has no keys that were tuned for {row}: tune them with 'spcacw tune', or leave "
        "this row or column out."
    )


def make_jobs(
    of: Sequence[Column], rows: Sequence[Row], seeds: Iterable[int], more: Keys,
    *, tuned: bool = False, validation: bool = False, note: str = "",
) -> list[Job]:  # fmt: skip
    """Return the runs of a table: all runs of one seed, then those of the next seed.

    With ``validation`` each run has a twin that holds out :data:`HOLDOUT` of the target's training
    data and is evaluated on that share instead of test data. SpcacwError as in :func:`refuse_told`.
    """
    refuse_told(more, ("seed", "setting", "method"))
    jobs = []
    for seed, column, row in product(seeds, of, rows):
        if column.name.startswith(row.without):
            continue
        choice = tuned_keys(column.name, row.name, row.keys["method"]) if tuned else {}
        common = {"compare-alone": False, "engine": "in-process", "seed": seed}
        keys = {**common, **column.keys, **choice, **row.keys, **more}
        jobs.append(Job(column.name, row.name, keys, note))
        if validation:
            held = {**keys, "holdout": HOLDOUT}
            jobs.append(Job(column.name, row.name, held, note or "held out"))
    return jobs
