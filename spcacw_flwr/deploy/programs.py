"""Flower's programs on a host: shown as commands, started, and started again when they die."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spcacw_flwr.keys import SpcacwError
from spcacw_flwr.processes import ENVIRONMENT, environment, start

SHORTEST_LIFE = 5.0
"""Seconds that a program must have lived to be started again: less is a mistake, not a crash."""


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
    process: subprocess.Popen[bytes] | None = None
    _started: float = 0.0

    @property
    def name(self) -> str:
        """The program's name."""
        return Path(self.command[0]).name

    def start(self) -> subprocess.Popen[bytes]:
        """Start it; it works in its home's directory."""
        self.home.mkdir(parents=True, exist_ok=True)
        self.process = start(self.command, self.home, environment(self.home, self.more), self.log)
        self._started = time.monotonic()
        return self.process

    def keep(self) -> bool:
        """Start it again if it has died; say whether it had.

        Raises
        ------
        SpcacwError
            If it died right after its start.
        """
        if self.process is None or self.process.poll() is None:
            return False
        if time.monotonic() - self._started < SHORTEST_LIFE:
            raise SpcacwError(f"{self.name} cannot run: see {self.log}.")
        self.start()
        return True

    def become(self) -> None:
        """Replace this process by the program, which then has the terminal to itself."""
        self.home.mkdir(parents=True, exist_ok=True)
        os.chdir(self.home)
        os.execve(self.command[0], self.command, environment(self.home, self.more))
