"""A Flower Strategy that runs any method of the registry, or one of the user's own.

``start`` hands the nodes to the training loop that every engine shares (``engine/loop.py``). A
method may ask several questions in a round, but Flower's own loop sends each node one message. The
strategy for other people's apps is :class:`~.server_app.SPCACW`.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from logging import INFO
from typing import Any, NoReturn

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.keys import STREAM
from spcacw_flwr.engine.loop import History, compared, see_classes, train
from spcacw_flwr.flower import records
from spcacw_flwr.flower.discovery import Found, discover
from spcacw_flwr.flower.grid import GridSilos, ask_once
from spcacw_flwr.flower.invitations import streams
from spcacw_flwr.methods.base import Method
from spcacw_flwr.methods.guard import make_method
from spcacw_flwr.silos.device import find_device
from spcacw_flwr.silos.metrics import METRICS
from spcacw_flwr.silos.protocol import Federation


class GradientStrategy(Strategy):
    """Runs any method with M = ``num_silos`` silos; ``history`` records what happens."""

    method: Method
    """The method with its state; set when training starts."""
    nodes: GridSilos
    """The silos behind their nodes; set when training starts."""

    def __init__(self, config: Config, num_silos: int, history: History | None = None) -> None:
        self.config, self.num_silos = config, num_silos
        self.history = history or History(config)
        self._found: Found | None = None

    @property
    def keys(self) -> Mapping[str, Any]:
        """The keys that every message sends the silos besides its question."""
        return {}

    def discover(self, grid: Grid) -> tuple[Found, Federation]:
        """Ask all nodes once; return what they hold. SpcacwError if no node holds some silo."""
        if self._found is None:
            timeout, resumes = self.config.run.node_timeout, self.history.resumes
            self._found = discover(grid, self.num_silos, timeout, self.keys, resumes)
        silos = tuple(self._found.infos[silo] for silo in range(self.num_silos))
        run = self.config.run
        return self._found, Federation(silos, run.target, self.config.samples_per_round)

    def start(
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, timeout: float = 0,
        train_config: ConfigRecord | None = None, evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:  # fmt: skip
        """Train for ``num_rounds`` rounds; the parameters are those of Flower's Strategy.

        ``initial_arrays`` may be a whole ``state_dict``: arrays that the silos do not train stay as
        they are. ``timeout`` 0 means the key ``round-timeout``. A run that goes on from a
        checkpoint counts its rounds from the beginning of the first run.
        """
        self.summary()
        found, federation = self.discover(grid)
        trained = found.models.get(found.nodes[federation.target])
        layout, vector = records.arrays_to_model(initial_arrays, trained)
        federation = replace(federation, layout=layout)
        told = [{**(one or {}), **self.keys} for one in (train_config, evaluate_config)]
        if any(info.privacy for info in federation.silos):
            ask_once(grid)
        self.nodes = GridSilos(grid, self.config, found, layout, timeout, *told)
        vector = vector.to(find_device(self.config.run.device, self.config.run.precision))
        streaming = self.config.transport.exchange == STREAM
        self.method = make_method(self.config, federation, vector)
        see_classes(federation)
        beside = compared(self.nodes, self.method, self.history, num_rounds)
        with (
            beside if self.history.directory else nullcontext(),
            streams(self.nodes, federation) if streaming else nullcontext(self.nodes) as silos,
        ):
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

    def summary(self) -> None:
        """Log what is about to run."""
        run = self.config.run
        log(INFO, "method %s, target silo %s of %s", run.method, run.target, self.num_silos)

    def _by_the_loop(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError("The rounds of this strategy are asked by its own start().")

    configure_train = aggregate_train = configure_evaluate = aggregate_evaluate = _by_the_loop
