"""A column on the embedded digits, small enough to be run many times."""

from collections.abc import Callable, Sequence
from pathlib import Path

from spcacw_flwr.experiments.conf import Column, Job, Row, make_jobs
from spcacw_flwr.experiments.runs import Run, plan
from spcacw_flwr.experiments.sweep import sweep

PAPER = {"spcacw": (90.0, 1.0), "local": (80.0, 2.0)}
COLUMN = Column("digits", "Digits σ=1", {"setting": "digits-relabel", "epochs": 2}, PAPER)
ROWS = [Row("spcacw", "SP-CACW", {"method": "spcacw"}), Row("local", "Local", {"method": "local"})]


class Silent:
    """A display that shows nothing, calls ``then`` at each tick, and remembers who ended."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.names: list[str] = []
        self.tick = then

    def ended(self, run: Run) -> None:
        self.names.append(run.job.row)


def stop_at(run: Run, epoch: int) -> Silent:
    """A display that stops the sweep, as Ctrl-C does, once a run has trained for some epochs."""

    def then() -> None:
        if run.status().get("epoch", 0) >= epoch:
            raise KeyboardInterrupt

    return Silent(then)


def small_jobs(seeds: int = 1, rows: Sequence[Row] = ROWS, **more: object) -> list[Job]:
    return make_jobs([COLUMN], rows, range(seeds), more)


def made(jobs: Sequence[Job], root: Path, show: Silent | None = None, places: int = 2) -> list[Run]:
    """Plan and make the runs of jobs."""
    runs = plan(jobs, root)
    sweep(runs, ["cpu"] * places, root, show or Silent())
    return runs
