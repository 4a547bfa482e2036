"""Many runs side by side, each in a process of its own; what is done stays done.

Each process has one thread, so that a run does not depend on how many others there are. One that
fails, or is killed, takes nobody with it: all that comes back is what the run leaves in its
directory. ``status.json`` says how it ended, and ``worker.log`` has what was printed, which would
tear a live display apart. A run that was begun and not finished goes on from its last checkpoint.

With a Ray cluster they are its tasks instead (:mod:`.cluster`).

Table 1 keeps the directories of its runs, and one file that another machine can go on from
(:meth:`Where.run`). A study keeps a line of CSV for each run, and its directory goes when that line
is written (:meth:`Where.fill`).
"""

from __future__ import annotations

import math
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.progress import track
from threadpoolctl import threadpool_limits

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import Scarce, SpcacwError
from spcacw_flwr.engine import checkpoint
from spcacw_flwr.engine.directory import Stopped, append, held, write_atomically
from spcacw_flwr.engine.recorder import as_json
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.flower import launch
from spcacw_flwr.silos.device import find_device
from spcacw_flwr.silos.setup import checked_setting

from .conf import Job, Keys
from .results import Table
from .runs import FAILED, FINISHED, RUNNING, WAITING, Display, Run, keep, plan, prepare, restore

if TYPE_CHECKING:
    from .cluster import Away, Cluster

POLL_SECONDS = 0.25
STOP_SECONDS = 15.0


def ended_as(directory: Path, state: str, **more: str) -> None:
    """Write into the status of a run how it ended."""
    directory.mkdir(parents=True, exist_ok=True)
    write_atomically(directory / "status.json", as_json({"state": state, **more}).encode())


def watch_parent(_: dict[str, Any]) -> None:
    """Stop when the sweep itself is gone: nobody would wait for the result."""
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        raise KeyboardInterrupt


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
            config = Config.from_flat(flat)
            if config.run.engine == "in-process":
                simulate(config, watch_parent)
            else:
                launch.run(config, checked_setting(config).num_silos, watch_parent)
        shutil.rmtree(kept, ignore_errors=True)
    except (Stopped, KeyboardInterrupt) as error:  # the next sweep goes on with it
        ended_as(directory, WAITING, error=str(error))
        raise SystemExit(130) from None
    except SpcacwError as error:
        shutil.rmtree(kept, ignore_errors=True)
        ended_as(directory, FAILED, error=str(error), kind=type(error).__name__)
        raise SystemExit(1) from None


def slots(devices: Sequence[str], workers: int) -> list[str]:
    """Return the device of each process: ``workers`` of them, 0 is one per device or core.

    Raises SpcacwError if a device is not there.
    """
    for device in devices:
        find_device(device)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    count = workers or (cores or 1 if list(devices) == ["cpu"] else len(devices))
    return [devices[k % len(devices)] for k in range(count)]


def start(run: Run, device: str, cluster: Cluster | None) -> BaseProcess | Away:
    """Start a run's process, here or in a cluster."""
    assert run.config is not None
    flat = run.config.to_flat() | {"output": str(run.directory.resolve()), "device": device}
    if run.config.run.engine == "in-process":
        flat["threads"] = 1
    run.state = RUNNING
    if cluster:
        return cluster.run(flat)
    process = CONTEXT.Process(target=work, args=(flat,))
    process.start()
    return process


def collect(run: Run, process: BaseProcess | Away) -> None:
    """Note how a run whose process has ended ended."""
    process.join()
    if run.done:
        run.state = FINISHED
        return
    said = run.status()
    code = process.exitcode or 0
    run.killed = "error" not in said or said.get("kind") == Scarce.__name__
    how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
    run.fail(said.get("error") or f"The run's process ended {how}; see {run.directory}/worker.log.")
    ended_as(run.directory, FAILED, error=run.error)


def stop(processes: Sequence[BaseProcess | Away]) -> None:
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
    runs: Sequence[Run], places: Sequence[str], root: Path, show: Display,
    seconds: float = math.inf, note: Callable[[Run], None] | None = None,
    cluster: Cluster | None = None,
) -> None:  # fmt: skip
    """Make all runs that are not finished, one on each of ``places`` at a time.

    What is not finished after ``seconds`` is stopped, and goes on with the next sweep. ``note``
    hears of each run that has ended, in this sweep or before it. SpcacwError if another process
    is at work in ``root``.
    """
    lock = held(root)
    running: dict[BaseProcess | Away, tuple[Run, str]] = {}
    try:
        for run in dict.fromkeys(runs):
            if note and run.state in (FINISHED, FAILED):
                note(run)
        prepare(runs)
        todo = deque(run for run in dict.fromkeys(runs) if run.state == WAITING)
        free = deque(places)
        deadline = time.monotonic() + seconds
        while (todo or running) and time.monotonic() < deadline:
            while todo and free:
                run, device = todo.popleft(), free.popleft()
                running[start(run, device, cluster)] = run, device
            wait([process.sentinel for process in running], POLL_SECONDS)
            for process in [process for process in running if not process.is_alive()]:
                run, device = running.pop(process)
                collect(run, process)
                free.append(device)
                show.ended(run)
                if note:
                    note(run)
            show.tick()
    finally:
        stop(list(running))
        lock.release()


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as above
    torch.set_num_threads(1)
    threadpool_limits(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def complain(failed: Mapping[str, int]) -> None:
    """Raise SpcacwError if runs failed; ``failed`` is what :meth:`Where.add` returned."""
    if failed:
        told = " ".join(f"{sentence} ({count} runs)" for sentence, count in failed.items())
        raise SpcacwError(f"Runs failed; the same command tries them again. {told}")


Line = Callable[[Job, Run], Mapping[str, Any] | None]
"""Returns the figures of a run that has ended; None if it leaves no line."""


@dataclass(frozen=True)
class Where:
    """Where a sweep works and leaves its results."""

    output: Path
    devices: tuple[str, ...] = ("cpu",)
    workers: int = 0
    """Processes; 0 is one for each device, or each core of the CPU."""
    report_only: bool = False
    seconds: float = math.inf
    """After which runs that are not finished are left for another time."""
    ray: str = ""
    """The address of a Ray cluster whose tasks the runs are."""

    @cached_property
    def cluster(self) -> Cluster | None:
        """The cluster, if there is one; SpcacwError if it cannot be reached."""
        if not self.ray:
            return None
        from .cluster import Cluster  # Ray is not on every machine

        return Cluster(self.ray, self.devices)

    def make(
        self, jobs: Sequence[Job], console: Console, note: Callable[[Run], None] | None = None
    ) -> list[Run]:
        """Return the run of each job, once it is made; ``note`` is that of :func:`sweep`.

        SpcacwError if a device is not there, or another process is at work there.
        """
        root = self.output / "runs"
        runs = plan(jobs, root)
        if runs and not self.report_only:
            places, display = self.places(), Display(console, runs)
            with display.showing():
                sweep(runs, places, root, display, self.seconds, note, self.cluster)
        return runs

    def places(self) -> list[str]:
        """Return the device of each run at a time; SpcacwError if one is not there."""
        if self.cluster is None:
            return slots(self.devices, self.workers)
        return [self.cluster.device] * (self.workers or self.cluster.places)

    def run(self, jobs: Sequence[Job], console: Console) -> list[Run]:
        """Do as :meth:`make`, and go on from runs.jsonl, which gets what the runs logged.

        SpcacwError if then no run at all is finished, too.
        """
        kept = self.output / "runs.jsonl"
        known = restore(kept, self.output / "runs")

        def note(run: Run) -> None:  # at once: a lent machine may be gone before the last ends
            if run.done and run.directory.name not in known:
                append(kept, run.line())

        runs = self.make(jobs, console, note)
        if not any(run.done for run in runs):
            raise SpcacwError(f"None of the {len(runs)} runs in {self.output} is finished.")
        keep(kept, runs)
        return runs

    def short(
        self, make: Callable[[Keys], Any], jobs: Sequence[Job], console: Console, what: str = "runs"
    ) -> Iterator[tuple[Job, Any]]:
        """Yield each job when it has ended, and what ``make`` of its keys returned, or raised.

        For runs of a second or so: they share processes, or a cluster. What is not begun in time,
        or when the caller stops, is left. SpcacwError as of :meth:`make`.
        """
        lock = held(self.output)
        crew = self.cluster or ProcessPoolExecutor(len(self.places()), CONTEXT, _begin)
        try:
            ends = {crew.submit(make, job.keys): job for job in jobs}
            ended = as_completed(ends, None if math.isinf(self.seconds) else self.seconds)
            with suppress(TimeoutError):
                for run in track(ended, what, len(jobs), console=console):
                    error = run.exception()
                    yield ends[run], getattr(error, "cause", error) or run.result()
        finally:
            crew.shutdown(cancel_futures=True)
            lock.release()

    def add(
        self, table: Table, make: Callable[[Keys], Iterable[Mapping[str, Any]]],
        jobs: Sequence[Job], console: Console, what: str = "runs",
    ) -> Counter[str]:  # fmt: skip
        """Add to a table what ``make`` of each job's keys returns; return why some failed.

        Each reason is a sentence with the number of its runs. SpcacwError as of :meth:`make`.
        """
        failed: Counter[str] = Counter()
        todo = [] if self.report_only else jobs
        for job, found in self.short(make, todo, console, what) if todo else ():
            if isinstance(found, Exception):
                failed[f"{job.column}, {job.row}: {found}"] += 1
                continue
            table.add(*({**job.place, **line} for line in found))
        return failed

    def fill(self, table: Table, jobs: Sequence[Job], line: Line, console: Console) -> list[str]:
        """Make the runs that a table lacks; append the line of each when it ends.

        Lines are found again by the ``place`` of their job. Return why runs failed, a sentence
        each: the others go on, and the same call tries those again. SpcacwError as of :meth:`make`.
        """
        todo = [job for job in jobs if table.lacks(job.place)]

        def note(run: Run) -> None:
            for job in run.jobs:
                if (figures := line(job, run)) is not None:
                    table.add({**job.place, **figures})
            if run.state == FINISHED:
                shutil.rmtree(run.directory)  # its lines are all that is kept

        runs = self.make(todo, console, note)
        if todo and not self.report_only:
            table.arrange(job.place for job in jobs)
        return [run.error for run in dict.fromkeys(runs) if run.state == FAILED]


# A process of the fork server has all modules already, which take seconds to import, and none of
# the threads that a fork of this process would inherit half of.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["spcacw_flwr.experiments.__main__"])
