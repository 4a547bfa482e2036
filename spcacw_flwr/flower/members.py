"""Who may take part: the keys that a server has admitted, and the keys that it has revoked.

The server's directory has ``registered/<node>.pub`` and ``revoked/<node>.pub``. A key's comment,
such as ``silo-3``, names its silo. Next to the key, ``<node>.json`` has the node's last account of
its silos: a run goes on without a revoked one. The ServerApp finds the files by its Flower home.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spcacw_flwr.config.declare import SpcacwError, numbers_in
from spcacw_flwr.config.keys import MOST_SILOS
from spcacw_flwr.engine.directory import write_atomically

REGISTERED, REVOKED = "registered", "revoked"
FOR = "silo-"


def key_in(path: Path) -> tuple[str, str]:
    """Return a public key in a file, without its comment, and the whole line.

    SpcacwError if it cannot be read.
    """
    try:
        text = path.read_text().strip()
    except (OSError, ValueError) as error:
        raise SpcacwError(f"{path} cannot be read: {error}.") from error
    return " ".join(text.split()[:2]), text


def comment_in(path: Path) -> str:
    """Return the comment of a public key in a file."""
    return " ".join(key_in(path)[1].split()[2:])


@dataclass(frozen=True)
class Members:
    """The members of a federation, by the directory of its server."""

    directory: Path

    def nodes(self, state: str) -> dict[str, str]:
        """Return the node of each key that is REGISTERED, or REVOKED."""
        paths = (self.directory / state).glob("*.pub")
        return {key_in(path)[0]: path.stem for path in paths}

    def admit(self, node: str, text: str) -> None:
        """Record the key of a node that is admitted."""
        (self.directory / REGISTERED).mkdir(exist_ok=True)
        write_atomically(self.directory / REGISTERED / f"{node}.pub", f"{text}\n".encode())

    def shut_out(self, node: str) -> None:
        """Record that a node's key is revoked from now on."""
        (self.directory / REVOKED).mkdir(exist_ok=True)
        for path in [*(self.directory / REGISTERED).glob(f"{node}.*")]:
            path.replace(self.directory / REVOKED / path.name)

    def remember(self, node: int, told: Sequence[dict[str, Any]]) -> None:
        """Record an admitted node's description of its silos."""
        path = self.directory / REGISTERED / f"{node}.json"
        if path.with_suffix(".pub").exists():
            write_atomically(path, json.dumps(told).encode(), mode=0o600)

    def lost(self) -> dict[int, list[dict[str, Any]]]:
        """Return each revoked node's last description of its silos."""
        paths = (self.directory / REVOKED).glob("*.json")
        return {int(path.stem): json.loads(path.read_text()) for path in paths}

    def revoked(self, node: int) -> bool:
        """Say whether a node was revoked."""
        return (self.directory / REVOKED / f"{node}.pub").exists()

    def silos_of(self, node: int) -> list[int]:
        """Return the silos that a node's key is for; empty if it does not say."""
        path = self.directory / REGISTERED / f"{node}.pub"
        comment = comment_in(path) if path.exists() else ""
        named = comment.removeprefix(FOR) if comment.startswith(FOR) else ""
        return numbers_in(named, MOST_SILOS) or []


def here() -> Members:
    """Return the members at this process's server; no members if it belongs to no server."""
    return Members(Path(os.environ.get("FLWR_HOME", "/nowhere")).parent)
