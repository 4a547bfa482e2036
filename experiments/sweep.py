"""Many runs side by side, each in a process of its own; what is done stays done.

Each process has one thread, so that a run does not depend on how many others there are. One that
fails, or is killed, takes nobody with it. A run that was begun and not finished goes on from its
last checkpoint (:mod:`spcacw_flwr.experiments.worker`).
"""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Protocol

from filelock import FileLock, Timeout

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.silos.stacked import find_device

from .runs import FINISHED, RUNNING, WAITING, Run, prepare
from .worker import note_failure, work

POLL_SECONDS = 0.25
STOP_SECONDS = 15.0


class Show(Protocol):
    """What a sweep tells its display."""

    def tick(self) -> None:
        """Some time has passed."""

    def ended(self, run: Run) -> None:
        """A run has ended, well or not."""


def slots(devices: Sequence[str], workers: int) -> list[str]:
    """Return the device of each process: ``workers`` of them, 0 is one per device or core.

    Raises SpcacwError if a device is not there.
    """
    for device in devices:
        find_device(device)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    count = workers or (cores or 1 if list(devices) == ["cpu"] else len(devices))
    return [devices[k % len(devices)] for k in range(count)]


def start(run: Run, device: str) -> BaseProcess:
    """Start a run's process."""
    assert run.config is not None
    flat = run.config.to_flat() | {"output": str(run.directory.resolve()), "device": device}
    if run.config.run.engine == "in-process":
        flat["threads"] = 1
    run.state = RUNNING
    process = CONTEXT.Process(target=work, args=(flat,))
    process.start()
    return process


def collect(run: Run, process: BaseProcess) -> None:
    """Note how a run whose process has ended ended."""
    process.join()
    if run.done:
        run.state = FINISHED
        return
    said = run.status()
    code = process.exitcode or 0
    how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
    run.fail(said.get("error") or f"The run's process ended {how}; see {run.directory}/worker.log.")
    note_failure(run.directory, run.error)


def stop(processes: Sequence[BaseProcess]) -> None:
    """End processes; what they have not finished goes on with the next sweep."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


def sweep(
    runs: Sequence[Run], places: Sequence[str], root: Path, show: Show, seconds: float = math.inf
) -> None:
    """Make all runs that are not finished, one on each of ``places`` at a time.

    What is not finished after ``seconds`` is stopped, and goes on with the next sweep.

    Raises
    ------
    SpcacwError
        If another sweep is at work in ``root``.
    """
    root.mkdir(parents=True, exist_ok=True)
    lock = FileLock(root / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise SpcacwError(f"Another sweep is at work in {root}: wait for it.") from None
    running: dict[BaseProcess, tuple[Run, str]] = {}
    try:
        prepare(runs)
        todo = deque(run for run in dict.fromkeys(runs) if run.state == WAITING)
        free = deque(places)
        deadline = time.monotonic() + seconds
        while (todo or running) and time.monotonic() < deadline:
            while todo and free:
                run, device = todo.popleft(), free.popleft()
                running[start(run, device)] = run, device
            wait([process.sentinel for process in running], POLL_SECONDS)
            for process in [process for process in running if not process.is_alive()]:
                run, device = running.pop(process)
                collect(run, process)
                free.append(device)
                show.ended(run)
            show.tick()
    finally:
        stop(list(running))
        lock.release()


# A process of the fork server has all modules already, which take seconds to import, and none of
# the threads that a fork of this process would inherit half of.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["spcacw_flwr.experiments.__main__", "sklearn.datasets"])
