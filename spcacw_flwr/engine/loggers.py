"""Where a run's scalars go beside its own files: TensorBoard, MLflow, Weights & Biases.

Each is a key of the run, and imported when it is wanted. A run that goes on from its checkpoint
goes on with its logs: ``loggers.json`` in its directory has what each service calls it.
"""

import importlib
import json
import logging
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.directory import write_atomically

log = logging.getLogger(__name__)

NOTES = "loggers.json"


class Logger(Protocol):
    """A place for scalars."""

    known: str
    """What the service calls the run."""

    def scalars(self, values: Mapping[str, float], round_: int) -> None:
        """Note some values of a round."""

    def close(self, finished: bool) -> None:
        """End the log."""


class TensorBoard:
    """Files in ``tensorboard/``, for TensorBoard."""

    def __init__(self, directory: Path, config: Config, done: int, known: str) -> None:
        writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        self.known = str(directory / "tensorboard")
        self._writer = writer(self.known, purge_step=done + 1 if done else None)

    def scalars(self, values: Mapping[str, float], round_: int) -> None:
        """Note some values of a round."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, round_)

    def close(self, finished: bool) -> None:
        """End the log."""
        self._writer.close()


class MLflow:
    """A run of MLflow: at MLFLOW_TRACKING_URI, or in ``mlflow.db`` beside the run's directory."""

    def __init__(self, directory: Path, config: Config, done: int, known: str) -> None:
        self._mlflow = mlflow = importlib.import_module("mlflow")
        if not mlflow.is_tracking_uri_set():
            mlflow.set_tracking_uri(f"sqlite:///{directory.absolute().parent / 'mlflow.db'}")
        run = mlflow.start_run(run_id=known or None, run_name=directory.name, nested=True)
        self.known = run.info.run_id
        if not known:
            mlflow.log_params(config.to_flat())

    def scalars(self, values: Mapping[str, float], round_: int) -> None:
        """Note some values of a round."""
        self._mlflow.log_metrics(values, step=round_)

    def close(self, finished: bool) -> None:
        """End the log."""
        self._mlflow.end_run("FINISHED" if finished else "FAILED")


class WandB:
    """A run of Weights & Biases: in WANDB_PROJECT, or in ``spcacw``."""

    def __init__(self, directory: Path, config: Config, done: int, known: str) -> None:
        self._run = importlib.import_module("wandb").init(
            project=os.environ.get("WANDB_PROJECT", "spcacw"), name=directory.name,
            dir=str(directory), config=config.to_flat(), id=known or None,
            resume="allow" if known else None,
        )  # fmt: skip
        self.known = self._run.id
        self._run.define_metric("*", step_metric="round")  # its own steps may not go back

    def scalars(self, values: Mapping[str, float], round_: int) -> None:
        """Note some values of a round."""
        self._run.log({**values, "round": round_})

    def close(self, finished: bool) -> None:
        """End the log."""
        self._run.finish(exit_code=0 if finished else 1)


KINDS: dict[str, Callable[[Path, Config, int, str], Logger]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
}
"""By the name of the key, and of the package."""


class Loggers:
    """All that a run wants, none by default; one that fails is left out, for training goes on.

    Raises SpcacwError if one cannot begin.
    """

    def __init__(self, directory: Path, config: Config, done: int = 0) -> None:
        notes = directory / NOTES
        known = json.loads(notes.read_text()) if done and notes.exists() else {}
        self._loggers: dict[str, Logger] = {}
        for name, kind in KINDS.items():
            if not getattr(config.run, name):
                continue
            try:
                self._loggers[name] = kind(directory, config, done, known.get(name, ""))
            except ImportError as error:
                self.close(False)
                raise SpcacwError(
                    f"{name} = true needs the package {name}: pip install 'spcacw-flwr[{name}]', "
                    f"or leave the key out ({error})."
                ) from error
            except Exception as error:  # a service that is not there, a key that is not known
                self.close(False)
                raise SpcacwError(f"{name} = true: its log cannot begin ({error}).") from error
        if found := {name: logger.known for name, logger in self._loggers.items()}:
            write_atomically(notes, json.dumps(found).encode())

    def scalars(self, values: Mapping[str, float], round_: int) -> None:
        """Note some values of a round; those that are not numbers are left out."""
        numbers = {name: float(value) for name, value in values.items() if math.isfinite(value)}
        for name in list(self._loggers) if numbers else ():
            self._try(name, "scalars", numbers, round_)

    def close(self, finished: bool) -> None:
        """End all logs."""
        for name in list(self._loggers):
            self._try(name, "close", finished)

    def _try(self, name: str, what: str, *values: Any) -> None:
        try:
            getattr(self._loggers[name], what)(*values)
        except Exception as error:  # the network, a full disk: nothing to end a run for
            del self._loggers[name]
            log.warning("The log of %s ends here, training goes on (%s).", name, error)
