"""The Flower ServerApp of the target: read the configuration, train, leave the results.

:class:`SPCACW` does this for a user's own app, with the ClientApp of
:func:`~.client_app.silo_app`::

    strategy = SPCACW(num_silos=7, target=0, eta=0.05, beta=0.1)
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=350)
    print(strategy.method.alpha)

Any other ClientApp must use our records (``records.py``; docs/app.md).
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.keys import MESSAGE, STREAM
from spcacw_flwr.console import new_console
from spcacw_flwr.engine.directory import default_output, is_own, run_directory
from spcacw_flwr.engine.loop import History
from spcacw_flwr.engine.recorder import Recorder
from spcacw_flwr.flower import audit, records
from spcacw_flwr.flower.grid import hurry
from spcacw_flwr.flower.service import server_credentials
from spcacw_flwr.flower.strategy import GradientStrategy
from spcacw_flwr.report.page import write_report_if_possible
from spcacw_flwr.report.terminal import print_report
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.protocol import Federation
from spcacw_flwr.silos.setup import checked_setting, setting_of

app = ServerApp()
P = ParamSpec("P")
T = TypeVar("T")


def absolute_directory(config: Config) -> Path | None:
    """Return the run's directory, or None if none is named; SpcacwError if it is a relative path.

    Flower runs ServerApps in a directory of its own.
    """
    path = run_directory(config)
    if path is not None and not path.is_absolute():
        name = "resume" if config.run.resume else "output"
        raise SpcacwError(
            f"{name} = '{path}' must be an absolute path: the ServerApp runs in {Path.cwd()}."
        )
    return path


def ending_plainly(function: Callable[P, T]) -> Callable[P, T]:
    """Log a user's error and raise it with a short traceback, because Flower prints it."""

    @wraps(function)
    def guarded(*args: P.args, **more: P.kwargs) -> T:
        try:
            return function(*args, **more)
        except SpcacwError as error:
            log(logging.ERROR, "%s", error)
            raise error.with_traceback(None) from None

    return guarded


def show_log() -> None:
    """Show the core's log lines too: Flower shows only those of its own logger."""
    logging.getLogger("spcacw_flwr").parent = logging.getLogger("flwr")


class Audited(Recorder):
    """A recorder that also notes decisions and rejections in the audit log, if there is one."""

    def start(self, federation: Federation, rounds: int, objects: Mapping[str, Any]) -> int:
        """Note what is trained, and where its results go."""
        done = super().start(federation, rounds, objects)
        run = {"rounds": rounds, "after": done, "output": str(self.directory)}
        audit.note(audit.RUN, **run, config=self.config.to_flat())
        return done

    def progress(self, round_: int) -> None:
        """Note the answers of a round that were left out."""
        super().progress(round_)
        for silo, fault in self.gate.faults.items():
            audit.note(audit.REJECTED, round=round_, silo=silo, **vars(fault))

    def epoch(self, round_: int, *args: Any) -> None:
        """Note the result of an epoch."""
        super().epoch(round_, *args)
        line, told = self.epochs[-1], self.figures.get("epsilon", np.empty(0))
        audit.note(
            audit.EPOCH, round=round_, seconds=line["seconds"], loss=line["loss"],
            metric=self.config.run.metric, value=line[self.config.run.metric],
            alpha=[] if self.alpha is None else self.alpha.tolist(),
            quarantined=np.flatnonzero(self.gate.quarantined).tolist(),
            epsilon={str(i): float(e) for i, e in enumerate(told) if np.isfinite(e)},
        )  # fmt: skip


@contextmanager
def reported(history: History) -> Iterator[None]:
    """Finish a run's artefacts, if it leaves any, or note its error; then write the report."""
    try:
        with history.failing(), history.listening():
            yield
            history.finish()
    finally:
        if history.directory and (warning := write_report_if_possible(history.directory)):
            log(logging.WARNING, "%s", warning)


def output_directory(config: Config, flower_run: str = "") -> Path:
    """Return the directory of the results, the same one if Flower starts the run again."""
    if (path := absolute_directory(config)) is not None:
        return path
    runs = Path.home() / "spcacw-runs"
    own = (status.parent for status in runs.glob("*/status.json"))
    return next((d for d in own if is_own(d, flower_run)), default_output(config, runs))


def train(grid: Grid, config: Config, recorder: Recorder) -> None:
    """Run the configured training on a grid of nodes and fill the recorder."""
    setting = setting_of(config)
    strategy = GradientStrategy(config, setting.num_silos, recorder)
    _, federation = strategy.discover(grid)
    model = SiloPool(config, setting, ())  # holds no silo: only the model that they all share
    recorder.names = setting.names
    arrays = records.model_to_arrays(model.layout, model.initial_parameters())
    strategy.start(grid, arrays, config.run.epochs * federation.rounds_per_epoch)


def run(grid: Grid, config: Config, flower_run: str = "") -> Path:
    """Train as configured and return the directory of the results; a failure leaves it too.

    ``flower_run`` is Flower's id of the run. If Flower starts a killed ServerApp again, the
    ServerApp finds its directory by this id, and goes on from its last checkpoint.
    """
    simulated = hurry(grid)
    directory, engine = output_directory(config, flower_run), "ray" if simulated else "deployment"
    recorder = Audited(directory, config, engine, flower_run=flower_run)
    with reported(recorder):
        if config.transport.exchange == STREAM:
            if simulated:
                raise SpcacwError(
                    "exchange = 'stream' is for real silos, and these nodes are simulated: leave "
                    "the key out, or use engine = 'in-process'."
                )
            server_credentials(config.transport)  # else a wrong key ends the run much later
        train(grid, config, recorder)
    return recorder.directory


class SPCACW(GradientStrategy):
    """SP-CACW plus: M = ``num_silos``, the ``target``, and any run-config key by name.

    Keys are in snake_case: ``eta``, ``beta``, ``participation``, … (``spcacw keys`` lists them);
    ``method="spcacw"`` is Algorithm 1. The silos get the keys that they need: batch size
    and clipping are set only here. ``output`` is a directory for all artefacts and report.html;
    with it the target also trains alone (``compare_alone``). SpcacwError if a key is unknown or out
    of range.
    """

    def __init__(
        self, num_silos: int, target: int = 0, output: str | Path = "", **keys: Any
    ) -> None:
        own = {"setting": "own", "silos": num_silos, "output": str(output)}
        super().__init__(Config.from_keys(target=target, **(own | keys)), num_silos)
        if target >= num_silos:
            raise SpcacwError(f"target = {target} is not a silo: they are 0…{num_silos - 1}.")
        if self.config.transport.exchange != MESSAGE:
            raise SpcacwError(
                "exchange = 'stream' is of 'spcacw deploy': in an app of your own silos answer by "
                "messages, so leave the key out."
            )
        self._directory = absolute_directory(self.config)

    @property
    def keys(self) -> Mapping[str, Any]:
        """The keys that every message sends the silos besides its question."""
        flat = self.config.to_flat()
        told = {name: flat[name] for name in records.TOLD}
        return told | {records.NUM_SILOS: self.num_silos, records.METHOD: self.config.run.method}

    @ending_plainly
    def start(
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, *args: Any, **more: Any
    ) -> Result:
        """Train for ``num_rounds`` rounds, as Flower's Strategy does, and leave the artefacts."""
        show_log()
        engine, place = "ray" if hurry(grid) else "deployment", self._directory
        self.history = Audited(place, self.config, engine) if place else History(self.config)
        with reported(self.history):
            _, federation = self.discover(grid)
            epochs = -(-num_rounds // federation.rounds_per_epoch)
            self.config = replace(self.config, run=replace(self.config.run, epochs=epochs))
            self.history.config = self.config
            return super().start(grid, initial_arrays, num_rounds, *args, **more)


@app.main()
@ending_plainly
def main(grid: Grid, context: Context) -> None:
    """Train the target as the run config says; log why and raise if that fails."""
    show_log()
    audit.about(run=str(context.run_id))
    config = Config.from_flat(context.run_config)
    checked_setting(config)
    if config.run.engine != "ray":
        raise SpcacwError(
            f"engine = '{config.run.engine}' runs without Flower: use 'spcacw run --engine "
            f"{config.run.engine}', or leave the key out."
        )
    print_report(new_console(width=100), run(grid, config, str(context.run_id)))
