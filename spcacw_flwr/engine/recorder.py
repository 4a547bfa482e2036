"""What a run leaves behind, written as it happens so that a crash loses at most one epoch.

``config.toml`` (resolved; repeats the run), ``alpha.csv`` (a row per weight update),
``metrics.jsonl`` (a line per epoch), ``silos.csv`` (what the method found out about each silo, a
row per epoch and silo), ``model.safetensors`` (after every epoch), ``status.json``
(where the run is, or the one sentence that ended it), and at the end ``summary.json``,
``accuracy.png`` and ``alpha.png`` (of methods with weights); TensorBoard events by a switch. The
directory ``checkpoint`` is what a run that was stopped goes on from
(:mod:`spcacw_flwr.engine.keeper`): the growing files are then cut to where they were.
"""

from __future__ import annotations

import csv
import json
import logging
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.registry import setting_class
from spcacw_flwr.engine import directory as places
from spcacw_flwr.engine.history import Epoch, History
from spcacw_flwr.engine.keeper import Keeper
from spcacw_flwr.engine.stop import Stop, Stopped
from spcacw_flwr.silos.protocol import Federation

log = logging.getLogger(__name__)

PACKAGES = ("spcacw-flwr", "flwr", "torch", "numpy", "ray")
PROGRESS_SECONDS = 0.2
"""How often the round counter on disk may move; a display needs no more."""


def default_output(config: Config, base: Path) -> Path:
    """Return a dated directory below ``base`` that does not exist yet."""
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    setting = config.run.setting.replace(":", ".")
    stem = f"{stamp}_{setting}_{config.run.method.replace(':', '.')}_seed{config.run.seed}"
    path, copy = base / stem, 2
    while path.exists():
        path, copy = base / f"{stem}_{copy}", copy + 1
    return path


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file in one step, so that a reader or a crash never sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def claim_directory(directory: Path, resumes: bool = False) -> None:
    """Make a directory for a run's results, or see that there is one if the run goes on in it.

    Raises
    ------
    SpcacwError
        If it cannot be made or written, or holds a run already (or none, if one is to go on).
    """
    try:
        if not resumes:
            directory.mkdir(parents=True, exist_ok=True)
        if (directory / "config.toml").exists() != resumes:
            if resumes:
                raise SpcacwError(
                    f"resume = '{directory}' holds no run: name the directory of one."
                )
            raise SpcacwError(
                f"output = '{directory}' already holds a run: name another directory, or set "
                "resume to it to go on with that run."
            )
        (directory / ".write-test").touch()
        (directory / ".write-test").unlink()
    except OSError as error:
        raise SpcacwError(f"output = '{directory}' cannot be written: {error}.") from error


def as_json(table: Mapping[str, Any]) -> str:
    """Return one line of JSON in which NaN (not a number in JSON) is null."""
    plain = {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in table.items()}
    return json.dumps(plain, allow_nan=False)


def as_list(values: NDArray[np.float64]) -> list[float | None]:
    """Return numbers for JSON, in which NaN is null."""
    return [None if math.isnan(value) else float(value) for value in values]


def as_toml(table: Mapping[str, Any]) -> str:
    """Return a flat table of strings, numbers and booleans as TOML, which writes them as JSON."""
    return "".join(
        f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in table.items()
    )


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide the result."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


class Recorder(History):
    """A history that writes the run's artefacts into a directory of its own.

    Parameters
    ----------
    directory : Path
        Made; must not hold a run yet.
    config : Config
        The run's configuration.
    engine : str
        What computes the rounds, for the summary.
    show : callable, optional
        Called with the content of status.json whenever that changes.
    flower_run : str
        Flower's id of the run, by which a ServerApp that was started again knows its directory.

    Raises
    ------
    SpcacwError
        If the directory cannot be made or written, already holds another run, or another process
        is at work in it.
    """

    def __init__(
        self, directory: Path, config: Config, engine: str,
        show: Callable[[dict[str, Any]], None] | None = None, flower_run: str = "",
    ) -> None:  # fmt: skip
        super().__init__(config)
        self.directory, self.engine, self._show = directory, engine, show
        self.flower_run = flower_run
        self._told = self._started
        self._scalars: Any = None
        self._keeper: Keeper | None = None
        self._resumes = bool(config.run.resume) or places.is_own(directory, flower_run)
        claim_directory(directory, self._resumes)
        self._lock = places.held(directory)
        self._stop = Stop(directory)
        self._stop.clear()
        if not self._resumes:
            self._write_config()
            self._status("waiting for silos")

    def _write_config(self) -> None:
        # Without the directory, so that the file repeats the run in a fresh one.
        text = as_toml(self.config.to_flat() | {"output": "", "resume": ""})
        write_atomically(self.directory / "config.toml", text.encode())

    def start(self, federation: Federation, rounds: int, objects: Mapping[str, Any]) -> int:
        """Open the growing files, or cut them to where they were when the run goes on."""
        super().start(federation, rounds, objects)
        done, every = None, self.config.run.checkpoint_every
        if every >= 0 or self._resumes:
            self._keeper = Keeper(self.directory, self.config, federation, objects)
            done = self._keeper.resume() if self._resumes else None
            self._write_config()  # of a run that goes on, epochs may have grown
        if done:
            self._go_on(done)
        else:
            self._open(federation)
        if self._keeper and every >= 0:
            self._keeper.check_room()
        if self.config.run.tensorboard:
            from torch.utils.tensorboard import SummaryWriter  # slow to import, rarely wanted

            where = str(self.directory / "tensorboard")
            self._scalars = SummaryWriter(where, purge_step=self.round + 1 if done else None)
        self._status("training")
        return self.round if done else 0

    def _open(self, federation: Federation) -> None:
        for name in places.GROWING:
            (self.directory / name).unlink(missing_ok=True)
        (self.directory / "metrics.jsonl").touch()
        with (self.directory / "alpha.csv").open("w", newline="") as file:
            csv.writer(file).writerow(["round", *(f"silo_{i.silo}" for i in federation.silos)])

    def _go_on(self, content: Mapping[str, Any]) -> None:
        """Recall what a checkpoint holds; what files have beyond it is of rounds to come again."""
        places.cut(self.directory, content["lengths"])
        self.recall(content["history"])
        then = content["versions"]
        changed = [f"{k} {then.get(k)} → {v}" for k, v in versions().items() if then.get(k) != v]
        if changed:
            log.warning("The run goes on with other versions, and may differ in the last bits: %s.",
                        ", ".join(changed))  # fmt: skip
        log.info("The run in %s goes on after round %s.", self.directory, self.round)

    def keep(self, round_: int) -> None:
        """Leave a checkpoint if it is time; end if somebody asked.

        Raises
        ------
        Stopped
            If somebody asked.
        """
        stops = self._stop.wanted and round_ < self.rounds
        keeper = self._keeper if self.config.run.checkpoint_every >= 0 else None
        if keeper and (stops or keeper.due(round_, self.rounds)):
            keeper.save(round_, self.memory(), {"versions": versions()})
        if stops:
            self._stop.clear()
            raise Stopped(f"It was stopped after round {round_} of {self.rounds}.")

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Take Ctrl-C, SIGTERM, or a file ``stop``, as a wish to end after the round."""
        with self._stop.watching():
            yield

    def weights(self, round_: int, alpha: NDArray[np.float64] | None) -> None:
        """Append a row to alpha.csv."""
        super().weights(round_, alpha)
        if alpha is None:
            return
        with (self.directory / "alpha.csv").open("a", newline="") as file:
            csv.writer(file).writerow([round_, *(repr(float(a)) for a in alpha)])
        if self._scalars:
            for silo, weight in enumerate(alpha):
                self._scalars.add_scalar(f"alpha/silo_{silo}", weight, round_)

    def progress(self, round_: int) -> None:
        """Note the round on disk, at most five times a second."""
        super().progress(round_)
        if time.perf_counter() - self._told >= PROGRESS_SECONDS:
            self._status("training")

    def epoch(self, ended: Epoch, accuracy: float, buffers: Mapping[str, Tensor]) -> None:
        """Append a line to metrics.jsonl and rows to silos.csv, and save the model."""
        super().epoch(ended, accuracy, buffers)
        line = self.epochs[-1]
        if ended.figures:
            self._write_figures(ended.figures)
        with (self.directory / "metrics.jsonl").open("a") as file:
            file.write(as_json(line) + "\n")
        self._save_model(self.state)
        if self._scalars:
            for name in ("accuracy", *ended.report):
                self._scalars.add_scalar(name, line[name], ended.round)
        self._status("training")

    def _write_figures(self, figures: Mapping[str, NDArray[np.float64]]) -> None:
        first = len(self.epochs) == 1
        table = {"alpha": self.alphas[-1][1], **figures} if self.alphas else figures
        with (self.directory / "silos.csv").open("w" if first else "a", newline="") as file:
            rows = csv.writer(file)
            if first:
                rows.writerow(["epoch", "silo", *table])
            for silo, values in enumerate(zip(*table.values(), strict=True)):
                rows.writerow([len(self.epochs), silo, *(repr(float(v)) for v in values)])

    def _save_model(self, state: Mapping[str, Tensor]) -> None:
        content = save({name: tensor.contiguous() for name, tensor in state.items()})
        write_atomically(self.directory / "model.safetensors", content)

    def finish(self) -> None:
        """Write summary.json and the pictures."""
        from spcacw_flwr.engine import (
            plots,  # here: Matplotlib takes a second, and some never finish
        )

        write_atomically(
            self.directory / "summary.json", json.dumps(self.summary(), indent=2).encode()
        )
        plots.save_accuracy(self.directory / "accuracy.png", self.epochs, self.accuracy_alone)
        if self.federation is not None and self.alphas:
            circular = setting_class(self.config.run.setting).group_kind == "angle"
            plots.save_alpha(self.directory / "alpha.png", self.alphas, self.federation, circular)
        self._close("finished")

    def fail(self, sentence: str) -> None:
        """Note the sentence that ended the run; what was learned so far stays on disk."""
        self._close("failed", error=sentence)

    def _close(self, state: str, **more: Any) -> None:
        if self._scalars:
            self._scalars.close()
        try:
            self._status(state, **more)
        finally:
            self._lock.release()

    def summary(self) -> dict[str, Any]:
        """Return the run in a few figures; accuracies in percent."""
        run, accuracy = self.config.run, [line["accuracy"] for line in self.epochs]
        assert self.federation is not None
        return {
            "setting": run.setting, "method": run.method, "engine": self.engine,
            "device": run.device, "seed": run.seed, "target": run.target, "rounds": self.rounds,
            "holdout": run.holdout, "epochs": len(self.epochs),
            "best_accuracy": max(accuracy), "last_accuracy": accuracy[-1],
            "alone": self._alone(),
            "alpha": [float(a) for a in self.alphas[-1][1]] if self.alphas else None,
            "target_gradients": self.epochs[-1]["target_gradients"],
            "floats": self.epochs[-1]["floats"], "bytes": self.epochs[-1]["bytes"],
            "figures": {name: as_list(values) for name, values in self.figures.items()},
            "rejections": self.gate.rejections() if self.gate else {},
            "privacy": self.privacy,
            "groups": [info.group for info in self.federation.silos],
            "group_kind": setting_class(run.setting).group_kind,
            "seconds": round(self.seconds, 3), "versions": versions(),
        }  # fmt: skip

    def _alone(self) -> dict[str, Any] | None:
        alone = self.accuracy_alone
        if not alone:
            return None
        return {"best_accuracy": max(alone), "last_accuracy": alone[-1], "accuracy": alone}

    def _status(self, state: str, **more: Any) -> None:
        self._told = time.perf_counter()
        last = self.epochs[-1] if self.epochs else {}
        table = {
            "state": state, "round": self.round, "rounds": self.rounds,
            "epoch": len(self.epochs), "epochs": self.config.run.epochs,
            "accuracy": last.get("accuracy"), "loss": last.get("loss"),
            "alpha": [float(a) for a in self.alphas[-1][1]] if self.alphas else [],
            **({places.FLOWER_RUN: self.flower_run} if self.flower_run else {}), **more,
        }  # fmt: skip
        write_atomically(self.directory / "status.json", as_json(table).encode())
        if self._show:
            self._show(table)
