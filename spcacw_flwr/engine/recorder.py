"""The files of a run, written during the run so that a crash loses at most one epoch.

docs/run.md lists the files. When a run goes on from its checkpoint, the growing files are first
cut back to their length at the checkpoint (:mod:`spcacw_flwr.engine.checkpoint`).
"""

import csv
import io
import json
import logging
import math
import platform
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import printable
from spcacw_flwr.config.registry import setting_class
from spcacw_flwr.engine import directory as places
from spcacw_flwr.engine.checkpoint import Keeper
from spcacw_flwr.engine.directory import Stop, Stopped, claim_directory, write_atomically
from spcacw_flwr.engine.loggers import Loggers, need
from spcacw_flwr.engine.loop import History
from spcacw_flwr.silos.evaluation import CASES
from spcacw_flwr.silos.metrics import METRICS
from spcacw_flwr.silos.protocol import Federation

log = logging.getLogger(__name__)

PACKAGES = ("spcacw-flwr", "flwr", "torch", "numpy", "ray")
PROGRESS_SECONDS = 0.2
"""Least seconds between updates of the round counter on disk; a display needs no more."""

MOST_WARNINGS = 20
"""Most warnings in status.json; the log has all."""
COUNT = re.compile(r"\b(round|no\.) \d+", re.IGNORECASE)
"""Two warnings that differ in these only are one."""


def as_json(table: Mapping[str, Any], indent: int | None = None) -> str:
    """Return JSON in which NaN (not a number in JSON) is null."""

    def known(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: known(part) for name, part in value.items()}
        if isinstance(value, list):
            return [known(part) for part in value]
        return None if isinstance(value, float) and math.isnan(value) else value

    return json.dumps(known(table), allow_nan=False, indent=indent)


def as_toml(table: Mapping[str, Any]) -> str:
    """Return a flat table of strings, numbers and booleans as TOML; JSON writes them alike."""
    lines = (f"{name} = {json.dumps(v, ensure_ascii=False)}\n" for name, v in table.items())
    return "".join(lines)


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide the result."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def best_and_last(accuracy: Sequence[float]) -> dict[str, float]:
    """Return the two accuracies that summaries had before there were other metrics."""
    return {"best_accuracy": max(accuracy), "last_accuracy": accuracy[-1]}


class Warnings(logging.Handler):
    """Collects each warning once, and then calls ``tell``."""

    def __init__(self, tell: Callable[[], None]) -> None:
        super().__init__(logging.WARNING)
        self.tell = tell
        self.lines: dict[str, str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a warning that is new; one more says that there are more."""
        line = printable(record.getMessage())
        key = COUNT.sub("", line)
        if key not in self.lines and len(self.lines) >= MOST_WARNINGS:
            key, line = "", "More warnings are in the log."
        if key not in self.lines:
            self.lines[key] = line
            self.tell()


class Recorder(History):
    """A history that writes the run's artefacts into the run's directory.

    The summary names the ``engine``. ``show`` is called with the content of status.json whenever
    that changes. ``flower_run`` is Flower's id of the run: by this id, a restarted ServerApp
    recognizes its directory.

    Raises SpcacwError if the directory cannot be made or written, if it already holds another run,
    or if another process works in it.
    """

    directory: Path

    def __init__(
        self, directory: Path, config: Config, engine: str,
        show: Callable[[dict[str, Any]], None] | None = None, flower_run: str = "",
    ) -> None:  # fmt: skip
        super().__init__(config)
        need(config)
        self.directory, self.engine, self._show = directory, engine, show
        self.flower_run = flower_run
        self._told, self._state = self._started, ""
        self._warnings, self._telling = Warnings(self._warned), threading.RLock()
        self._loggers: Loggers | None = None
        self._keeper: Keeper | None = None
        own = places.is_own(directory, flower_run)
        self.resumes = bool(config.run.resume) or own
        self._asks = self.resumes and not own
        """Whether it is still unknown if the run can go on; until then status.json stays."""
        claim_directory(directory, self.resumes)
        self._lock = places.held(directory)
        places.sweep(directory)
        self._stop = Stop(directory)
        if not self.resumes:
            self._write_config()
            self._status("waiting for silos")

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Put the warnings of the block into status.json."""
        logger = logging.getLogger("spcacw_flwr")
        logger.addHandler(self._warnings)
        try:
            yield
        finally:
            logger.removeHandler(self._warnings)

    def _warned(self) -> None:
        with self._telling, suppress(OSError):  # whoever warns may be another thread
            if self._state:
                self._status(self._state)

    def _write(self, name: str, text: str) -> None:
        write_atomically(self.directory / name, text.encode())

    def _write_config(self) -> None:
        # Without the directory, so that the file can repeat the run in a new one.
        self._write("config.toml", as_toml(self.config.to_flat() | {"output": "", "resume": ""}))

    def waits(self, state: str) -> None:
        """Write the state to status.json, but not of a resumed run: it may be unable to go on."""
        if not self.resumes:
            self._status(state)

    def start(self, federation: Federation, rounds: int, objects: Mapping[str, Any]) -> int:
        """Open the growing files; if the run goes on, cut them back to the checkpoint."""
        done, checkpoints = None, self.config.run.checkpoint_every >= 0
        if checkpoints or self.resumes:
            keeper = Keeper(self.directory, self.config, federation, objects)
            done = keeper.resume() if self.resumes else None
        if done:
            self._go_on(done)
        else:
            self._open(federation)
        self._write_config()  # a resumed run may have more epochs than before
        if checkpoints:
            keeper.check_room()
            self._keeper = keeper
        self._loggers = Loggers(self.directory, self.config, self.round)
        self._asks = False
        super().start(federation, rounds, objects)
        self._status("training")
        return self.round

    def _open(self, federation: Federation) -> None:
        for name in places.GROWING:
            (self.directory / name).unlink(missing_ok=True)
        (self.directory / "metrics.jsonl").touch()
        self._append("alpha.csv", [["round", *(f"silo_{i.silo}" for i in federation.silos)]])

    def _append(self, name: str, rows: Iterable[Sequence[Any]]) -> None:
        text = io.StringIO(newline="")
        csv.writer(text).writerows(rows)
        places.append(self.directory / name, text.getvalue())

    def _go_on(self, content: Mapping[str, Any]) -> None:
        """Restore a checkpoint's content; cut lines of later rounds, which will be repeated."""
        places.cut(self.directory, content["lengths"])
        self.recall(content["history"])
        then = content["versions"]
        changed = [f"{k} {then.get(k)} → {v}" for k, v in versions().items() if then.get(k) != v]
        if changed:
            log.warning("The run goes on with other versions, and may differ in the last bits: %s.",
                        ", ".join(changed))  # fmt: skip
        log.info("The run in %s goes on after round %s.", self.directory, self.round)

    def keep(self, round_: int) -> None:
        """Save a checkpoint if one is due or the run is to end.

        Raises Stopped if somebody asked the run to end.
        """
        stops = self._stop.wanted and round_ < self.rounds
        if self._keeper and (stops or self._keeper.due(round_, self.rounds)):
            self._keeper.save(round_, self.memory(), {"versions": versions()})
        if stops:
            self._stop.clear()
            raise Stopped(f"It was stopped after round {round_} of {self.rounds}.")

    def ending(self) -> AbstractContextManager[None]:
        """Take Ctrl-C, SIGTERM, SIGHUP or a file ``stop`` as a request to end after the round."""
        return self._stop.watching()

    def weights(self, round_: int, alpha: NDArray[np.float64]) -> None:
        """Append a row to alpha.csv."""
        super().weights(round_, alpha)
        self._append("alpha.csv", [[round_, *map(repr, alpha.tolist())]])
        self._log({f"alpha/silo_{silo}": weight for silo, weight in enumerate(alpha)}, round_)

    def _log(self, values: Mapping[str, float], round_: int) -> None:
        if self._loggers:
            self._loggers.scalars(values, round_)

    def progress(self, round_: int) -> None:
        """Write the round to disk, at most five times a second."""
        super().progress(round_)
        if time.perf_counter() - self._told >= PROGRESS_SECONDS:
            self._status("training")

    def epoch(
        self, round_: int, report: Mapping[str, float],
        figures: Mapping[str, NDArray[np.float64]], parameters: Mapping[str, Tensor],
    ) -> None:  # fmt: skip
        """Append a line to metrics.jsonl and rows to silos.csv, and save the model."""
        super().epoch(round_, report, figures, parameters)
        if figures:
            self._write_figures(figures)
        places.append(self.directory / "metrics.jsonl", as_json(self.epochs[-1]) + "\n")
        content = save({name: part.contiguous() for name, part in parameters.items()})
        write_atomically(self.directory / "model.safetensors", content)
        curves = {name: curve for name, curve in self.alone.items() if name in METRICS}
        at = len(self.epochs) - 1
        beside = {f"alone/{name}": c[at] for name, c in curves.items() if at < len(c)}
        self._log({**report, **beside}, round_)
        self._status("training")

    def _write_figures(self, figures: Mapping[str, NDArray[np.float64]]) -> None:
        table = figures if self.alpha is None else {"alpha": self.alpha, **figures}
        if len(self.epochs) == 1:
            self._append("silos.csv", [["epoch", "silo", *table]])
        rows = zip(*(map(repr, values.tolist()) for values in table.values()), strict=True)
        self._append("silos.csv", ([len(self.epochs), i, *row] for i, row in enumerate(rows)))

    def finish(self) -> None:
        """Write summary.json and the pictures."""
        from spcacw_flwr.engine import plots  # late: importing Matplotlib takes a second

        self._write("summary.json", as_json(self.summary(), indent=2))
        metric = METRICS[self.config.run.metric]
        plots.save_metric(self.directory / f"{metric.name}.png", metric, self.epochs, self.alone)
        if self.alphas:
            circular = setting_class(self.config.run.setting).group_kind == "angle"
            path = self.directory / "alpha.png"
            plots.save_alpha(path, self.alphas, self.federation, circular, self.round)
        self._close("finished")

    def fail(self, sentence: str) -> None:
        """Write the message of the error to status.json; results so far stay on disk.

        If a resumed run could not go on, its status.json does not change. A launcher that waits for
        a new status.json has removed the old one, and then this writes one.
        """
        if self._asks and (self.directory / "status.json").exists():
            self._lock.release()
        else:
            with suppress(OSError):  # the disk is full; the sentence matters more
                self._close("failed", error=sentence)

    def _close(self, state: str, **more: Any) -> None:
        if self._loggers:
            self._loggers.close(state == "finished")
        with self._telling:
            try:
                self._status(state, **more)
            finally:
                self._state = ""
                self._lock.release()

    def summary(self) -> dict[str, Any]:
        """Return a summary of the run; accuracies are in percent."""
        run, last = self.config.run, self.epochs[-1]
        setting = setting_class(run.setting)
        accuracy = best_and_last(self.accuracy) if "accuracy" in last else {}
        alone: dict[str, Any] = {name: by for name, by in self.alone.items() if name in METRICS}
        if accuracy and alone:
            alone = best_and_last(self.accuracy_alone) | alone
        return {
            "setting": run.setting, "method": run.method, "engine": self.engine,
            "device": run.device, "seed": run.seed, "target": run.target, "rounds": self.rounds,
            "holdout": run.holdout, "epochs": len(self.epochs), **accuracy,
            "metric": run.metric, "metrics": self._metrics(), CASES: last[CASES],
            "alone": alone or None, "alpha": None if self.alpha is None else self.alpha.tolist(),
            **{name: last[name] for name in ("target_gradients", "floats", "bytes")},
            "figures": {name: values.tolist() for name, values in self.figures.items()},
            **({"accepted": last["accepted"]} if "accepted" in last else {}),
            "rejections": self.gate.rejections(),
            "privacy": self.privacy,
            "groups": [info.group for info in self.federation.silos], "names": self.names,
            "group_kind": setting.group_kind,
            "seconds": round(self.seconds, 3), "versions": versions(),
        }  # fmt: skip

    def _metrics(self) -> dict[str, dict[str, Any]]:
        """Return the best and last value of each metric, 95 % intervals, and the gain over alone.

        A gain above 0 is an improvement, also for a metric where lower is better.
        """
        found, last = {}, self.epochs[-1]
        for name, metric in METRICS.items():
            if name not in last:
                continue
            values = [line[name] for line in self.epochs]
            best = metric.best(values)
            found[name] = {
                "best": values[best], "best_epoch": best + 1, "last": values[-1],
                "interval": [last.get(f"{name}-{end}", math.nan) for end in ("low", "high")],
            }  # fmt: skip
            if gain := self.alone.get(f"{name}-gain"):
                found[name] |= {"alone": self.alone[name][-1], "gain": gain[0]}
                found[name]["gain_interval"] = gain[1:]
        return found

    def _status(self, state: str, **more: Any) -> None:
        self._told, self._state = time.perf_counter(), state
        last = self.epochs[-1] if self.epochs else {}
        table = {
            "state": state, "round": self.round, "rounds": self.rounds,
            "epoch": len(self.epochs), "epochs": self.config.run.epochs,
            "accuracy": last.get("accuracy"), "loss": last.get("loss"),
            "metric": self.config.run.metric, "value": last.get(self.config.run.metric),
            "alone": last.get("alone"),
            "alpha": [] if self.alpha is None else self.alpha.tolist(),
            "warnings": [*self._warnings.lines.values()],
            "names": [*self.names], "silent": dict(self.gate.silent) if self.rounds else {},
            **({places.FLOWER_RUN: self.flower_run} if self.flower_run else {}), **more,
        }  # fmt: skip
        with self._telling:
            self._write("status.json", as_json(table))
            if self._show:
                self._show(table)
