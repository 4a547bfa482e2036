"""What lies where on a host of the federation, and the Flower commands that are run there.

A server's directory holds its certificate and key, ``ca.crt``, the SuperLink's database, and
``flower/``, its Flower home. A silo's directory holds its key, ``ca.crt``, ``node.toml`` (which
silo it is, and where its data are) and a Flower home of its own. Nothing in one directory refers to
another, so that each may be moved to a host of its own.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.keys import STREAM
from spcacw_flwr.flower import certificates
from spcacw_flwr.flower.launch import Link
from spcacw_flwr.flower.processes import PROGRAMS

NODE_FILE = "node.toml"
PATHS = ("data-dir", "root-certificates")
"""Keys of a node's config that are paths, relative to its directory."""
RESERVED = "'\"\n"
"""What a text in a node's config may not hold: Flower's command line has no way to quote it."""


@dataclass(frozen=True)
class Place:
    """A host of the federation."""

    directory: Path

    @property
    def home(self) -> Path:
        """Its Flower home."""
        return self.directory / "flower"

    def _file(self, name: str, advice: str) -> str:
        path = self.directory / name
        if not path.is_file():
            raise SpcacwError(f"{path} is missing: {advice}")
        return str(path)


@dataclass(frozen=True)
class Server(Place):
    """The host of the SuperLink and of the ServerApp, which learns for the target."""

    port: int

    def _own(self, name: str) -> str:
        made = "is no server's directory; make one with 'spcacw deploy ca'."
        return self._file(name, f"{self.directory} {made}")

    def superlink(self, host: str) -> list[str]:
        """Return the command of the SuperLink: TLS, registered keys only, a lasting database."""
        return [
            str(PROGRAMS / "flower-superlink"), "--host", host, "--port", str(self.port),
            "--ssl-ca-certfile", self._own(certificates.CA_CERTIFICATE),
            "--ssl-certfile", self._own(certificates.SERVER_CERTIFICATE),
            "--ssl-keyfile", self._own(certificates.SERVER_KEY),
            "--enable-supernode-auth", "--database", str(self.directory / "state.db"),
            "--isolation", "process",
            "--superexec-auth-secret-file", self._own(certificates.SERVER_SECRET),
        ]  # fmt: skip

    def superexec(self) -> list[str]:
        """Return the command that runs the ServerApp, which outlives a crash of the SuperLink."""
        return [
            str(PROGRAMS / "flower-superexec"), "--runtime-api-address", self.address,
            "--root-certificates", self._own(certificates.CA_CERTIFICATE),
            "--superexec-auth-secret-file", self._own(certificates.SERVER_SECRET),
        ]  # fmt: skip

    @property
    def address(self) -> str:
        """Where programs of the same host find the SuperLink."""
        return f"127.0.0.1:{self.port}"

    def link(self) -> Link:
        """Return the SuperLink as Flower's CLI on this host reaches it."""
        authority = self._own(certificates.CA_CERTIFICATE)
        self.home.mkdir(exist_ok=True)
        return Link(self.home, self.address, **{"root-certificates": authority})

    def streaming(self, flat: dict[str, Any], address: str) -> dict[str, Any]:
        """Return run-config keys by which silos answer in streams to this host, with TLS.

        Keys that choose another exchange, or name a certificate, are left as they are.
        """
        if flat.get("exchange", STREAM) != STREAM or flat.get("stream-certificate"):
            return flat
        return flat | {
            "exchange": STREAM, "stream-address": address,
            "stream-certificate": self._own(certificates.SERVER_CERTIFICATE),
            "stream-key": self._own(certificates.SERVER_KEY),
        }  # fmt: skip


@dataclass(frozen=True)
class Silo(Place):
    """The host of a silo: its SuperNode, its key, its data."""

    @property
    def public_key(self) -> Path:
        """What the server registers."""
        return self.directory / certificates.SILO_PUBLIC_KEY

    def make(self, silo: int, authority: Path, data: str, **more: Any) -> None:
        """Make its key, its copy of ``ca.crt``, and ``node.toml``: which silo this node holds.

        ``more`` is what else its app is to know.
        """
        certificates.make_silo_key(self.directory)
        (self.directory / certificates.CA_CERTIFICATE).write_bytes(authority.read_bytes())
        table = {
            "silos": str(silo), "root-certificates": certificates.CA_CERTIFICATE, "data-dir": data,
        }  # fmt: skip
        (self.directory / NODE_FILE).write_text(tomli_w.dumps(table | more))

    def node_config(self) -> dict[str, Any]:
        """Return what ``node.toml`` says, its paths absolute.

        SpcacwError if it cannot be read, names no silo, or holds what Flower cannot be told.
        """
        path = self.directory / NODE_FILE
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise SpcacwError(
                f"{path} cannot be read ({error}): make a silo's directory with "
                "'spcacw deploy key'."
            ) from error
        if "silos" not in table:
            raise SpcacwError(f'{path} names no silo: write silos = "0", say, into it.')
        for name in PATHS:
            if name in table:
                table[name] = str((self.directory / str(table[name])).resolve())
        for name, value in table.items():
            plain = isinstance(value, str | int | float)
            if not plain or (isinstance(value, str) and set(value) & set(RESERVED)):
                raise SpcacwError(
                    f"{name} = {value!r} in {path} is not allowed: it must be a number, a truth "
                    "value, or a text without quotes and line ends."
                )
        return table

    def supernode(self, superlink: str, port: int) -> list[str]:
        """Return the command of the SuperNode; its own programs talk to it on ``port``."""
        advice = (
            "the key comes from 'spcacw deploy key', the certificate of the authority from "
            "whoever runs the server."
        )
        return [
            str(PROGRAMS / "flower-supernode"), "--superlink", superlink,
            "--auth-supernode-private-key", self._file(certificates.SILO_KEY, advice),
            "--root-certificates", self._file(certificates.CA_CERTIFICATE, advice),
            "--port", str(port), "--node-config", as_node_config(self.node_config()),
        ]  # fmt: skip


def as_node_config(table: dict[str, Any]) -> str:
    """Return a table as Flower's option --node-config takes it."""
    texts = {name: f"'{v}'" if isinstance(v, str) else str(v).lower() for name, v in table.items()}
    return " ".join(f"{name}={text}" for name, text in texts.items())
