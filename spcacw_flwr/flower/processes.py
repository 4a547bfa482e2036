"""Start, await and restart Flower's programs, and end them with their descendants.

A program and its descendants share a Flower home (``FLWR_HOME``), a directory that no other family
uses. Orphans are found by it too, because Flower's programs outlive the program that started them.
"""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

import psutil

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.directory import undisturbed
from spcacw_flwr.flower import json_lines

ENVIRONMENT = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ADDRESS": "local",
}
"""What Flower and Ray need in order to use the installed packages and no network. Without an
address Ray joins any cluster that has left traces on this machine, even a dead one.
"""
PROGRAMS = Path(sys.executable).parent
START_SECONDS, STOP_SECONDS, POLL_SECONDS = 60.0, 10.0, 0.25
SHORTEST_LIFE = 5.0
"""Seconds that a program must have lived to be started again: less is a mistake, not a crash."""
LOG_END = 4000
"""Bytes at the end of a log that are searched for a program's last words."""
PATIENCE = 5.0
"""Seconds until a node that was not let in tries again. Flower takes a killed node to be there for
up to a minute, and refuses it meanwhile; a new node may not be registered yet."""
UNKNOWN = "[code: 2004]"
"""With this Flower's SuperLink refuses to let a node in."""
ADMIT = (
    "the server has not registered this silo's key: send it silo.pub; or it does not know yet that "
    "this silo was gone: wait a minute"
)
OURS = "SPCACW_HOME"
"""Marks the processes of a home. A user's own shell may have its ``FLWR_HOME``."""
LOCK = "host.lock"
"""The file in a home that its owner locks."""
Say = Callable[[str], None]


def environment(home: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a family of processes whose Flower home is ``home``."""
    found = os.environ | ENVIRONMENT | {"FLWR_HOME": str(home), OURS: str(home)} | dict(more or {})
    found["SPCACW_OFFLINE"] = "1"  # data are downloaded before a run, or not at all
    # Flower finds its own helper programs by name: those of this environment come first.
    found["PATH"] = f"{PROGRAMS}{os.pathsep}{found.get('PATH', '')}"
    return found


def shown(command: Sequence[str], home: Path) -> str:
    """Return a command as a shell takes it, with the part of its environment that matters."""
    settings = {"FLWR_HOME": str(home)} | {k: v for k, v in ENVIRONMENT.items() if "RAY" not in k}
    pairs = (f"{name}={shlex.quote(value)}" for name, value in settings.items())
    return f"$ {' '.join(pairs)} {shlex.join(command)}"


@dataclass
class Program:
    """One of Flower's programs, with its Flower home, its log and its process."""

    command: list[str]
    home: Path
    log: Path
    more: Mapping[str, str] = field(default_factory=dict)
    """Further variables of its environment."""
    as_json: bool = False
    """Whether its log has a JSON object in each line."""
    patient: bool = False
    """Whether it may end at any time, and is then to try again after PATIENCE seconds."""
    launcher: str = ""
    """The name of a child without which it does nothing, and which it does not start again."""
    umask: int = -1
    """The permissions that its files do not get; -1: the user's umask."""
    version: Callable[[], object] = bool
    """Returns what the program read at its start; it is restarted when that has changed."""
    process: subprocess.Popen[bytes] | None = None
    _started: float = 0.0
    _ended: float | None = None
    _version: object = None
    _told: str = ""
    _launcher: psutil.Process | None = None

    @property
    def name(self) -> str:
        """The program's name."""
        return Path(self.command[0]).name

    @property
    def runs(self) -> bool:
        """Whether it has been started and has not ended."""
        return self.process is not None and self.process.poll() is None

    def start(self, say: Say = lambda _: None, port: int = 0) -> Program:
        """Say its command, start it in its home, and return it.

        With ``port``, wait until it listens there, on this machine. It has a session of its own, so
        that Ctrl-C reaches it only through us. SpcacwError if it ends first, or takes longer than
        START_SECONDS.
        """
        if port and listens(f"127.0.0.1:{port}"):
            raise SpcacwError(f"Port {port} is another program's: end that, or use another port.")
        say(shown(self.command, self.home))
        self.home.mkdir(parents=True, exist_ok=True)
        with self._heard() as out:
            self.process = subprocess.Popen(
                self.command, cwd=self.home, env=environment(self.home, self.more), stdout=out,
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
                umask=self.umask,
            )  # fmt: skip
        self._launcher, self._version = None, self.version()
        self._started, self._ended = time.monotonic(), None
        while port and not listens(f"127.0.0.1:{port}"):
            late = time.monotonic() > self._started + START_SECONDS
            if late or self.process.poll() is not None:
                raise SpcacwError(f"{self.name} did not start on port {port}: see {self.log}.")
            time.sleep(POLL_SECONDS)
        return self

    def _heard(self) -> IO[bytes]:
        """Return the file for its output: its log, or a pipe to a program that logs it as JSON."""
        if not self.as_json:
            return open(self.log, "ab", opener=partial(os.open, mode=0o600))
        writer = subprocess.Popen(
            [sys.executable, json_lines.__file__, str(self.log), self.name], cwd=self.home,
            env=environment(self.home), stdin=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert writer.stdin is not None  # since it is a pipe
        return writer.stdin

    @property
    def last_words(self) -> str:
        """Why it ended, in brackets, mostly in Flower's words; empty if its log does not say."""
        said = ""
        with suppress(FileNotFoundError), self.log.open("rb") as file:  # it may be moved away
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_END))
            said = file.read(LOG_END).decode(errors="replace")
        reasons = re.findall(r"Exit Code: \d+\n(.*?)\n\n", said, re.DOTALL)
        why = " ".join(reasons[-1].split()) if reasons else ""
        why = ADMIT if UNKNOWN in why else why
        return f" ({why})" if why else ""

    def outdated(self) -> str:
        """End it if what it read has a new valid version; return a sentence to say, or none."""
        if not self.runs:
            return ""
        try:
            if self.version() == self._version:
                return ""
        except SpcacwError as error:
            fresh, self._told = str(error) != self._told, str(error)
            return f"{error} Until then {self.name} keeps what it has." if fresh else ""
        self._end()
        return f"{self.name} is started again with its new certificate."

    def _end(self) -> None:
        assert self.process is not None  # since it runs
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)

    def _lame(self) -> bool:
        """Say whether it runs and its launcher, which it had started, has ended."""
        if not (self.launcher and self.process and self.runs):
            return False
        with suppress(psutil.NoSuchProcess):
            if self._launcher is None:
                children = psutil.Process(self.process.pid).children()
                self._launcher = next((one for one in children if _runs(one, self.launcher)), None)
            return bool(self._launcher and self._launcher.status() == psutil.STATUS_ZOMBIE)
        return self._launcher is not None

    def keep(self) -> bool:
        """Start it again if it, or its launcher, has ended; say whether it was started.

        SpcacwError if it ended right after its start, and is not patient.
        """
        if self._lame():
            self._end()
        if self.process is None or self.runs:
            return False
        now = time.monotonic()
        if not self.patient and now - self._started < SHORTEST_LIFE:
            raise SpcacwError(f"{self.name} cannot run: see {self.log}.")
        self._ended = now if self._ended is None else self._ended
        if self.patient and now - self._ended < PATIENCE:
            return False
        self.start()
        return True


def keep(programs: Sequence[Program], say: Say) -> None:
    """Start the programs again that have ended, and say so."""
    for program in programs:
        if why := program.outdated():
            say(why)
        if program.keep():
            why = program.last_words
            say(f"{program.name} ended{why} and was started again; its log is {program.log}")


def free_port() -> int:
    """Return a port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def host_and_port(address: str, what: str = "stream-address") -> tuple[str, int]:
    """Return the parts of ``host:port``; SpcacwError, which names ``what``, for another form.

    An IPv6 host has brackets in the address, and none in the result.
    """
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise SpcacwError(
            f"{what} = {address!r} is not of the form host:port, such as 'silo0.example.org:7443'."
        )
    return host.strip("[]"), int(port)


def listens(address: str) -> bool:
    """Say whether a program listens at ``host:port``."""
    with suppress(OSError), socket.create_connection(host_and_port(address), timeout=1):
        return True
    return False


def connected(home: Path, address: str) -> bool:
    """Say whether a program of a home has an open connection to the port of ``host:port``."""
    _, port = host_and_port(address)
    for member in family(home):
        with suppress(psutil.Error):
            for one in member.net_connections("tcp"):
                if one.status == psutil.CONN_ESTABLISHED and one.raddr.port == port:
                    return True
    return False


def family(*homes: Path) -> list[psutil.Process]:
    """Return the living processes of these Flower homes, orphans too."""
    names, members = {str(home) for home in homes}, []
    for process in psutil.process_iter():  # no attributes: they take many times as long
        with suppress(psutil.Error):
            ours = process.environ().get(OURS) in names
            if ours and process.status() != psutil.STATUS_ZOMBIE and process.pid != os.getpid():
                members.append(process)
    return members


def _runs(process: psutil.Process, program: str) -> bool:
    """Say whether a process runs a program, or did; of scripts macOS tells this while they live."""
    if process.name()[:15] == program[:15]:  # Linux keeps 15 letters
        return True
    return program in (Path(word).name for word in process.cmdline()[:2])


def named(program: str, home: Path) -> list[int]:
    """Return the ids of a home's living processes that run a program."""
    found = []
    for member in family(home):
        with suppress(psutil.Error):
            if _runs(member, program):
                found.append(member.pid)
    return found


def end(*homes: Path) -> None:
    """End all processes of these homes (children of Flower's programs outlive them)."""
    with undisturbed():
        for ending in (psutil.Process.terminate, psutil.Process.kill):
            members = family(*homes)
            for member in members:
                with suppress(psutil.Error):
                    ending(member)
            psutil.wait_procs(members, timeout=STOP_SECONDS)


@contextmanager
def locked(path: Path, words: str) -> Iterator[None]:
    """Lock a file for the block; SpcacwError, which says ``words``, if another process has it."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SpcacwError(words) from None
        yield


@contextmanager
def owning(*homes: Path) -> Iterator[None]:
    """Own these homes for the block: end a dead owner's programs first, and all programs at last.

    SpcacwError if another command owns one of them; then nothing is ended.
    """
    with ExitStack() as locks:
        for home in homes:
            home.mkdir(parents=True, exist_ok=True)
            words = (
                f"Another command runs the host in {home.parent}: end that one with Ctrl-C first, "
                "or leave it alone."
            )
            locks.enter_context(locked(home / LOCK, words))
        try:
            end(*homes)
            yield
        finally:
            end(*homes)
