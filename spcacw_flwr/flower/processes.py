"""Flower's processes: started with what they need, awaited, and ended with all that they started.

A process and its descendants share a Flower home (``FLWR_HOME``), a directory that no other family
uses. That is how orphans are found too: Flower's programs outlive whoever started them.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from spcacw_flwr.config.declare import SpcacwError

ENVIRONMENT = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""What Flower and Ray need in order to use the installed packages and no network."""
PROGRAMS = Path(sys.executable).parent
START_SECONDS = 60.0
STOP_SECONDS = 10.0
POLL_SECONDS = 0.25


def environment(home: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a family of processes whose Flower home is ``home``."""
    found = os.environ | ENVIRONMENT | {"FLWR_HOME": str(home)} | dict(more or {})
    # Flower finds its own helper programs by name: those of this environment come first.
    found["PATH"] = f"{PROGRAMS}{os.pathsep}{found.get('PATH', '')}"
    return found


def start(
    command: Sequence[str], cwd: Path, env: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, so that Ctrl-C is ours to pass on; log its words."""
    with log.open("ab") as out:
        return subprocess.Popen(
            command, cwd=cwd, env=env, stdout=out, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip


def free_port() -> int:
    """Return a port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait until a process listens on a port of this machine.

    Raises
    ------
    SpcacwError
        If it ends first, or takes longer than START_SECONDS.
    """
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(POLL_SECONDS)
    raise SpcacwError(f"Flower's SuperLink did not start on port {port}: see {log}.")


def family(*homes: Path) -> list[psutil.Process]:
    """Return the living processes of these Flower homes, orphans too."""
    names, members = {str(home) for home in homes}, []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            ours = process.environ().get("FLWR_HOME") in names
            if ours and process.status() != psutil.STATUS_ZOMBIE and process.pid != os.getpid():
                members.append(process)
    return members


def program_runs(program: str, *homes: Path) -> bool:
    """Say whether a living process of these homes has a name that begins with ``program``."""
    names = []
    for member in family(*homes):
        with suppress(psutil.Error):
            names.append(member.name())
    return any(name.startswith(program) for name in names)


def end(*homes: Path) -> None:
    """End all processes of these homes (children of Flower's programs outlive them)."""
    for ending in (psutil.Process.terminate, psutil.Process.kill):
        members = family(*homes)
        for member in members:
            with suppress(psutil.Error):
                ending(member)
        psutil.wait_procs(members, timeout=STOP_SECONDS)
