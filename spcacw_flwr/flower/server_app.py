"""The Flower ServerApp beside the target: read the configuration, train, leave the results."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from flwr.app import Context, Message
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp
from rich.console import Console

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.keys import STREAM
from spcacw_flwr.console import print_report
from spcacw_flwr.engine.directory import default_output, is_own, run_directory
from spcacw_flwr.engine.recorder import Recorder
from spcacw_flwr.flower import records
from spcacw_flwr.flower.invitations import StreamStrategy, check
from spcacw_flwr.flower.strategy import GradientStrategy
from spcacw_flwr.report.page import write_report_if_possible
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.setup import checked_setting, setting_of

app = ServerApp()
SIMULATED_SECONDS, PULL_SECONDS = 0.005, 0.1
"""Between two looks for replies, which would be most of a round: a tenth of a second in Flower's
simulation, three in its deployment."""
OVERDUE_FACTOR, OVERDUE_SECONDS = 2.0, 15.0
"""A reply is overdue after twice the time in which the last of the others came, and seconds.

Replies get lost where a SuperLink is busy: with 20 silos on two cores its database stayed locked
for longer than its requests wait (five seconds), and a SuperNode whose reply is refused so does not
try again.
"""


def output_directory(config: Config, flower_run: str = "") -> Path:
    """Return where the results go: where they went before, if Flower starts the run again.

    SpcacwError if the key ``output`` or ``resume`` is a relative path: Flower runs this app in a
    directory of its own.
    """
    path = run_directory(config)
    if path is None:
        runs = Path.home() / "spcacw-runs"
        own = (status.parent for status in runs.glob("*/status.json"))
        return next((d for d in own if is_own(d, flower_run)), default_output(config, runs))
    if not path.is_absolute():
        name = "resume" if config.run.resume else "output"
        raise SpcacwError(
            f"{name} = '{path}' must be an absolute path, for the ServerApp runs in {Path.cwd()}."
        )
    return path


def send_and_receive(
    grid: Grid, messages: Iterable[Message], *, timeout: float | None = None
) -> Iterable[Message]:
    """Send messages and return the replies that come within ``timeout`` seconds.

    A message whose reply is long overdue is sent once more, since Flower loses replies at times; it
    asks the same, and silos have no state that being asked twice could change.
    """
    messages, start = list(messages), time.monotonic()
    waiting = dict(zip(grid.push_messages(messages), messages, strict=True))
    overdue, again = math.inf, False
    replies: list[Message] = []
    while waiting and (timeout is None or time.monotonic() < start + timeout):
        came = list(grid.pull_messages(list(waiting)))
        for reply in came:
            asked = waiting.get(reply.metadata.reply_to_message_id)
            if asked is not None:  # the other of two replies to one question is not waited for
                waiting = {id_: one for id_, one in waiting.items() if one is not asked}
                replies.append(_as_reply_to(asked, reply))
        now = time.monotonic()
        if came:
            overdue = OVERDUE_FACTOR * (now - start) + OVERDUE_SECONDS
        if waiting and not again and now - start > overdue:
            again = True
            lost = list(waiting.values())
            waiting |= dict(zip(grid.push_messages(map(_copy, lost)), lost, strict=True))
            nodes = sorted(message.metadata.dst_node_id for message in lost)
            log(logging.WARNING, "Nodes %s are asked again: the others answered long ago.", nodes)
        if waiting:
            time.sleep(PULL_SECONDS)
    return replies


def _copy(message: Message) -> Message:
    told = message.metadata
    return Message(
        message.content, dst_node_id=told.dst_node_id, message_type=told.message_type,
        group_id=told.group_id,
    )  # fmt: skip


def _as_reply_to(message: Message, reply: Message) -> Message:
    """Return the reply to a message, or to its copy, as one to the message itself."""
    told, asked = reply.metadata, message.metadata
    if told.reply_to_message_id == asked.message_id or told.src_node_id != asked.dst_node_id:
        return reply
    what = reply.error if reply.has_error() else reply.content
    return Message(what, reply_to=message)


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
    if config.run.compare_alone and config.run.method != "local":
        try:
            recorder.alone = strategy.nodes.train_alone(strategy.method.personal)
        except SpcacwError as error:  # a comparison that failed must not cost a finished training
            log(logging.WARNING, "There is no comparison with training alone: %s", error)


def run(grid: Grid, config: Config, flower_run: str = "") -> Path:
    """Train as configured and return the directory of the results, which a failure leaves too.

    ``flower_run`` is Flower's id of the run. A ServerApp that was killed, and that Flower starts
    again, finds by it the directory that it wrote, and goes on from its last checkpoint.
    """
    simulated = hasattr(grid, "pull_interval")
    if simulated:
        setattr(grid, "pull_interval", SIMULATED_SECONDS)  # noqa: B010  only simulation has it
    else:
        grid.send_and_receive = partial(send_and_receive, grid)  # type: ignore[method-assign]
    directory, engine = output_directory(config, flower_run), "ray" if simulated else "deployment"
    recorder = Recorder(directory, config, engine, flower_run=flower_run)
    try:
        with recorder.failing():
            if config.transport.exchange == STREAM:
                check(simulated, recorder)
            train(grid, config, recorder)
            recorder.finish()
    finally:
        if warning := write_report_if_possible(recorder.directory):
            log(logging.WARNING, "%s", warning)
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
        print_report(Console(width=100), run(grid, config, str(context.run_id)))
    except SpcacwError as error:
        log(logging.ERROR, "%s", error)
        # Flower prints the traceback of whatever ends a ServerApp: let it be a short one.
        raise error.with_traceback(None) from None
    finally:
        logger.removeFilter(_quiet_rounds)
