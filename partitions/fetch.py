"""Download MNIST once, safely when many processes ask for it at the same time.

A worker process of a simulation may start while another one downloads. So the files arrive in a
scratch directory and are then moved into place, each in one step, under a lock.
"""

from __future__ import annotations

import contextlib
import io
import logging
import socket
import tempfile
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path

from filelock import FileLock

from spcacw_flwr.config.declare import SpcacwError

# torchvision sets no time limit, and would hang for minutes behind a firewall that drops packets.
_NETWORK_TIMEOUT_S = 10.0
# Another process may be downloading 12 MB over a slow line; past this we say so and stop.
_LOCK_TIMEOUT_S = 600.0

log = logging.getLogger(__name__)


def fetch_mnist(root: Path, stems: list[str], found: Callable[[], bool]) -> None:
    """Download the .gz files of MNIST into ``root/MNIST/raw``, unless they are there by now.

    Parameters
    ----------
    root : Path
        The data directory; made if absent.
    stems : list of str
        File names without .gz.
    found : callable
        Whether the files are there by now: another process may have fetched them while we waited.

    Raises
    ------
    SpcacwError
        The directory cannot be written to, or the network or the servers fail.
    """
    raw = root / "MNIST" / "raw"
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / ".mnist.lock", timeout=_LOCK_TIMEOUT_S):
            if not found():
                log.info("Downloading MNIST (12 MB) into %s", raw)
                _download(root, raw, stems)
    # torchvision raises RuntimeError; urllib, sockets, the lock and the disk raise OSErrors.
    except (RuntimeError, OSError, HTTPException) as error:
        reason = (str(error) or type(error).__name__).strip().splitlines()[-1].rstrip(".")
        lacking = [s for s in stems if not (raw / s).is_file() and not (raw / f"{s}.gz").is_file()]
        raise SpcacwError(
            f"MNIST is not in {str(root)!r} and could not be downloaded ({reason}): put "
            f"{', '.join(lacking)} (unpacked, or as .gz) into {str(raw)!r}, or set the config key "
            "data-dir to the directory that holds MNIST/raw."
        ) from error


def _download(root: Path, raw: Path, stems: list[str]) -> None:
    from torchvision import datasets

    with tempfile.TemporaryDirectory(dir=root, prefix=".mnist-") as scratch, _quiet():
        datasets.MNIST(scratch, download=True)
        raw.mkdir(parents=True, exist_ok=True)
        for stem in stems:
            (Path(scratch) / "MNIST" / "raw" / f"{stem}.gz").replace(raw / f"{stem}.gz")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hold back torchvision's progress bars, and limit every wait for the network."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_NETWORK_TIMEOUT_S)
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        socket.setdefaulttimeout(before)
