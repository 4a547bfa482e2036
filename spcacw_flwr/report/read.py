"""The artefacts in a run's directory, as tables; a missing file gives an empty table.

Failed runs and methods without weights lack some files or columns.
"""

import csv
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.config.config import flattened, read_toml
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.directory import whole_lines
from spcacw_flwr.silos.metrics import METRICS, Metric

LEAVE_ONE_OUT = "leave_one_out.csv"
FINISHED, DAMAGED = "finished", "damaged"


@dataclass(frozen=True)
class Run:
    """The data of a run, without its growing files."""

    directory: Path
    config: dict[str, Any]
    """Every run-config key."""
    status: dict[str, Any]
    summary: dict[str, Any]
    """Empty unless the run finished."""

    @property
    def metric(self) -> Metric:
        """The run's metric."""
        return METRICS[self.config.get("metric", "accuracy")]

    @property
    def target(self) -> int:
        """The target silo."""
        return int(self.config.get("target", 0))

    @property
    def names(self) -> list[str]:
        """The silos' names; empty if they have only numbers."""
        return list(self.summary.get("names") or self.status.get("names") or [])

    @property
    def found(self) -> dict[str, Any]:
        """The summary's entry of the run's metric: last, interval, gain, gain_interval."""
        return dict((self.summary.get("metrics") or {}).get(self.metric.name) or {})

    @property
    def value(self) -> float:
        """The metric after the last epoch; NaN before the first one."""
        value = self.found.get("last", self.status.get("value"))
        return math.nan if value is None else float(value)

    @property
    def gain(self) -> float:
        """The gain of the run over training alone; NaN if not known."""
        gain = self.found.get("gain")
        return math.nan if gain is None else float(gain)

    @property
    def alpha(self) -> list[float]:
        """The last weights; empty for a method without weights."""
        return list(self.summary.get("alpha") or self.status.get("alpha") or [])

    @property
    def own_weight(self) -> float:
        """α of the target itself; NaN if not known."""
        return self.alpha[self.target] if self.target < len(self.alpha) else math.nan

    @property
    def seconds(self) -> float:
        """The run's duration; NaN if it has not finished."""
        return float(self.summary.get("seconds", math.nan))

    @property
    def state(self) -> str:
        """``finished``, ``damaged``, or another state with the number of its epochs."""
        state, done = str(self.status.get("state", "unknown")), self.status.get("epoch", 0)
        return state if state in (FINISHED, DAMAGED) else f"{state}, epoch {done}"

    def rank(self, by: str) -> tuple[bool, float | str]:
        """Return a sort key: the best run comes first, runs with an unknown value last."""
        values = {"run": 0.0, "value": -self.metric.sign * self.value, "gain": -self.gain,
                  "alpha": -self.own_weight, "seconds": self.seconds}  # fmt: skip
        return math.isnan(values[by]), str(self.directory) if by == "run" else values[by]


@dataclass(frozen=True)
class Artefacts(Run):
    """The content of a run's directory."""

    epochs: list[dict[str, Any]]
    """The lines of metrics.jsonl."""
    rounds: NDArray[np.int64]
    """(U,) the rounds in which α was recorded."""
    alphas: NDArray[np.float64]
    """(U, M) α after each of these rounds."""
    silos: dict[str, list[float]]
    """The method's figures of the silos after the last epoch, M numbers (or NaN) each."""
    left_out: list[dict[str, str]]
    """The rows of leave_one_out.csv."""


def read(directory: Path) -> Artefacts:
    """Read a run's directory.

    Raises SpcacwError if it holds no run or a damaged file.
    """
    run = read_run(directory)
    try:
        rounds, alphas = _alphas(directory / "alpha.csv")
        if alphas.size and run.target >= alphas.shape[1]:
            raise ValueError(f"target = {run.target} is not among {alphas.shape[1]} silos")
        return Artefacts(
            **vars(run), rounds=rounds, alphas=alphas,
            epochs=[dict(json.loads(line)) for line in _lines(directory / "metrics.jsonl")],
            silos=_last_epoch(directory / "silos.csv"), left_out=_rows(directory / LEAVE_ONE_OUT),
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpcacwError(
            f"The files of the run in {directory} cannot be read: {error}."
        ) from error


def read_run(directory: Path) -> Run:
    """Read the short files of a run; SpcacwError if there is no run, or a file is damaged."""
    if not (directory / "config.toml").is_file():
        raise SpcacwError(
            f"{directory} holds no run (there is no config.toml in it): name the directory that "
            "'spcacw run' printed at its end."
        )
    config = flattened(read_toml(directory / "config.toml", "The run's"))
    metric, target = config.get("metric", "accuracy"), config.get("target", 0)
    if metric not in [*METRICS] or not isinstance(target, int) or target < 0:
        raise SpcacwError(
            f"{directory / 'config.toml'} is not that of a run here: there is no metric = "
            f"{metric!r} of target = {target!r}."
        )
    return Run(directory, config, *(_json(directory / f"{n}.json") for n in ("status", "summary")))


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        if not isinstance(found, dict):
            raise ValueError("it holds no table")
        return found
    except (OSError, ValueError) as error:
        raise SpcacwError(f"{path} cannot be read: {error}.") from error


def _lines(path: Path) -> list[str]:
    """Return a file's whole lines, without one cut by a crash; none if the file is missing."""
    return whole_lines(path) if path.is_file() else []


def _rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(_lines(path)))


def _alphas(path: Path) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    rows = [list(row.values()) for row in _rows(path)]
    rounds = np.array([int(row[0]) for row in rows], dtype=np.int64)
    return rounds, np.array([[float(a) for a in row[1:]] for row in rows])


def _last_epoch(path: Path) -> dict[str, list[float]]:
    """Return the columns of the last epoch that has the rows of all silos."""
    epochs: dict[str, list[dict[str, str]]] = {}
    for row in _rows(path):
        epochs.setdefault(row["epoch"], []).append(row)
    silos = max(map(len, epochs.values()), default=0)
    last = [rows for rows in epochs.values() if len(rows) == silos][-1:]
    names = [name for rows in last for name in rows[0] if name not in ("epoch", "silo", "alpha")]
    return {name: [float(row[name]) for row in last[0]] for name in names}
