"""One run of a sweep, in a process of its own: whatever happens there, the others go on.

All that comes back is what the run leaves in its directory. ``status.json`` says how it ended, and
``worker.log`` has what was printed, which would tear a live display apart.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine import checkpoint
from spcacw_flwr.engine.recorder import as_json, write_atomically
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.engine.stop import Stopped
from spcacw_flwr.flower import launch
from spcacw_flwr.silos.setup import checked_setting


def note_failure(directory: Path, sentence: str) -> None:
    """Write the sentence that ended a run into its status."""
    directory.mkdir(parents=True, exist_ok=True)
    table = {"state": "failed", "error": sentence}
    write_atomically(directory / "status.json", as_json(table).encode())


def watch_parent(_: dict[str, Any]) -> None:
    """Stop when the sweep itself is gone: nobody would wait for the result."""
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        raise KeyboardInterrupt


def compute(config: Config) -> None:
    """Run a configuration by its engine."""
    if config.run.engine == "in-process":
        simulate(config, watch_parent)
    else:
        launch.run(config, checked_setting(config).num_silos, watch_parent)


def work(flat: dict[str, Any]) -> None:
    """Run a flat configuration into its directory, from its last checkpoint if it has one.

    Without one nothing of the directory is kept. Nor is a checkpoint of a run that failed: the next
    sweep makes it anew.
    """
    directory = Path(flat["output"])
    kept = directory / checkpoint.DIRECTORY
    if checkpoint.exists(kept):
        flat = flat | {"resume": str(directory)}
    else:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
    with (directory / "worker.log").open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    # Ctrl-C goes to the whole group: the sweep ends its runs in order, by SIGTERM, which lets a
    # run under Ray end the SuperLink that it started.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            compute(Config.from_flat(flat))
        shutil.rmtree(kept, ignore_errors=True)
    except (Stopped, KeyboardInterrupt):
        raise SystemExit(130) from None
    except SpcacwError as error:
        shutil.rmtree(kept, ignore_errors=True)
        note_failure(directory, str(error))
        raise SystemExit(1) from None
