"""Attacks × shares of attackers × methods × seeds, a line of CSV each; what is there is not rerun.

``difference`` is the accuracy after the last epoch minus Local's with the same seed, in percentage
points. ``attackers_weight`` and ``helpers_weight`` (honest peers of the target's true cluster) are
those of the last rounds in which peers were asked. ``accepted`` is the guard's judgement.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from ..conf import CONF, Column, Job, Keys, Row, make_jobs, rows
from ..results import Table
from .attacks import ATTACKS
from .trial import run

METHODS = CONF / "attacks.toml"
NOBODY = "none"
LOCAL = Row("local", "Local", {"method": "local"})
COLUMNS = (
    "column", "attack", "share", "method", "seed", "epochs", "best_accuracy", "last_accuracy",
    "local_last", "difference", "attackers", "attackers_weight", "helpers", "helpers_weight",
    "accepted", "seconds",
)  # fmt: skip
PLACE = ("column", "attack", "share", "method", "seed", "epochs")
"""What tells one line from another."""


def cells(attacks: Sequence[str], shares: Sequence[float]) -> list[tuple[str, float]]:
    """Return attacks with shares; nobody attacks once, and first."""
    some = [name for name in attacks if name != NOBODY]
    return [(NOBODY, 0.0)] * (NOBODY in attacks) + list(product(some, shares))


def made(job: Job, attack: str, share: float, local: float | None) -> dict[str, Any]:
    """Make one run; return the figures of its line."""
    found = run(job.config(), attack, share)
    last = round(found.accuracy[-1], 3)
    local = last if local is None else local  # as the table has it, rounded as well
    weights = {
        "attackers_weight": found.weight(found.attackers),
        "helpers_weight": found.weight(found.helpers),
    }
    return {
        "best_accuracy": round(max(found.accuracy), 3), "last_accuracy": last,
        "local_last": local, "difference": round(last - local, 3),
        "attackers": " ".join(map(str, found.attackers)),
        "helpers": " ".join(map(str, found.helpers)),
        **{name: None if x is None else round(x, 4) for name, x in weights.items()},
        "accepted": found.accepted, "seconds": round(found.seconds, 1),
    }  # fmt: skip


def extend(
    path: Path, columns: Sequence[Column], names: Sequence[str], seeds: Sequence[int], more: Keys,
    attacks: Sequence[str], shares: Sequence[float],
) -> None:  # fmt: skip
    """Add to a table what it lacks, line by line.

    Raises
    ------
    SpcacwError
        If a method or a key is unknown.
    """
    table, local = Table(path, COLUMNS, PLACE), dict[tuple[str, int, int], float]()
    wanted = cells(attacks or list(ATTACKS), shares)
    keys = {"diagnostics": False, **more}
    for job in make_jobs(columns, [LOCAL, *rows(names, METHODS)], seeds, keys):
        epochs = job.config().run.epochs
        here = (job.column, job.seed, epochs)
        for attack, share in [(NOBODY, 0.0)] if job.row == LOCAL.name else wanted:
            values = (job.column, attack, f"{share:g}", job.row, job.seed, epochs)
            place = dict(zip(PLACE, values, strict=True))
            if table.lacks(place):
                table.add({**place, **made(job, attack, share, local.get(here))})
            if job.row == LOCAL.name:
                local[here] = float(table.line(place)["last_accuracy"])
