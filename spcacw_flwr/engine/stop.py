"""How a run is asked to end after the round that it is in, and to leave a checkpoint.

By Ctrl-C, SIGTERM or SIGHUP where training runs in a process's main thread; or by a file ``stop``
in the run's directory, which reaches a ServerApp in a thread, in another process, on another
machine. A second signal acts as it would without us: it ends the process at once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from spcacw_flwr.config.declare import SpcacwError

FILE = "stop"
SIGNALS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))


class Stopped(SpcacwError):
    """Training ended because somebody asked for it; the sentence says how to go on."""


class Stop:
    """Whether somebody wants the run in ``directory`` to end."""

    def __init__(self, directory: Path) -> None:
        self.file, self._signalled = directory / FILE, False

    @property
    def wanted(self) -> bool:
        """Whether a signal or the file has come."""
        return self._signalled or self.file.exists()

    def clear(self) -> None:
        """Forget a wish that was for an earlier run."""
        with suppress(OSError):
            self.file.unlink(missing_ok=True)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Take signals as a wish for the duration of the block, in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[signal.Signals, Any] = {}

        def give_back() -> None:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

        def wish(number: int, frame: FrameType | None) -> None:
            self._signalled = True
            give_back()

        for number in SIGNALS:
            before[number] = signal.signal(number, wish)
        try:
            yield
        finally:
            give_back()
