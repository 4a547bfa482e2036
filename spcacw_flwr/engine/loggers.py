"""Optional logs of a run's scalars: TensorBoard, MLflow, Weights & Biases.

Each has a key of the run, and is imported only when the key is set. A resumed run continues its
logs: ``loggers.json`` in its directory holds the name of the run in each service.
"""

import importlib
import json
import logging
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.directory import write_atomically

log = logging.getLogger(__name__)

NOTES = "loggers.json"


class Log(NamedTuple):
    """An open log for scalars."""

    known: str
    """The service's name for the run."""
    note: Callable[[Mapping[str, float], int], object]
    """Note some values of a round."""
    end: Callable[[bool], object]
    """End the log; the argument is whether the run finished."""


def tensorboard(directory: Path, config: Config, done: int, known: str) -> Log:
    """Open a log of TensorBoard, in ``tensorboard/``."""
    known = str(directory / "tensorboard")
    make = importlib.import_module("torch.utils.tensorboard").SummaryWriter
    writer = make(known, purge_step=done + 1 if done else None)

    def note(values: Mapping[str, float], round_: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, round_)

    return Log(known, note, lambda finished: writer.close())


def mlflow(directory: Path, config: Config, done: int, known: str) -> Log:
    """Open a run of MLflow: at MLFLOW_TRACKING_URI, or in ``mlflow.db`` next to the directory."""
    service = importlib.import_module("mlflow")
    if not service.is_tracking_uri_set():
        service.set_tracking_uri(f"sqlite:///{directory.absolute().parent / 'mlflow.db'}")
    run = service.start_run(run_id=known or None, run_name=directory.name, nested=True)
    if not known:
        service.log_params(config.to_flat())
    return Log(
        run.info.run_id,
        lambda values, round_: service.log_metrics(values, step=round_),
        lambda finished: service.end_run("FINISHED" if finished else "FAILED"),
    )


def wandb(directory: Path, config: Config, done: int, known: str) -> Log:
    """Open a run of Weights & Biases: in WANDB_PROJECT, or in ``spcacw``."""
    run = importlib.import_module("wandb").init(
        project=os.environ.get("WANDB_PROJECT", "spcacw"), name=directory.name,
        dir=str(directory), config=config.to_flat(), id=known or None,
        resume="allow" if known else None,
    )  # fmt: skip
    run.define_metric("*", step_metric="round")  # the steps of wandb cannot go back
    return Log(
        run.id,
        lambda values, round_: run.log({**values, "round": round_}),
        lambda finished: run.finish(exit_code=0 if finished else 1),
    )


KINDS = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}
"""The functions that open a log, by name: of the key and of the package."""


def need(config: Config) -> None:
    """Check that the packages of a run's logs are installed; SpcacwError if one is missing."""
    for name in KINDS:
        try:
            if getattr(config.run, name):
                importlib.import_module(name)
        except ImportError as error:
            raise SpcacwError(
                f"{name} = true needs the package {name}: pip install 'spcacw-flwr[{name}]', "
                f"or leave the key out ({error})."
            ) from error


class Loggers:
    """The logs of a run, none by default; a log that fails is dropped and training goes on.

    Raises SpcacwError if a log cannot begin.
    """

    def __init__(self, directory: Path, config: Config, done: int) -> None:
        notes = directory / NOTES
        known = json.loads(notes.read_text()) if done and notes.exists() else {}
        self._logs: dict[str, Log] = {}
        for name, kind in KINDS.items():
            if not getattr(config.run, name):
                continue
            try:
                self._logs[name] = kind(directory, config, done, known.get(name, ""))
            except Exception as error:  # for example no service, or an unknown key
                self.close(False)
                raise SpcacwError(f"{name} = true: its log cannot begin ({error}).") from error
        if self._logs:
            found = {name: one.known for name, one in self._logs.items()}
            write_atomically(notes, json.dumps(found).encode())

    def scalars(self, values: Mapping[str, float], round_: int) -> None:
        """Log some values of a round, without those that are not finite."""
        numbers = {name: float(value) for name, value in values.items() if math.isfinite(value)}
        if numbers:
            self._tell_all(lambda one: one.note(numbers, round_))

    def close(self, finished: bool) -> None:
        """End all logs."""
        self._tell_all(lambda one: one.end(finished))

    def _tell_all(self, tell: Callable[[Log], object]) -> None:
        for name, one in list(self._logs.items()):
            try:
                tell(one)
            except Exception as error:  # the network, a full disk: no reason to end a run
                del self._logs[name]
                log.warning("The log of %s ends here, training goes on (%s).", name, error)
