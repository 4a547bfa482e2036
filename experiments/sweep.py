"""Many runs side by side, each in its own process; finished runs are not repeated.

Each process has one thread, so a run does not depend on the number of other runs. A run that fails
or is killed does not affect the others: it passes results on only as files in its directory.
``status.json`` says how the run ended. ``worker.log`` has its output, which would break up a live
display. A run that was started and not finished continues from its last checkpoint.

With a Ray cluster the runs are its tasks instead (:mod:`.cluster`).

Table 1 keeps the directories of its runs, and one file from which another machine can continue
(:meth:`Where.run`). A study keeps a line of CSV for each run, and deletes the run's directory when
that line is written (:meth:`Where.fill`).
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
from spcacw_flwr.config.declare import Scarce, SpcacwError, one_line
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
    """Write how a run ended into its status."""
    directory.mkdir(parents=True, exist_ok=True)
    write_atomically(directory / "status.json", as_json({"state": state, **more}).encode())


def watch_parent(_: dict[str, Any]) -> None:
    """Stop if the sweep itself has ended: nothing waits for the result."""
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        raise KeyboardInterrupt


def work(flat: dict[str, Any]) -> None:
    """Run a flat configuration into its directory, from its last checkpoint if it has one.

    Without a checkpoint the directory is emptied first. If the run fails, its checkpoint is
    deleted: the next sweep makes the run anew.
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
    except (Stopped, KeyboardInterrupt) as error:  # the next sweep continues the run
        ended_as(directory, WAITING, error=str(error))
        raise SystemExit(130) from None
    except SpcacwError as error:
        shutil.rmtree(kept, ignore_errors=True)
        ended_as(directory, FAILED, error=str(error), kind=type(error).__name__)
        raise SystemExit(1) from None


def slots(devices: Sequence[str], workers: int) -> list[str]:
    """Return the device of each process; ``workers`` is their number, 0 is one per device or core.

    Raises SpcacwError if a device is missing.
    """
    for device in devices:
        find_device(device)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    count = workers or (cores or 1 if list(devices) == ["cpu"] else len(devices))
    return [devices[k % len(devices)] for k in range(count)]


def start(run: Run, device: str, cluster: Cluster | None) -> BaseProcess | Away:
    """Start a run's process, on this machine or in a cluster."""
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
    """Note the result of a run whose process has ended."""
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
    """End processes; the next sweep continues their unfinished runs."""
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
    """Make all unfinished runs, one on each of ``places`` at a time.

    Runs that are not finished after ``seconds`` are stopped, and continue in the next sweep.
    ``note`` is called with each run that has ended, in this sweep or before it. SpcacwError if
    another process works in ``root``.
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
        told = " ".join(f"{sentence} ({n} runs)" for sentence, n in failed.items())
        count = sum(failed.values())
        raise SpcacwError(f"{count} runs failed: the same command tries them again. {told}")


Line = Callable[[Job, Run], Mapping[str, Any] | None]
"""A function that returns the figures of an ended run, or None if the run leaves no line."""


@dataclass(frozen=True)
class Where:
    """Where a sweep works and leaves its results."""

    output: Path
    devices: tuple[str, ...] = ("cpu",)
    workers: int = 0
    """Processes; 0 is one for each device, or each core of the CPU."""
    report_only: bool = False
    seconds: float = math.inf
    """The time after which unfinished runs are left for a later sweep."""
    ray: str = ""
    """The address of a Ray cluster that executes the runs; empty is none."""

    @cached_property
    def cluster(self) -> Cluster | None:
        """The cluster, or None; SpcacwError if it cannot be reached."""
        if not self.ray:
            return None
        from .cluster import Cluster  # Ray is not on every machine

        return Cluster(self.ray, self.devices)

    def make(
        self, jobs: Sequence[Job], console: Console, note: Callable[[Run], None] | None = None
    ) -> list[Run]:
        """Return the run of each job after the sweep; ``note`` is that of :func:`sweep`.

        SpcacwError if a device is missing, or another process works in the same directory.
        """
        root = self.output / "runs"
        runs = plan(jobs, root)
        if runs and not self.report_only:
            places, display = self.places(), Display(console, runs)
            with display.showing():
                sweep(runs, places, root, display, self.seconds, note, self.cluster)
        return runs

    def places(self) -> list[str]:
        """Return a device for each run that goes at once; SpcacwError if a device is missing."""
        if self.workers < 0 or not self.devices:
            raise SpcacwError(
                f"{self.workers} processes on {len(self.devices)} devices: runs need 0 or more "
                "processes, on one device or more."
            )
        if self.cluster is None:
            return slots(self.devices, self.workers)
        return [self.cluster.device] * (self.workers or self.cluster.places)

    def run(self, jobs: Sequence[Job], console: Console) -> list[Run]:
        """Do as :meth:`make`, but continue from runs.jsonl, and add the runs' logs to that file.

        SpcacwError also if no run at all is finished then.
        """
        kept = self.output / "runs.jsonl"
        known = restore(kept, self.output / "runs")

        def note(run: Run) -> None:  # at once: a lent machine may go before the last run ends
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
        """Yield each job when it has ended, with what ``make`` of its keys returned or raised.

        This is for runs of about a second: they share processes, or a cluster. Jobs that have not
        started in time, or when the caller stops, are left. SpcacwError as in :meth:`make`.
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
        """Add the lines that a table lacks, those that ``make`` of a job's keys returns.

        Return the failures: a sentence, with the number of its runs. SpcacwError as in
        :meth:`make`.
        """
        failed: Counter[str] = Counter()
        todo = [job for job in jobs if table.lacks(job.place)]
        console.print(f"{len(todo)} of {len(jobs)} {what} are missing", highlight=False)
        run = todo and not self.report_only
        for job, found in self.short(make, todo, console, what) if run else ():
            if isinstance(found, Exception):
                told = found if isinstance(found, SpcacwError) else one_line(found)
                failed[f"{job.column}, {job.row}: {told}"] += 1
                continue
            table.add(*({**job.place, **line} for line in found))
        return failed

    def fill(self, table: Table, jobs: Sequence[Job], line: Line, console: Console) -> list[str]:
        """Make the runs that a table lacks; append the line of each when it ends.

        Lines are found again by the ``place`` of their job. Return a sentence for each failed run:
        the others go on, and the same call tries it again. SpcacwError as in :meth:`make`.
        """
        todo = [job for job in jobs if table.lacks(job.place)]

        def note(run: Run) -> None:
            for job in run.jobs:
                if (figures := line(job, run)) is not None:
                    table.add({**job.place, **figures})
            if run.state == FINISHED:
                shutil.rmtree(run.directory)  # only its lines are kept

        runs = self.make(todo, console, note)
        if todo and not self.report_only:
            table.arrange(job.place for job in jobs)
        return [run.error for run in dict.fromkeys(runs) if run.state == FAILED]


# A process of the fork server already has all modules, which take seconds to import. A fork of this
# process would inherit its threads in part.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["spcacw_flwr.experiments.__main__"])
