"""The hosts of a federation: the files in their directories, and the Flower commands they run.

A server's directory holds its certificate and key, ``ca.crt``, the SuperLink's database, and
``flower/``, its Flower home. A silo's directory holds its key, ``ca.crt``, ``node.toml`` (which
silo it is, and where its data are) and a Flower home of its own. Nothing in one directory refers to
another, so each can be moved to a host of its own.
"""

import sqlite3
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE

from spcacw_flwr.config.config import read_toml
from spcacw_flwr.config.declare import SpcacwError, names_in, numbers_in
from spcacw_flwr.config.keys import MOST_SILOS, STREAM
from spcacw_flwr.engine.directory import write_atomically
from spcacw_flwr.flower import audit, certificates, members, node, policy, processes
from spcacw_flwr.flower.launch import Link
from spcacw_flwr.flower.processes import Say

LONGEST_PAUSE = 60.0
"""Seconds between two tries to reach a server."""
NODE_FILE, OLD_KEY, STATE = "node.toml", "silo-old.pub", "state.db"
IN_STATE = Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
"""The form of public keys in the SuperLink's database."""
PATHS = ("data-dir", "root-certificates", "policy")
"""Keys of a node's config that are paths, relative to its directory."""
RESERVED = "'\"\n"
"""A text in a node's config may not hold these: Flower's command line has no way to quote them."""


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

    @property
    def members(self) -> members.Members:
        """Who may take part."""
        return members.Members(self.directory)

    def note(self, event: str, **fields: Any) -> None:
        """Add a line to its audit log."""
        if log := audit.of_home(str(self.home)):
            log.note(event, **fields)

    def check_certificates(self, say: Say) -> None:
        """Say until when its certificates are valid; SpcacwError if one is not, or not its own."""
        for name, remedy in (
            (certificates.CA_CERTIFICATE, certificates.NEW_AUTHORITY),
            (certificates.SERVER_CERTIFICATE, certificates.RENEW),
        ):
            say(certificates.term(Path(self._own(name)), remedy))
        certificates.in_use(self.directory)

    def _own(self, name: str) -> str:
        made = "is no server's directory; make one with 'spcacw deploy ca'."
        return self._file(name, f"{self.directory} {made}")

    def superlink(self, host: str) -> list[str]:
        """Return the command of the SuperLink: TLS, registered keys only, a lasting database."""
        return [
            str(processes.PROGRAMS / "flower-superlink"), "--host", host, "--port", str(self.port),
            "--ssl-ca-certfile", self._own(certificates.CA_CERTIFICATE),
            "--ssl-certfile", self._own(certificates.SERVER_CERTIFICATE),
            "--ssl-keyfile", self._own(certificates.SERVER_KEY),
            "--enable-supernode-auth", "--database", str(self.directory / STATE),
            "--isolation", "process",
            "--superexec-auth-secret-file", self._own(certificates.SERVER_SECRET),
        ]  # fmt: skip

    def registered(self, public_key: str) -> str:
        """Return the node as which the SuperLink registered a key; empty if it did not.

        No command of Flower reports it, but the SuperLink's database has it.
        """
        key = certificates.public_key(public_key.encode()).public_bytes(*IN_STATE)
        ask = "SELECT node_id FROM node WHERE public_key = ? AND status != 'unregistered'"
        path = f"{(self.directory / STATE).resolve().as_uri()}?mode=ro"
        with suppress(sqlite3.Error), closing(sqlite3.connect(path, uri=True)) as state:
            for (node,) in state.execute(ask, [key]):
                return str(node % 2**64)  # SQLite has signed numbers only
        return ""

    def superexec(self) -> list[str]:
        """Return the command that runs the ServerApp, which outlives a crash of the SuperLink."""
        return [
            str(processes.PROGRAMS / "flower-superexec"), "--runtime-api-address", self.address,
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

        If the keys choose another exchange, or name a certificate, they stay as they are.
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
        """The file of the public key, which the server registers."""
        return self.directory / certificates.SILO_PUBLIC_KEY

    def make(self, silo: int, authority: Path, data: str, **more: Any) -> None:
        """Make its key, its copy of ``ca.crt``, and ``node.toml``, which says what silo it is.

        ``more`` are further keys of ``node.toml``.
        """
        content = certificates.authority_in(authority)
        certificates.make_silo_key(self.directory, f"{members.FOR}{silo}")
        write_atomically(self.directory / certificates.CA_CERTIFICATE, content)
        table = {
            "silos": str(silo), "root-certificates": certificates.CA_CERTIFICATE, "data-dir": data,
        }  # fmt: skip
        write_atomically(self.directory / NODE_FILE, tomli_w.dumps(table | more).encode())

    def node_config(self) -> dict[str, Any]:
        """Return the keys of ``node.toml``, its paths absolute, and the path of the site's policy.

        SpcacwError if one of the two cannot be read or has an unknown key or a wrong value, or if
        ``node.toml`` names no silo, or holds a text that Flower cannot take.
        """
        path = self.directory / NODE_FILE
        self._file(NODE_FILE, "make a silo's directory with 'spcacw deploy key'.")
        table = node.checked(read_toml(path, "The node config"), node.KNOWN, str(path))
        if not numbers_in(table.get("silos", ""), MOST_SILOS):
            raise SpcacwError(f'{path} names no silo: write silos = "0", say, into it.')
        if (self.directory / policy.FILE).exists():
            table.setdefault("policy", policy.FILE)
        for name in PATHS:
            if name in table:
                table[name] = str((self.directory / table[name]).resolve())
        for name, value in table.items():
            if isinstance(value, str) and set(value) & set(RESERVED):
                raise SpcacwError(
                    f"{name} = {value!r} in {path} is not allowed: it must be a text without "
                    "quotes and line ends."
                )
        if "policy" in table:
            policy.load(Path(table["policy"]))
        return table

    def supernode(self, superlink: str, port: int) -> list[str]:
        """Return the command of the SuperNode; its own programs talk to it on ``port``."""
        advice = (
            "the key comes from 'spcacw deploy key', the certificate of the authority from "
            "whoever runs the server."
        )
        processes.host_and_port(superlink, "--superlink")
        key = self._file(certificates.SILO_KEY, advice)
        authority = self._file(certificates.CA_CERTIFICATE, advice)
        certificates.private_key(Path(key))
        certificates.authority_in(Path(authority))
        config = self.node_config().items()
        texts = (f"{k}='{v}'" if isinstance(v, str) else f"{k}={v}".lower() for k, v in config)
        return [
            str(processes.PROGRAMS / "flower-supernode"), "--superlink", superlink,
            "--auth-supernode-private-key", key, "--root-certificates", authority,
            "--port", str(port), "--node-config", " ".join(texts),
        ]  # fmt: skip

    def rotate(self) -> None:
        """Give the silo a new key; the old key vouches for it in the audit log.

        The old public key is kept as ``silo-old.pub``. SpcacwError if the silo runs.
        """
        key = Path(self._file(certificates.SILO_KEY, "make it with 'spcacw deploy key'."))
        new, _ = key.with_suffix(".new"), self._file(certificates.SILO_PUBLIC_KEY, "it is needed.")
        if processes.family(self.home):
            raise SpcacwError(f"{self.directory} runs: end its 'spcacw deploy silo' first.")
        if not new.exists():  # it exists if a change of the key was cut short
            certificates.make_private_key(new)
        comment = members.comment_in(self.public_key)
        log = audit.Log(self.directory / audit.LOG, key)
        log.announce(new)
        for path, of in ((self.directory / OLD_KEY, key), (self.public_key, new)):
            write_atomically(path, f"{certificates.public_text(of, comment)}\n".encode())
        new.replace(key)
        log.take(key)

    def wait_for(self, superlink: str, say: Say) -> None:
        """Wait until the SuperLink shows the right certificate; say why it does not.

        SpcacwError if the site's policy names keys, and the SuperLink's key is none of them.
        """
        pause, authority = processes.PATIENCE, self.directory / certificates.CA_CERTIFICATE
        own = certificates.term(authority, "ask the server's owner for another")
        while True:
            try:
                certificate = certificates.served(superlink, authority)
                shown = certificates.fingerprint(certificate)
                why = self._skewed(superlink)
            except (OSError, ValueError) as error:
                why = (
                    f"{superlink} cannot be reached ({certificates.why_unknown(error)}): check the "
                    f"address, and that {authority} is that of its server."
                )
            if why:
                say(f"{why} The next try is in {pause:g} s.")
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            site = self.node_config().get("policy")
            known = names_in(policy.load(Path(site)).targets) if site else []
            if known and shown not in known:
                raise SpcacwError(
                    f"The key of {superlink}, {shown}, is not in 'targets' of {site}."
                )
            say(own)
            say(certificates.term(certificate, "", f"The certificate of {superlink}"))
            return

    def _skewed(self, superlink: str) -> str:
        """Return why Flower would refuse what this host signs, by its clock; else empty."""
        theirs = certificates.clock_of(superlink, self.directory / certificates.CA_CERTIFICATE)
        ahead = (certificates.now() - theirs).total_seconds() if theirs else 0.0
        # The other host reports its time in whole seconds, rounded down.
        if -TIMESTAMP_TOLERANCE < ahead < SYSTEM_TIME_TOLERANCE + 1:
            return ""
        return (
            f"The clock of this host is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} "
            f"that of {superlink}, and Flower would take it for an old message sent again: set "
            "the clocks of both."
        )
