"""SP-CACW as a Flower Strategy, usable in any app whose ClientApp speaks our records (records.py)::

    strategy = SPCACW(num_silos=7, target=0, eta=0.05, beta=0.1)
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=350)
    print(strategy.method.alpha)

``start`` hands the nodes to the loop of training that every engine shares (``engine/loop.py``): a
method may ask several questions in a round, which Flower's own loop, one message a node, does not
know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from logging import INFO
from typing import Any, NoReturn

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.loop import History, train
from spcacw_flwr.flower import records
from spcacw_flwr.flower.discovery import Found, discover
from spcacw_flwr.flower.grid import GridSilos
from spcacw_flwr.methods.base import Method
from spcacw_flwr.methods.guard import make_method
from spcacw_flwr.silos.batches import find_device
from spcacw_flwr.silos.metrics import METRICS
from spcacw_flwr.silos.protocol import Federation, Silos


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

    def find(self, grid: Grid) -> Found:
        """Ask all nodes, once, which silos they hold; SpcacwError if some are held by none."""
        if self._found is None:
            self._found = discover(grid, self.num_silos, self.config.run.node_timeout)
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

        ``timeout`` 0 is the key ``round-timeout``. A run that goes on from a checkpoint counts its
        rounds from the first one's beginning.
        """
        self.summary()
        layout, vector = records.arrays_to_model(initial_arrays)
        federation = replace(self.discover(grid), layout=layout)
        told = train_config, evaluate_config
        self.nodes = GridSilos(grid, self.config, self.find(grid), layout, timeout, *told)
        vector = vector.to(find_device(self.config.run.device))
        with self.connected(self.nodes, federation) as silos:
            self.method = make_method(self.config, federation, vector)
            train(silos, self.method, self.history, num_rounds)
        result = Result(arrays=records.model_to_arrays(layout, self.method.personal))
        for line in self.history.epochs:
            round_ = int(line["round"])
            result.train_metrics_clientapp[round_] = MetricRecord({"loss": line["loss"]})
            found = MetricRecord({name: line[name] for name in METRICS if name in line})
            result.evaluate_metrics_clientapp[round_] = found
        if evaluate_fn and (metrics := evaluate_fn(num_rounds, result.arrays)):
            result.evaluate_metrics_serverapp[num_rounds] = metrics
        return result

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
    ``method="spcacw-reg"`` adds the cubic term. SpcacwError if a key is unknown or out of range.
    """

    def __init__(self, num_silos: int, target: int = 0, **keys: Any) -> None:
        super().__init__(Config.from_keys(target=target, **keys), num_silos)
        if target >= num_silos:
            raise SpcacwError(f"target = {target} is not a silo: they are 0…{num_silos - 1}.")
