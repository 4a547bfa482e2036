"""What a host's private silos have told in a run, kept on disk to outlive the host's programs.

``spent/`` next to the host's audit log has a file for each run, named by Flower's run id.
"""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.directory import sweep, write_atomically
from spcacw_flwr.silos.accounting import Ledger
from spcacw_flwr.silos.protocol import Federation, Request

DIRECTORY = "spent"


@contextmanager
def counting(path: Path) -> Iterator[None]:
    """Keep other programs from a file of counts; SpcacwError if it cannot be read or written."""
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        place = os.open(path.parent, os.O_RDONLY)
        try:
            fcntl.flock(place, fcntl.LOCK_EX)
            yield
        finally:
            os.close(place)
    except (OSError, ValueError, TypeError, AttributeError, SafetensorError) as error:
        raise SpcacwError(
            f"What silos have told cannot be counted in {path} ({error}), and uncounted they "
            "tell nothing."
        ) from error


class Account(Ledger):
    """A ledger that saves its counts before an answer goes out, and goes on from saved counts."""

    def __init__(self, config: Config, federation: Federation, path: Path) -> None:
        super().__init__(config, federation)
        self._path = path
        with counting(path):
            sweep(path.parent)
            self._catch_up()

    def note(self, request: Request, silos: Sequence[int]) -> None:
        """Count the answers of ``silos`` to a request, on top of what other programs counted."""
        with counting(self._path):
            self._catch_up()
            super().note(request, silos)
            none = np.empty(0, dtype=np.int64)
            counts = {str(i): np.append(n, self.uses.get(i, none)) for i, n in self.answers.items()}
            write_atomically(self._path, save(counts), mode=0o600)

    def _catch_up(self) -> None:
        found = load(self._path.read_bytes()) if self._path.exists() else {}
        for silo in self.answers:
            if str(silo) in found:
                self.restore(silo, found[str(silo)])
