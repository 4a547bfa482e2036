"""A run's directory: which it is, whose it is, the files in it that grow, and the wish to end.

A run ends after the round that it is in, and leaves a checkpoint, by Ctrl-C, SIGTERM or SIGHUP
where training runs in a process's main thread; or by a file ``stop`` in its directory, which
reaches a ServerApp in a thread, in another process, on another machine. A second signal acts as it
would without us: it ends the process at once.
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
"""Where ``status.json`` has Flower's id of the run."""
GROWING = ("metrics.jsonl", "alpha.csv", "silos.csv")
"""Files to which a run appends."""
STOP = "stop"
SIGNALS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))


def run_directory(config: Config) -> Path | None:
    """Return the directory of the run that goes on, or of the new one; None if none is named.

    Raises SpcacwError if ``output`` names another directory than ``resume``.
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
    """Make a directory for a run's results, or see that there is one if the run goes on in it.

    Raises SpcacwError if it cannot be made or written, or holds a run already (or none, if one is
    to go on).
    """
    try:
        if not resumes:
            directory.mkdir(parents=True, exist_ok=True)
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


def write_atomically(
    path: Path, content: bytes, flush: bool = False, mode: int = 0o666, *, new: bool = False
) -> None:
    """Replace a file in one step, so that a reader or a crash never sees half of it.

    With ``flush`` the file and its name are on the disk when this returns. ``mode`` is who may read
    it, less the umask. If the disk is full or cannot be written, OSError, the file before is still
    there; where it is to be ``new``, FileExistsError if there is one.
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
    """Delete what writers left that were killed while they wrote a file of this name."""
    for half in directory.glob(f".{name}.*[0-9]"):
        half.unlink(missing_ok=True)


def whole_lines(path: Path) -> list[str]:
    """Return the lines of a file, without one at its end that a killed writer has not finished."""
    text = path.read_bytes().decode(errors="replace")
    return io.StringIO(text[: text.rfind("\n") + 1], newline="").readlines()


def append(path: Path, text: str) -> None:
    """Add lines to a file, all of them or, if the disk is full (OSError), none."""
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
    """Say whether a directory holds the run that Flower knows by this id."""
    with suppress(OSError, ValueError):
        status = json.loads((directory / "status.json").read_text())
        return bool(flower_run) and status.get(FLOWER_RUN) == flower_run
    return False


def held(directory: Path) -> FileLock:
    """Return a lock on a directory, which the end of the process opens, however it comes.

    It makes the directory if there is none. Raises SpcacwError if another process is at work there.
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

    Raises SpcacwError if a file is shorter; no file is then changed.
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
    """Let no signal end the block in the main thread: what it ends would be left half-ended."""
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
    """Training ended because somebody asked for it; the sentence says how to go on."""

    exit_code = 130


class Stop:
    """Whether somebody wants the run in ``directory`` to end; a wish for an earlier run is not."""

    def __init__(self, directory: Path) -> None:
        self.file, self._signalled = directory / STOP, False
        self.clear()

    @property
    def wanted(self) -> bool:
        """Whether a signal or the file has come."""
        return self._signalled or self.file.exists()

    def clear(self) -> None:
        """Forget the wish."""
        with suppress(OSError):
            self.file.unlink(missing_ok=True)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Take signals as a wish for the duration of the block, in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def wish(*_: Any) -> None:
            self._signalled = True
            _give_back(before)

        before = {number: signal.getsignal(number) for number in SIGNALS}
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:  # by nohup, say, or by a sweep
                signal.signal(number, wish)
        try:
            yield
        finally:
            _give_back(before)
