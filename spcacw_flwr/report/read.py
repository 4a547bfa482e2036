"""The artefacts in a run's directory, as tables; what a run did not leave is empty.

Runs that failed, methods without weights, and runs of older versions lack some files or columns.
"""

from __future__ import annotations

import csv
import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.config.config import flattened
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.directory import whole_lines

LEAVE_ONE_OUT = "leave_one_out.csv"
GOES_ON_WITHOUT = "goes on without"
"""What every log line about an unusable reply says."""


@dataclass(frozen=True)
class Artefacts:
    """What lies in a run's directory."""

    directory: Path
    config: dict[str, Any]
    """Every run-config key."""
    status: dict[str, Any]
    summary: dict[str, Any]
    """Empty unless the run finished."""
    epochs: list[dict[str, Any]]
    """The lines of metrics.jsonl."""
    rounds: NDArray[np.int64]
    """(U,) the rounds in which α was noted."""
    alphas: NDArray[np.float64]
    """(U, M) α after each of them."""
    silos: dict[str, list[float]]
    """What was found out about each silo after the last epoch, M numbers (or NaN) each."""
    left_out: list[dict[str, str]]
    """The rows of leave_one_out.csv."""
    warnings: list[str] | None
    """The log's lines about replies that were not used; None without a log."""


def read(directory: Path) -> Artefacts:
    """Read a run's directory.

    Raises SpcacwError if it holds no run, or a file in it is damaged.
    """
    if not (directory / "config.toml").is_file():
        raise SpcacwError(
            f"{directory} holds no run (there is no config.toml in it): name the directory that "
            "'spcacw run' printed at its end."
        )
    try:
        rounds, alphas = _alphas(directory / "alpha.csv")
        return Artefacts(
            directory,
            flattened(tomllib.loads((directory / "config.toml").read_text(encoding="utf-8"))),
            _json(directory / "status.json"), _json(directory / "summary.json"),
            list(_lines(directory / "metrics.jsonl")), rounds, alphas,
            _last_epoch(directory / "silos.csv"), _rows(directory / LEAVE_ONE_OUT),
            _warnings(directory / "run.log"),
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpcacwError(
            f"The files of the run in {directory} cannot be read: {error}."
        ) from error


def _json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file of JSON lines; a crash may have cut the last one."""
    for line in whole_lines(path) if path.is_file() else ():
        yield dict(json.loads(line))


def _rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table; a crash may have cut the last one, which is left out."""
    if not path.is_file():
        return []
    return list(csv.DictReader(whole_lines(path)))


def _alphas(path: Path) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    rows = [list(row.values()) for row in _rows(path)]
    rounds = np.array([int(row[0]) for row in rows], dtype=np.int64)
    return rounds, np.array([[float(a) for a in row[1:]] for row in rows])


def _last_epoch(path: Path) -> dict[str, list[float]]:
    """Return the columns of the last epoch of which every silo's row is there."""
    epochs: dict[str, list[dict[str, str]]] = {}
    for row in _rows(path):
        epochs.setdefault(row["epoch"], []).append(row)
    silos = max(map(len, epochs.values()), default=0)
    last = [rows for rows in epochs.values() if len(rows) == silos][-1:]
    names = [name for rows in last for name in rows[0] if name not in ("epoch", "silo", "alpha")]
    return {name: [float(row[name]) for row in last[0]] for name in names}


def _warnings(path: Path) -> list[str] | None:
    if not path.is_file():
        return None
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [line for line in lines if GOES_ON_WITHOUT in line]
