"""The in-process engine: all silos in one process, their data stacked on one device.

It runs the same method and silo functions as Flower's strategy and ClientApp, without messages. It
needs only PyTorch and the scientific stack::

    from spcacw_flwr.config.config import Config
    from spcacw_flwr.engine.simulate import simulate

    result = simulate(Config.from_keys(setting="mnist-relabel", data_dir="data"))
    print(result.accuracy[-1], result.alpha)
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from spcacw_flwr.alpha.crew import crew
from spcacw_flwr.config.config import Config
from spcacw_flwr.engine.directory import run_directory
from spcacw_flwr.engine.loop import Alone, History, compared, see_classes, train
from spcacw_flwr.engine.recorder import Recorder
from spcacw_flwr.methods.base import Method
from spcacw_flwr.methods.guard import make_method
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.protocol import Federation, SiloInfo
from spcacw_flwr.silos.setting import prepare
from spcacw_flwr.silos.setup import checked_setting

SMALL_ROUND = 512
"""Most samples of a round, M·b, at which a second thread gains nothing (docs/engine.md)."""


def simulate(config: Config, show: Callable[[dict[str, Any]], None] | None = None) -> History:
    """Run a configuration in this process and return its history.

    Parameters
    ----------
    config : Config
        The artefacts go to its key ``output``; if that is empty, nothing is written.
    show : callable, optional
        Called with the content of status.json whenever that changes (with ``output`` only).

    Raises
    ------
    SpcacwError
        If the configuration, the data or the run has an error; results so far are on disk.
    """
    setting = checked_setting(config)
    prepare(setting)
    output = run_directory(config)
    history = Recorder(output, config, "in-process", show) if output else History(config)
    log = logged(output, echo=show is None) if output else nullcontext()
    with history.failing(), log, history.listening():
        pool = SiloPool(config, setting, range(setting.num_silos))
        method = method_for(config, pool.describe(), pool)
        history.names = setting.names
        see_classes(method.federation)
        with (
            threads(config.run.threads, setting.num_silos * config.samples_per_round, pool),
            compared(Alone(pool), method, history),
        ):
            train(pool, method, history)
        history.finish()
    return history


@contextmanager
def logged(directory: Path, echo: bool = True) -> Iterator[None]:
    """Write the log messages of the block to a run's ``run.log``; other handlers stay.

    With ``echo``, warnings go to the terminal too if no other code has configured logging.
    """
    log, file = logging.getLogger("spcacw_flwr"), logging.FileHandler(directory / "run.log")
    file.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    level, alone = log.level, not log.hasHandlers()
    added = [file, *([logging.lastResort] if echo and alone and logging.lastResort else [])]
    if alone:
        log.setLevel(logging.INFO)
    for handler in added:
        log.addHandler(handler)
    try:
        yield
    finally:
        log.setLevel(level)
        for handler in added:
            log.removeHandler(handler)
        file.close()


def method_for(config: Config, silos: Iterable[SiloInfo], pool: SiloPool) -> Method:
    """Return the target's configured method for a federation of ``silos`` of a pool."""
    size = config.samples_per_round
    federation = Federation(tuple(silos), config.run.target, size, pool.layout)
    return make_method(config, federation, pool.initial_parameters())


@contextmanager
def threads(wanted: int, samples: int, pool: SiloPool | None = None) -> Iterator[None]:
    """Compute with ``wanted`` threads; if that is 0, the size of a round decides.

    The threads are a crew's (:mod:`spcacw_flwr.alpha.crew`) if ``pool``, if any, can use a crew,
    else PyTorch's. If two processes share the cores, PyTorch's threads wait for threads that do not
    run: two small runs side by side then take ten times as long.
    """
    before = torch.get_num_threads()
    cores = wanted or (1 if samples <= SMALL_ROUND else before)
    if cores == 1 or pool is None or pool.splits:
        with crew(cores):
            yield
        return
    torch.set_num_threads(cores)
    try:
        yield
    finally:
        torch.set_num_threads(before)
