"""A run's directory: its path, its owner, its growing files, and requests to stop the run.

A stopped run finishes its current round and leaves a checkpoint. Ctrl-C, SIGTERM or SIGHUP stops
it if training runs in a process's main thread. A file ``stop`` in its directory stops any run,
also one of a ServerApp in a thread, in another process, or on another machine. A second signal has
its usual effect: it ends the process at once.
"""

import errno
import io
import json
import logging
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError

log = logging.getLogger(__name__)

FLOWER_RUN = "flower_run"
"""The key of ``status.json`` that holds Flower's id of the run."""
GROWING = ("metrics.jsonl", "alpha.csv", "silos.csv")
"""The files that a run appends to."""
STOP = "stop"
SIGNALS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))


def run_directory(config: Config) -> Path | None:
    """Return the directory of the resumed or new run; None if the keys name none.

    Raises SpcacwError if ``output`` and ``resume`` name different directories.
    """
    run = config.run
    output, resume = (Path(path).expanduser() for path in (run.output, run.resume))
    if run.output and run.resume and output.resolve() != resume.resolve():
        raise SpcacwError(
            f"output = '{run.output}' and resume = '{run.resume}' differ: a run goes on in its own "
            "directory; leave output out."
        )
    return resume if run.resume else output if run.output else None


def default_output(config: Config, base: Path) -> Path:
    """Return a dated directory below ``base`` that does not exist yet."""
    run, stamp = config.run, datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    stem = f"{stamp}_{run.setting}_{run.method}_seed{run.seed}".replace(":", ".")
    path, copy = base / stem, 2
    while path.exists():
        path, copy = base / f"{stem}_{copy}", copy + 1
    return path


def claim_directory(directory: Path, resumes: bool = False) -> None:
    """Make the directory of a new run, or check that the directory of a resumed run exists.

    A run that failed before its first epoch and its first checkpoint makes room for a new one.

    Raises SpcacwError if it cannot be made or written, if it already holds a run (for a new run),
    or if it holds none (for a resumed run).
    """
    try:
        if not resumes:
            directory.mkdir(parents=True, exist_ok=True)
        if not resumes and _failed_early(directory):
            (directory / "config.toml").unlink(missing_ok=True)
        if (directory / "config.toml").exists() != resumes:
            if resumes:
                raise SpcacwError(
                    f"resume = '{directory}' holds no run: name the directory of one."
                )
            raise SpcacwError(
                f"output = '{directory}' already holds a run: name another directory, or set "
                "resume to it to go on with that run."
            )
        (directory / ".write-test").touch()
        (directory / ".write-test").unlink()
    except OSError as error:
        raise SpcacwError(f"output = '{directory}' cannot be written: {error}.") from error


def _failed_early(directory: Path) -> bool:
    """Return whether the directory's run failed before it had anything to keep."""
    with suppress(OSError, ValueError, TypeError):
        status = json.loads((directory / "status.json").read_bytes())
        begun = [*directory.glob("checkpoint/*.json"), *directory.glob("metrics.jsonl")]
        return status["state"] == "failed" and not any(path.stat().st_size for path in begun)
    return False


def write_atomically(
    path: Path, content: bytes, flush: bool = False, mode: int = 0o666, *, new: bool = False
) -> None:
    """Replace a file in one step, so that no reader and no crash finds half a file.

    With ``flush`` the file and its name are on the disk when this returns. ``mode`` gives the
    file's permissions, less the umask. Raises OSError if the disk is full or cannot be written; the
    old file is then kept. With ``new``, raises FileExistsError if the file exists.
    """
    if path.exists() and not path.is_file():  # a device, or a pipe
        path.write_bytes(content)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb", opener=partial(os.open, mode=mode)) as file:
            file.write(content)
            if flush:
                file.flush()
                os.fsync(file.fileno())
        (os.link if new else os.replace)(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    if flush:
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def sweep(directory: Path, name: str = "*") -> None:
    """Delete the temporary files left by writers that were killed while writing ``name``."""
    for half in directory.glob(f".{name}.*[0-9]"):
        half.unlink(missing_ok=True)


def whole_lines(path: Path) -> list[str]:
    """Return the lines of a file, without an unfinished last line (of a killed writer)."""
    text = path.read_bytes().decode(errors="replace")
    return io.StringIO(text[: text.rfind("\n") + 1], newline="").readlines()


def append(path: Path, text: str) -> None:
    """Append lines to a file: all of them, or none if the disk is full (OSError)."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        before, content = os.fstat(file).st_size, text.encode()
        if before and os.pread(file, 1, before - 1) != b"\n":
            before = path.read_bytes().rfind(b"\n") + 1
            os.ftruncate(file, before)
        written = os.write(file, content)
        if written < len(content):
            os.ftruncate(file, before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(file)


def is_own(directory: Path, flower_run: str) -> bool:
    """Return whether a directory holds the run that has this id in Flower."""
    with suppress(OSError, ValueError):
        status = json.loads((directory / "status.json").read_text())
        return bool(flower_run) and status.get(FLOWER_RUN) == flower_run
    return False


def held(directory: Path) -> FileLock:
    """Lock a directory, made if it is missing; the lock opens when the process ends in any way.

    Raises SpcacwError if another process holds the lock.
    """
    directory.mkdir(parents=True, exist_ok=True)
    lock = FileLock(directory / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise SpcacwError(f"Another process is at work in {directory}: wait for its end.") from None
    except (OSError, NotImplementedError) as error:  # some network file systems have no locks
        log.warning("The directory %s cannot be locked (%s): see that nobody else is at "
                    "work there.", directory, error)  # fmt: skip
    return lock


def lengths(directory: Path) -> dict[str, int]:
    """Flush each growing file that exists to the disk, and return its length in bytes."""
    found = {}
    for path in (directory / name for name in GROWING):
        if path.exists():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
                found[path.name] = path.stat().st_size
    return found


def cut(directory: Path, lengths: Mapping[str, int]) -> None:
    """Cut the growing files back to these lengths.

    Raises SpcacwError if a file is shorter. No file is then changed.
    """
    for name, length in lengths.items():
        path = directory / name
        if not path.exists() or path.stat().st_size < length:
            raise SpcacwError(
                f"{path} is shorter than when the checkpoint was made ({length} bytes): put it "
                "back, or start the run anew in another directory."
            )
    for name in GROWING:
        if name in lengths:
            os.truncate(directory / name, lengths[name])
        else:
            (directory / name).unlink(missing_ok=True)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore signals in a block of the main thread, which must not be left half done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    try:
        yield
    finally:
        _give_back(before)


def _give_back(handlers: Mapping[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


class Stopped(SpcacwError):
    """Training ended by request; the message says how to go on."""

    exit_code = 130


class Stop:
    """The request to end the run in ``directory``; it drops a request made before the run."""

    def __init__(self, directory: Path) -> None:
        self.file, self._signalled = directory / STOP, False
        self.clear()

    @property
    def wanted(self) -> bool:
        """Whether a signal or the file has arrived."""
        return self._signalled or self.file.exists()

    def clear(self) -> None:
        """Delete the file ``stop``."""
        with suppress(OSError):
            self.file.unlink(missing_ok=True)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Take signals during the block as a request to end, in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def wish(*_: Any) -> None:
            self._signalled = True
            _give_back(before)

        before = {number: signal.getsignal(number) for number in SIGNALS}
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:  # nohup or a sweep may ignore it
                signal.signal(number, wish)
        try:
            yield
        finally:
            _give_back(before)
