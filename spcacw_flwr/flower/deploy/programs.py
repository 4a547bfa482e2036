"""Flower's programs on a host: shown as commands, started, and started again when they die."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.flower.processes import ENVIRONMENT, environment, start

SHORTEST_LIFE = 5.0
"""Seconds that a program must have lived to be started again: less is a mistake, not a crash."""
PATIENCE = 5.0
"""Seconds until a node that was not let in tries again. Flower believes a node that was killed to
be there for up to a minute, and meanwhile refuses it; a new node may not be registered yet."""


def shown(command: Sequence[str], home: Path) -> str:
    """Return a command as a shell takes it, with the part of its environment that matters."""
    settings = {"FLWR_HOME": str(home)} | {k: v for k, v in ENVIRONMENT.items() if "RAY" not in k}
    return " ".join([*(f"{k}={shlex.quote(v)}" for k, v in settings.items()), shlex.join(command)])


@dataclass
class Program:
    """One of Flower's programs, with its Flower home, its log and its process."""

    command: list[str]
    home: Path
    log: Path
    more: dict[str, str] = field(default_factory=dict)
    """What else its environment is to hold."""
    patient: bool = False
    """Whether it may end at any time, and is then to try again after PATIENCE seconds."""
    process: subprocess.Popen[bytes] | None = None
    _started: float = 0.0
    _ended: float | None = None

    @property
    def name(self) -> str:
        """The program's name."""
        return Path(self.command[0]).name

    def start(self) -> subprocess.Popen[bytes]:
        """Start it; it works in its home's directory."""
        self.home.mkdir(parents=True, exist_ok=True)
        self.process = start(self.command, self.home, environment(self.home, self.more), self.log)
        self._started, self._ended = time.monotonic(), None
        return self.process

    def keep(self) -> bool:
        """Start it again if it has ended; say whether it had.

        Raises
        ------
        SpcacwError
            If it ended right after its start, and is not patient.
        """
        if self.process is None or self.process.poll() is None:
            return False
        now = time.monotonic()
        if not self.patient and now - self._started < SHORTEST_LIFE:
            raise SpcacwError(f"{self.name} cannot run: see {self.log}.")
        self._ended = now if self._ended is None else self._ended
        if self.patient and now - self._ended < PATIENCE:
            return False
        self.start()
        return True
