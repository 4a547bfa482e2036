"""Waiting for what other threads and processes do, and finding those that a test has started."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import psutil

T = TypeVar("T")


def wait_until(what: Callable[[], T], seconds: float = 240) -> T:
    """Return what it returns as soon as that is true."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
    return found


def marked(name: str, value: object) -> list[psutil.Process]:
    """The living processes with this variable in their environment, however remote."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get(name) == str(value):
                found.append(process)
    return found
