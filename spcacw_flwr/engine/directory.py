"""A run's directory: which it is, whose it is, and the files in it that grow."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError

log = logging.getLogger(__name__)

FLOWER_RUN = "flower_run"
"""Where ``status.json`` has Flower's id of the run."""
GROWING = ("metrics.jsonl", "alpha.csv", "silos.csv")
"""Files to which a run appends."""


def run_directory(config: Config) -> Path | None:
    """Return the directory of the run that goes on, or of the new one; None if none is named.

    Raises
    ------
    SpcacwError
        If ``output`` names another directory than ``resume``.
    """
    run = config.run
    output, resume = (Path(path).expanduser() for path in (run.output, run.resume))
    if run.output and run.resume and output.resolve() != resume.resolve():
        raise SpcacwError(
            f"output = '{run.output}' and resume = '{run.resume}' differ: a run goes on in its own "
            "directory; leave output out."
        )
    return resume if run.resume else output if run.output else None


def is_own(directory: Path, flower_run: str) -> bool:
    """Say whether a directory holds the run that Flower knows by this id."""
    with suppress(OSError, ValueError):
        status = json.loads((directory / "status.json").read_text())
        return bool(flower_run) and status.get(FLOWER_RUN) == flower_run
    return False


def held(directory: Path) -> FileLock:
    """Return a lock on a run's directory, which the end of the process opens, however it comes.

    Raises
    ------
    SpcacwError
        If another process is at work on the run.
    """
    lock = FileLock(directory / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise SpcacwError(
            f"Another process is at work on the run in {directory}: wait for its end."
        ) from None
    except (OSError, NotImplementedError) as error:  # some network file systems have no locks
        log.warning("The directory %s cannot be locked (%s): see that nobody else goes on with "
                    "this run.", directory, error)  # fmt: skip
    return lock


def lengths(directory: Path) -> dict[str, int]:
    """Return the bytes of each growing file that there is, after flushing it to the disk."""
    found = {}
    for path in (directory / name for name in GROWING):
        if path.exists():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
                found[path.name] = path.stat().st_size
    return found


def cut(directory: Path, lengths: Mapping[str, int]) -> None:
    """Take from the growing files what came after they had these lengths.

    Raises
    ------
    SpcacwError
        If a file is shorter; no file is then changed.
    """
    for name, length in lengths.items():
        path = directory / name
        if not path.exists() or path.stat().st_size < length:
            raise SpcacwError(
                f"{path} is shorter than when the checkpoint was made ({length} bytes): put it "
                "back, or start the run anew in another directory."
            )
    for name in GROWING:
        path = directory / name
        if name in lengths:
            os.truncate(path, lengths[name])
        else:
            path.unlink(missing_ok=True)
