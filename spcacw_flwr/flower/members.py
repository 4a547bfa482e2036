"""Who may take part: the keys that a server has admitted, and those that it has shut out.

The server's directory has ``registered/<node>.pub`` and ``revoked/<node>.pub``. A key's comment,
``silo-3``, names the silo that it is for. Beside it, ``<node>.json`` is what the node last told of
its silos: a run goes on without one that was revoked. The ServerApp finds them by its Flower home.
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


def silos_in(comment: str) -> list[int]:
    """Return the silos that a key's comment names; none if it names none."""
    named = comment.removeprefix(FOR) if comment.startswith(FOR) else ""
    return numbers_in(named, MOST_SILOS) or []


@dataclass(frozen=True)
class Members:
    """The members of the federation whose server's directory this is."""

    directory: Path

    def nodes(self, state: str) -> dict[str, str]:
        """Return the node of each key that is REGISTERED, or REVOKED."""
        paths = (self.directory / state).glob("*.pub")
        return {key_in(path)[0]: path.stem for path in paths}

    def admit(self, node: str, text: str) -> None:
        """Note a key that is a node's."""
        (self.directory / REGISTERED).mkdir(exist_ok=True)
        write_atomically(self.directory / REGISTERED / f"{node}.pub", f"{text}\n".encode())

    def shut_out(self, node: str) -> None:
        """Note that a node's key is worth nothing from now on."""
        (self.directory / REVOKED).mkdir(exist_ok=True)
        for path in [*(self.directory / REGISTERED).glob(f"{node}.*")]:
            path.replace(self.directory / REVOKED / path.name)

    def remember(self, node: int, told: Sequence[dict[str, Any]]) -> None:
        """Note what a node that was admitted tells of its silos."""
        path = self.directory / REGISTERED / f"{node}.json"
        if path.with_suffix(".pub").exists():
            write_atomically(path, json.dumps(told).encode())

    def lost(self) -> dict[int, list[dict[str, Any]]]:
        """Return what each node that was shut out had told of its silos."""
        paths = (self.directory / REVOKED).glob("*.json")
        return {int(path.stem): json.loads(path.read_text()) for path in paths}

    def revoked(self, node: int) -> bool:
        """Say whether a node was shut out."""
        return (self.directory / REVOKED / f"{node}.pub").exists()

    def silos_of(self, node: int) -> list[int]:
        """Return the silos that a node's key is for; empty if it does not say."""
        path = self.directory / REGISTERED / f"{node}.pub"
        return silos_in(comment_in(path)) if path.exists() else []


def here() -> Members:
    """Return those of the server that this process belongs to; of none, if it belongs to none."""
    return Members(Path(os.environ.get("FLWR_HOME", "/nowhere")).parent)
