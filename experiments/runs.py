"""The runs of a sweep: where each run lies, whether it is finished, and why it cannot be made.

The name of a run's directory has a hash of the resolved configuration, the package's version and
the user's own code that the configuration names. So a run is found again: an interrupted sweep
continues with the runs that are not finished, and two tables that share a run make it once. A run
is finished when its ``status.json`` says so. :func:`keep` writes the logs of finished runs into one
file, which can go to another machine.

:class:`Display` shows the runs: a live picture on a terminal, a line per run elsewhere.
"""

import hashlib
import json
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError, import_by_path
from spcacw_flwr.engine.directory import whole_lines, write_atomically
from spcacw_flwr.engine.recorder import as_json
from spcacw_flwr.flower.launch import read_status
from spcacw_flwr.silos.metrics import METRICS
from spcacw_flwr.silos.setting import prepare as prepare_data
from spcacw_flwr.silos.setup import checked_setting

from .conf import Job

IRRELEVANT = (
    "output", "data-dir", "device", "threads", "nodes", "node-gpus", "node-timeout",
    "round-timeout", "tensorboard", "mlflow", "wandb", "resume", "checkpoint-every",
)  # fmt: skip
"""Keys that change where or how fast a run is made, and its results by rounding at most: a table
may have one column from a CPU and another from a GPU (``summary.json`` says which)."""
WAITING, RUNNING, FINISHED, FAILED = "waiting", "running", "finished", "failed"


OWN = re.compile(r"(?!spcacw_flwr\b)([\w.]+):[\w.]+")
"""The import path of code outside the package."""


def own_code(values: Iterable[Any]) -> list[str]:
    """Return hashes of the modules that keys name by import path, with the modules they import.

    Of these, only the ones that lie beside them, or in the same package, are the user's code.
    """
    found = []
    for path in filter(OWN.fullmatch, map(str, values)):
        name = path.partition(":")[0]
        with suppress(Exception):  # the run itself reports the error
            import_by_path(path, "code")
            file = Path(sys.modules[name].__file__)  # type: ignore[arg-type]
            root = file.parents[name.count(".") + (file.name == "__init__.py")]
            installed = "site-packages" in root.parts
            finder = ModuleFinder([] if installed else [str(root)], excludes=["spcacw_flwr"])
            finder.import_hook(name)
            paths = (vars(module)["__file__"] for module in finder.modules.values())
            files = {file, *map(Path, filter(None, paths))}
            code = b"".join(one.read_bytes() for one in sorted(files))
            found.append(hashlib.sha256(code).hexdigest()[:12])
    return found


def fingerprint(config: Config) -> str:
    """Return a hash of what a run computes: keys, the package's version, and the user's code."""
    keys = {k: v for k, v in config.to_flat().items() if k not in IRRELEVANT}
    parts = [version("spcacw-flwr"), keys, *own_code(keys.values())]
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


KEPT = ("accuracy", "seconds", "target_gradients", "bytes")
"""The figures of an epoch that :meth:`Run.line` keeps."""


@dataclass(eq=False)
class Run:
    """A run of a sweep, and its progress."""

    jobs: list[Job]
    """All jobs that compute the same."""
    directory: Path
    state: str = WAITING
    error: str = ""
    killed: bool = False
    """Whether its process ended without an error, or lacked room: a later try may succeed."""
    config: Config | None = None
    """None if the keys are wrong."""

    @property
    def job(self) -> Job:
        """The first of its jobs."""
        return self.jobs[0]

    @property
    def name(self) -> str:
        """The run's name in lists."""
        note = f", {self.job.note}" if self.job.note else ""
        return f"{self.job.column} · {self.job.row} · seed {self.job.seed}{note}"

    @property
    def share(self) -> float:
        """The share of the run that is done."""
        if self.state != RUNNING:
            return float(self.state in (FINISHED, FAILED))
        status = self.status()
        return status.get("round", 0) / (status.get("rounds") or 1)

    def status(self) -> dict[str, Any]:
        """Return the run's own report of its progress; empty before the first report."""
        return read_status(self.directory)

    def logged(self) -> list[dict[str, Any]]:
        """Return what a finished run logged after each epoch."""
        lines = (self.directory / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def summary(self) -> dict[str, Any]:
        """Return a finished run's own summary."""
        return dict(json.loads((self.directory / "summary.json").read_text()))

    def scored(self) -> list[dict[str, Any]]:
        """Return what a finished run logged; SpcacwError if it has no accuracy."""
        return with_accuracy(self.logged(), self.name)

    def line(self) -> str:
        """Return the line of JSON that is kept of a finished run; SpcacwError as :meth:`scored`."""
        epochs = [{name: epoch[name] for name in KEPT} for epoch in self.scored()]
        about = {"run": self.directory.name, "summary": self.summary()}
        alpha = (self.directory / "alpha.csv").read_text()
        return f"{as_json({**about, 'epochs': epochs, 'alpha': alpha})}\n"

    @property
    def done(self) -> bool:
        """Whether the run has finished, now or in an earlier sweep."""
        status = self.status().get("state")
        return status == FINISHED and (self.directory / "summary.json").is_file()

    @property
    def cause(self) -> str:
        """Why the run failed, now or in an earlier sweep; empty if it did not, or if unknown."""
        said = self.status()
        return self.error or str(said.get("error", "") if said.get("state") == FAILED else "")

    def fail(self, sentence: str) -> None:
        """Mark the run as failed, with the reason."""
        self.state, self.error = FAILED, sentence


def with_accuracy(epochs: list[dict[str, Any]], what: str) -> list[dict[str, Any]]:
    """Return what a run logged after each epoch; SpcacwError if ``what`` has no accuracy in it."""
    if "accuracy" not in epochs[0]:
        raise SpcacwError(
            f"{what} has no accuracy, and this table is of accuracies: its labels must be classes; "
            "'spcacw federations' compares methods by any metric."
        )
    return epochs


def plan(jobs: Sequence[Job], root: Path) -> list[Run]:
    """Return the run of each job; jobs that compute the same share a run."""
    known: dict[Path, Run] = {}
    runs = []
    for job in jobs:
        try:
            config = job.config()
        except SpcacwError as error:
            runs.append(Run([job], root, FAILED, str(error)))
            continue
        name = f"{config.run.setting}_{config.run.method}_seed{config.run.seed}"
        directory = root / f"{name.replace(':', '.')}_{fingerprint(config)}"
        if directory in known:
            known[directory].jobs.append(job)
        else:
            run = known[directory] = Run([job], directory, config=config)
            run.state = FINISHED if run.done else WAITING
        runs.append(known[directory])
    return runs


def prepare(runs: Sequence[Run]) -> None:
    """Check settings and prepare their data, each once; runs that cannot be made fail here."""
    said: dict[Any, str] = {}
    for run in runs:
        if run.config is None or run.state != WAITING:
            continue
        data = (run.config.run.setting, run.config.run.seed, run.config.partition)
        try:
            setting = checked_setting(run.config)
        except SpcacwError as error:
            run.fail(str(error))
            continue
        if data not in said:
            said[data] = ""
            try:
                prepare_data(setting)
            except SpcacwError as error:
                said[data] = str(error)
        if said[data]:
            run.fail(said[data])


def kept_runs(path: Path) -> dict[str, dict[str, Any]]:
    """Return what :func:`keep` wrote, by the runs' names; SpcacwError for any other line.

    A name must be that of a directory next to the others, and no other path.
    """
    found = {}
    for number, line in enumerate(whole_lines(path) if path.exists() else (), 1):
        try:
            of = json.loads(line)
            name, *_ = (of[part] for part in ("run", "summary", "epochs", "alpha"))
            if name in ("", "..") or Path(name).name != name:
                raise ValueError
            # Tables and figures read these.
            of["summary"]["groups"], [{**epoch} for epoch in of["epochs"]][-1], of["alpha"].encode()
            found[name] = of
        except (ValueError, LookupError, TypeError, AttributeError):
            raise SpcacwError(f"{path}, line {number}, is not that of a run: delete it.") from None
    return found


def keep(path: Path, runs: Iterable[Run]) -> None:
    """Add to ``path`` a line of JSON for each finished run: its summary, epochs and weights.

    Tables, figures and more seeds need nothing else of a run.
    """
    lines = {name: f"{as_json(of)}\n" for name, of in kept_runs(path).items()}
    lines |= {run.directory.name: run.line() for run in runs if run.done}
    write_atomically(path, "".join(lines[name] for name in sorted(lines)).encode())


def restore(path: Path, root: Path) -> set[str]:
    """Make the directories of the runs that a file of :func:`keep` has and ``root`` lacks.

    Return the names of all runs in the file.
    """
    kept = kept_runs(path)
    for name, of in kept.items():
        directory = root / name
        if (directory / "status.json").exists():
            continue
        directory.mkdir(parents=True, exist_ok=True)
        files = {
            "alpha.csv": of["alpha"], "summary.json": as_json(of["summary"]),
            "metrics.jsonl": "".join(f"{as_json(epoch)}\n" for epoch in of["epochs"]),
            "status.json": as_json({"state": FINISHED}),  # last: this file makes it a run
        }  # fmt: skip
        for file, text in files.items():
            write_atomically(directory / file, text.encode())
    return set(kept)


def failures(runs: Iterable[Run]) -> list[str]:
    """Return a sentence for each cause of failed runs, with the rows, columns and seeds it hit."""
    hit: dict[str, dict[str, list[int]]] = {}
    for run in dict.fromkeys(runs):
        for job in run.jobs if run.cause else ():
            cell = f"{job.row} on {job.column}" + (f", {job.note}" if job.note else "")
            hit.setdefault(run.cause, {}).setdefault(cell, []).append(job.seed)
    sentences = []
    for cause, cells in hit.items():
        told = [f"{cell}, seed{'s' * (len(seeds) > 1)} {', '.join(map(str, sorted(seeds)))}"
                for cell, seeds in cells.items()]  # fmt: skip
        more = f" and {len(told) - MOST_TOLD} more" if len(told) > MOST_TOLD else ""
        sentences.append(f"{'; '.join(told[:MOST_TOLD])}{more}: {cause}")
    return sentences


MOST_TOLD = 8
"""Most failures that are told one by one."""


class Display(Progress):
    """Shows the progress of a sweep, and when it will end."""

    def __init__(self, console: Console, runs: Sequence[Run]) -> None:
        """Take the planned ``runs``; those already finished do not count for the ETA."""
        self.runs = list(dict.fromkeys(runs))
        super().__init__(
            TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.description}"), console=console, auto_refresh=False,
            disable=not console.is_terminal,
        )  # fmt: skip
        self.fresh = [run for run in self.runs if run.state not in (FINISHED, FAILED)]
        self.began = time.monotonic()
        self.bar = self.add_task("", total=len(self.runs))

    @contextmanager
    def showing(self) -> Iterator[None]:
        """Keep the display on the terminal for the duration of the block."""
        done = sum(run.state == FINISHED for run in self.runs)
        if done:
            self.console.print(f"{done} of {len(self.runs)} runs were finished before.")
        with self:
            yield
        for sentence in failures(self.runs):
            self.console.print(sentence, style="red", highlight=False, soft_wrap=True, markup=False)

    def remaining(self) -> str:
        """Return the remaining time as text, if the rest goes on at the speed so far."""
        share = sum(run.share for run in self.fresh) / max(1, len(self.fresh))
        if not share:
            return ""
        seconds = (time.monotonic() - self.began) * (1 - share) / share
        about = f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"
        return f"about {about} left"

    def tick(self) -> None:
        """Draw the progress of all runs."""
        done = sum(run.state in (FINISHED, FAILED) for run in self.runs)
        self.update(self.bar, completed=done, description=self.remaining())
        self.refresh()

    def get_renderables(self) -> Iterator[RenderableType]:
        """Yield the bar, and a table of the running runs and the last failures."""
        yield from super().get_renderables()
        table = Table.grid(padding=(0, 2))
        for run in self.runs:
            if run.state == RUNNING:
                said = run.status()
                accuracy = said.get("accuracy")
                words = f"epoch {said.get('epoch', 0)}/{said.get('epochs', '?')}"
                table.add_row("▶", run.name, words, f"{accuracy:.2f} %" if accuracy else "")
        for run in [run for run in self.runs if run.state == FAILED][-MOST_TOLD:]:
            table.add_row("[red]✗[/]", run.name, run.error)
        yield table

    def ended(self, run: Run) -> None:
        """Print a line about an ended run if there is no live picture."""
        if not self.disable:
            return
        done = sum(run.state in (FINISHED, FAILED) for run in self.runs)
        if run.state == FINISHED:
            summary = run.summary()
            metric = METRICS[summary["metric"]]
            best, last = (
                metric.text(summary["metrics"][metric.name][of]) for of in ("best", "last")
            )
            words = f"best {best}, last {last} ({summary['seconds']:.1f} s)"
        else:
            words = f"failed: {run.error}"
        line = f"{done}/{len(self.runs)} {run.name}: {words}; {self.remaining()}"
        self.console.print(line, highlight=False, soft_wrap=True, markup=False)
