"""SP-CACW as a Flower Strategy, for any app whose ClientApp is :func:`~.client_app.silo_app`::

    strategy = SPCACW(num_silos=7, target=0, eta=0.05, beta=0.1)
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=350)
    print(strategy.method.alpha)

A ClientApp of another make must speak our records (``records.py``; docs/app.md).

``start`` hands the nodes to the loop of training that every engine shares (``engine/loop.py``): a
method may ask several questions in a round, which Flower's own loop, one message a node, does not
know.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, NoReturn

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.keys import MESSAGE
from spcacw_flwr.engine.directory import run_directory
from spcacw_flwr.engine.loop import History, train
from spcacw_flwr.engine.recorder import Recorder
from spcacw_flwr.flower import records
from spcacw_flwr.flower.discovery import Found, discover
from spcacw_flwr.flower.grid import GridSilos
from spcacw_flwr.flower.polling import hurry
from spcacw_flwr.methods.base import Method
from spcacw_flwr.methods.guard import make_method
from spcacw_flwr.report.page import write_report_if_possible
from spcacw_flwr.silos.batches import find_device
from spcacw_flwr.silos.metrics import METRICS
from spcacw_flwr.silos.protocol import Federation, Silos


def absolute_directory(config: Config) -> Path | None:
    """Return the run's directory, or None if none is named; SpcacwError if it is a relative path.

    Flower runs ServerApps in a directory of its own.
    """
    path = run_directory(config)
    if path is not None and not path.is_absolute():
        name = "resume" if config.run.resume else "output"
        raise SpcacwError(
            f"{name} = '{path}' must be an absolute path, for the ServerApp runs in {Path.cwd()}."
        )
    return path


@contextmanager
def reported(recorder: Recorder) -> Iterator[None]:
    """Finish a run's artefacts after the block, or note what ended it; write the report."""
    try:
        with recorder.failing():
            yield
            recorder.finish()
    finally:
        if warning := write_report_if_possible(recorder.directory):
            log(WARNING, "%s", warning)


class GradientStrategy(Strategy):
    """Runs any method with M = ``num_silos`` silos; ``history`` notes what happens."""

    def __init__(self, config: Config, num_silos: int, history: History | None = None) -> None:
        self.config, self.num_silos = config, num_silos
        self.history = history or History(config)
        self._found: Found | None = None

    method: Method
    """The method with its state, since training has started."""
    nodes: GridSilos
    """The silos behind their nodes, since training has started."""
    keys: Mapping[str, Any] = {}
    """What every message tells the silos beside its question."""

    def find(self, grid: Grid) -> Found:
        """Ask all nodes, once, which silos they hold; SpcacwError if some are held by none."""
        if self._found is None:
            timeout = self.config.run.node_timeout
            self._found = discover(grid, self.num_silos, timeout, self.keys)
        return self._found

    def discover(self, grid: Grid) -> Federation:
        """Return the silos that were found."""
        infos = self.find(grid).infos
        silos = tuple(infos[silo] for silo in range(self.num_silos))
        return Federation(silos, self.config.run.target, self.config.samples_per_round)

    @contextmanager
    def connected(self, silos: GridSilos, federation: Federation) -> Iterator[Silos]:
        """Yield what the loop asks: the nodes themselves, by messages."""
        yield silos

    def start(
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, timeout: float = 0,
        train_config: ConfigRecord | None = None, evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:  # fmt: skip
        """Train for so many rounds; parameters are those of Flower's Strategy.

        ``initial_arrays`` may be a whole ``state_dict``: what the silos do not train is left as it
        is. ``timeout`` 0 is the key ``round-timeout``. A run that goes on from a checkpoint counts
        its rounds from the first one's beginning.
        """
        self.summary()
        federation, found = self.discover(grid), self.find(grid)
        trained = found.models.get(found.nodes[federation.target])
        layout, vector = records.arrays_to_model(initial_arrays, trained)
        federation = replace(federation, layout=layout)
        told = [{**(one or {}), **self.keys} for one in (train_config, evaluate_config)]
        self.nodes = GridSilos(grid, self.config, found, layout, timeout, *told)
        vector = vector.to(find_device(self.config.run.device))
        with self.connected(self.nodes, federation) as silos:
            self.method = make_method(self.config, federation, vector)
            train(silos, self.method, self.history, num_rounds)
        state = {**self.history.parameters, **layout.unflatten(self.method.personal)}
        parts = {name: Array(part.cpu().numpy()) for name, part in state.items()}
        result = Result(arrays=ArrayRecord({**initial_arrays, **parts}))
        for line in self.history.epochs:
            round_ = int(line["round"])
            result.train_metrics_clientapp[round_] = MetricRecord({"loss": line["loss"]})
            figures = MetricRecord({name: line[name] for name in METRICS if name in line})
            result.evaluate_metrics_clientapp[round_] = figures
        if evaluate_fn and (metrics := evaluate_fn(num_rounds, result.arrays)):
            result.evaluate_metrics_serverapp[num_rounds] = metrics
        return result

    def compare(self) -> None:
        """Let the target train alone as well, if it is to, and note its figures."""
        run = self.config.run
        if not run.compare_alone or run.method == "local":
            return
        try:
            self.history.alone = self.nodes.train_alone(self.method.personal)
        except SpcacwError as error:  # a comparison that failed must not cost a finished training
            log(WARNING, "There is no comparison with training alone: %s", error)

    def summary(self) -> None:
        """Log what is about to run."""
        run = self.config.run
        log(INFO, "method %s, target silo %s of %s", run.method, run.target, self.num_silos)

    def _by_the_loop(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError("The rounds of this strategy are asked by its own start().")

    configure_train = aggregate_train = configure_evaluate = aggregate_evaluate = _by_the_loop


class SPCACW(GradientStrategy):
    """SP-CACW (Algorithm 1): M = ``num_silos``, the ``target``, and any run-config key by name.

    Keys are in snake_case: ``eta``, ``beta``, ``participation``, … (``spcacw keys`` lists them);
    ``method="spcacw-reg"`` adds the cubic term. The silos are told those that they need: batch size
    and clipping have one place, here. ``output`` is a directory for all artefacts and report.html;
    the target then trains alone as well (``compare_alone``). SpcacwError if a key is unknown or out
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
        self._tell()

    def _tell(self) -> None:
        flat = self.config.to_flat()
        self.keys = {name: flat[name] for name in records.TOLD} | {
            records.NUM_SILOS: self.num_silos
        }

    def start(
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, *args: Any, **more: Any
    ) -> Result:
        """Train for so many rounds, as Flower's Strategy does, and leave the artefacts."""
        logging.getLogger("spcacw_flwr").parent = logging.getLogger("flwr")  # to be seen
        engine = "ray" if hurry(grid) else "deployment"
        epochs = -(-num_rounds // self.discover(grid).rounds_per_epoch)
        self.config = replace(self.config, run=replace(self.config.run, epochs=epochs))
        self._tell()
        if self._directory is None:
            self.history = History(self.config)
            return super().start(grid, initial_arrays, num_rounds, *args, **more)
        recorder = self.history = Recorder(self._directory, self.config, engine)
        with reported(recorder):
            result = super().start(grid, initial_arrays, num_rounds, *args, **more)
            self.compare()
        return result
