"""What a sweep looks like: a live picture of all runs on a terminal, a line per run elsewhere."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .runs import FAILED, FINISHED, RUNNING, Run

LAST_FAILURES = 8


class Display:
    """Shows how far a sweep is, and when it will end."""

    def __init__(self, console: Console, runs: Sequence[Run]) -> None:
        """``runs`` as planned: those that are finished already count for nothing of the ETA."""
        self.console, self.runs = console, list(dict.fromkeys(runs))
        self.fresh = [run for run in self.runs if run.state not in (FINISHED, FAILED)]
        self.began = time.monotonic()
        self.live: Live | None = None
        self.bar = Progress(
            TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.description}"), console=console,
        )  # fmt: skip
        self.task = self.bar.add_task("", total=len(self.runs))

    @contextmanager
    def showing(self) -> Iterator[None]:
        """Keep the display on the terminal for the duration of the block."""
        done = sum(run.state == FINISHED for run in self.runs)
        if done:
            self.console.print(f"{done} of {len(self.runs)} runs were finished before.")
        if not self.console.is_terminal:
            yield
        else:
            with Live(console=self.console, refresh_per_second=4) as self.live:
                yield
        self.failures(len(self.runs))

    def remaining(self) -> str:
        """Say how long it will take, if the rest goes on like what has been done."""
        share = sum(run.share for run in self.fresh) / max(1, len(self.fresh))
        if not share:
            return ""
        seconds = (time.monotonic() - self.began) * (1 - share) / share
        about = f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"
        return f"about {about} left"

    def tick(self) -> None:
        """Draw where all runs are."""
        if self.live is None:
            return
        done = sum(run.state in (FINISHED, FAILED) for run in self.runs)
        self.bar.update(self.task, completed=done, description=self.remaining())
        self.live.update(Group(self.bar, self.counts(), self.now()))

    def counts(self) -> Table:
        """Return a table of how many runs of each cell are finished, running and failed."""
        columns = list(dict.fromkeys(run.job.column for run in self.runs))
        table = Table("finished/planned", *columns)
        states = Counter((run.job.row, run.job.column, run.state) for run in self.runs)
        planned = Counter((run.job.row, run.job.column) for run in self.runs)
        for row in dict.fromkeys(run.job.row for run in self.runs):
            cells = []
            for column in columns:
                running, failed = states[row, column, RUNNING], states[row, column, FAILED]
                text = f"{states[row, column, FINISHED]}/{planned[row, column]}"
                text += f" ▶{running}" if running else ""
                cells.append(text + (f" [red]✗{failed}[/]" if failed else ""))
            table.add_row(row, *cells)
        return table

    def now(self) -> Table:
        """Return a table of what is running, and the last failures."""
        table = Table.grid(padding=(0, 2))
        for run in self.runs:
            if run.state == RUNNING:
                said = run.status()
                accuracy = said.get("accuracy")
                words = f"epoch {said.get('epoch', 0)}/{said.get('epochs', '?')}"
                table.add_row("▶", run.name, words, f"{accuracy:.2f} %" if accuracy else "")
        for run in [run for run in self.runs if run.state == FAILED][-LAST_FAILURES:]:
            table.add_row("[red]✗[/]", run.name, run.error)
        return table

    def ended(self, run: Run) -> None:
        """Print a line where there is no live picture."""
        if self.live is not None:
            return
        done = sum(run.state in (FINISHED, FAILED) for run in self.runs)
        if run.state == FINISHED:
            summary = json.loads((run.directory / "summary.json").read_text())
            words = (f"best {summary['best_accuracy']:.2f}, last {summary['last_accuracy']:.2f} "
                     f"({summary['seconds']:.1f} s)")  # fmt: skip
        else:
            words = f"failed: {run.error}"
        line = f"{done}/{len(self.runs)} {run.name}: {words}; {self.remaining()}"
        self.console.print(line, highlight=False, soft_wrap=True, markup=False)

    def failures(self, most: int) -> None:
        """Print why runs failed, each sentence once."""
        failed = [run for run in self.runs if run.state == FAILED]
        for sentence, count in Counter(run.error for run in failed).most_common(most):
            first = next(run.name for run in failed if run.error == sentence)
            more = f" and {count - 1} more" if count > 1 else ""
            line = f"{first}{more} failed: {sentence}"
            self.console.print(line, style="red", highlight=False, soft_wrap=True, markup=False)
