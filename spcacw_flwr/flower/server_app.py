"""The Flower ServerApp beside the target: read the configuration, train, leave the results."""

from __future__ import annotations

import logging
from pathlib import Path

from flwr.app import Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.keys import STREAM
from spcacw_flwr.console import new_console
from spcacw_flwr.engine.directory import default_output, is_own
from spcacw_flwr.engine.recorder import Recorder
from spcacw_flwr.flower import records
from spcacw_flwr.flower.invitations import StreamStrategy, check
from spcacw_flwr.flower.polling import hurry
from spcacw_flwr.flower.strategy import GradientStrategy, absolute_directory, reported
from spcacw_flwr.report.terminal import print_report
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.setup import checked_setting, setting_of

app = ServerApp()


def output_directory(config: Config, flower_run: str = "") -> Path:
    """Return where the results go: where they went before, if Flower starts the run again.

    SpcacwError if the key ``output`` or ``resume`` is a relative path: Flower runs this app in a
    directory of its own.
    """
    path = absolute_directory(config)
    if path is None:
        runs = Path.home() / "spcacw-runs"
        own = (status.parent for status in runs.glob("*/status.json"))
        return next((d for d in own if is_own(d, flower_run)), default_output(config, runs))
    return path


def _quiet_rounds(record: logging.LogRecord) -> bool:
    """Drop Flower's two log lines per round, which would be thousands for nothing."""
    return record.msg not in ("", "[ROUND %s/%s]")


def train(grid: Grid, config: Config, recorder: Recorder) -> None:
    """Run the configured training on a grid of nodes and fill the recorder."""
    setting = setting_of(config)
    streams = config.transport.exchange == STREAM
    kind = StreamStrategy if streams else GradientStrategy
    strategy = kind(config, setting.num_silos, recorder)
    federation = strategy.discover(grid)
    model = SiloPool(config, setting, ())  # holds no silo: only the model that they all share
    arrays = records.model_to_arrays(model.layout, model.initial_parameters())
    strategy.start(grid, arrays, config.run.epochs * federation.rounds_per_epoch)
    strategy.compare()


def run(grid: Grid, config: Config, flower_run: str = "") -> Path:
    """Train as configured and return the directory of the results, which a failure leaves too.

    ``flower_run`` is Flower's id of the run. A ServerApp that was killed, and that Flower starts
    again, finds by it the directory that it wrote, and goes on from its last checkpoint.
    """
    simulated = hurry(grid)
    directory, engine = output_directory(config, flower_run), "ray" if simulated else "deployment"
    recorder = Recorder(directory, config, engine, flower_run=flower_run)
    with reported(recorder):
        if config.transport.exchange == STREAM:
            check(simulated, recorder)
        train(grid, config, recorder)
    return recorder.directory


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the target as the run config says; raise after saying why when that fails."""
    logger = logging.getLogger("flwr")
    logger.addFilter(_quiet_rounds)
    logging.getLogger("spcacw_flwr").parent = logger  # what the core says is to be seen as well
    try:
        config = Config.from_flat(context.run_config)
        checked_setting(config)
        if config.run.engine != "ray":
            raise SpcacwError(
                f"engine = '{config.run.engine}' runs without Flower: use 'spcacw run --engine "
                f"{config.run.engine}', or leave the key out."
            )
        print_report(new_console(width=100), run(grid, config, str(context.run_id)))
    except SpcacwError as error:
        log(logging.ERROR, "%s", error)
        # Flower prints the traceback of whatever ends a ServerApp: let it be a short one.
        raise error.with_traceback(None) from None
    finally:
        logger.removeFilter(_quiet_rounds)
