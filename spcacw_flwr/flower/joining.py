"""Joining by a one-time token, in the place of sending ``ca.crt`` and ``silo.pub`` by hand.

The server's owner has ``spcacw deploy invite`` listen for some minutes. Its token is
``host:port/silo/secret/pin``. The pin is the SHA-256 of the file ``ca.crt``, which the silo fetches
first and trusts for that; the secret it shows only over TLS that this authority has signed. Then
its public key is admitted, for that number of a silo alone, and the token is worth nothing.
"""

import hashlib
import http.client
import json
import secrets
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from spcacw_flwr.config.declare import SpcacwError, numbers_in
from spcacw_flwr.config.keys import MOST_SILOS
from spcacw_flwr.flower import audit, certificates, members
from spcacw_flwr.flower.federation import register
from spcacw_flwr.flower.hosts import Server, Silo
from spcacw_flwr.flower.pages import SECONDS, Listener, Visit
from spcacw_flwr.flower.processes import POLL_SECONDS, Say, host_and_port
from spcacw_flwr.flower.service import digest_of

PORT, MOST_BYTES = 9093, 1 << 16
AUTHORITY, JOIN = "/ca.crt", "/join"


class Desk:
    """Admits whoever shows a token, once for each, until the time is over.

    ``address`` is the host:port by which silos reach it, and ``superlink`` that of the SuperLink.
    """

    def __init__(
        self, server: Server, silos: Sequence[int], address: str, superlink: str, minutes: float,
        say: Say,
    ) -> None:  # fmt: skip
        self.server, self.superlink, self.minutes, self._say = server, superlink, minutes, say
        self.authority = (server.directory / certificates.CA_CERTIFICATE).read_bytes()
        self.tokens = {silo: f"{address}/{silo}/{secrets.token_urlsafe(24)}/{_pin(self.authority)}"
                       for silo in silos}  # fmt: skip
        self._silos = {digest_of(token): silo for silo, token in self.tokens.items()}
        self.waiting = set(self._silos)
        self.deadline = time.monotonic() + 60 * minutes
        self._lock = threading.Lock()

    def admit(self, token: str, key: str) -> dict[str, str]:
        """Admit a public key, and return what its silo needs to know; SpcacwError if it may not."""
        silo, digest = self._silos.get(digest_of(token)), digest_of(token)
        if silo is None:
            raise SpcacwError("the token is not one of this server's")
        with self._lock:
            if digest not in self.waiting:
                raise SpcacwError("the token was used before")
            if time.monotonic() > self.deadline:
                raise SpcacwError("the token's time is over")
            line = f"{_checked(key)} {members.FOR}{silo}"
            with tempfile.TemporaryDirectory() as place:
                path = Path(place) / certificates.SILO_PUBLIC_KEY
                path.write_text(line + "\n")
                (node,) = register(self.server, [path], self._say)
            if self.server.members.silos_of(int(node)) != [silo]:
                raise SpcacwError("the key is that of another silo")
            self.waiting.remove(digest)
        self._say(f"Silo {silo} has joined; it is node {node}.")
        return {"superlink": self.superlink}

    @contextmanager
    def open(self, port: int) -> Iterator[int]:
        """Listen in the block; yields the port. SpcacwError if it cannot be listened at."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        place = self.server.directory
        context.load_cert_chain(
            place / certificates.SERVER_CERTIFICATE, place / certificates.SERVER_KEY
        )
        try:
            listener = _Listener(("", port), _Visit)
        except OSError as error:
            raise SpcacwError(f"Port {port} cannot be listened at: {error}.") from error
        listener.desk = self
        # Handshakes are the visits' own: one that is slow keeps nobody waiting.
        listener.socket = context.wrap_socket(
            listener.socket, server_side=True, do_handshake_on_connect=False
        )
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        try:
            yield int(listener.server_address[1])
        finally:
            listener.shutdown()
            listener.server_close()

    def wait(self) -> None:
        """Wait until all have joined; SpcacwError if the time is over first."""
        while self.waiting:
            if time.monotonic() > self.deadline:
                late = sorted(self._silos[digest] for digest in self.waiting)
                raise SpcacwError(
                    f"Silo {', '.join(map(str, late))} did not join within {self.minutes:g} "
                    "minutes: its token is worth nothing now."
                )
            time.sleep(POLL_SECONDS)


class _Listener(Listener):
    desk: Desk


class _Visit(Visit):
    server: _Listener

    def do_GET(self) -> None:
        """Show the authority's certificate."""
        found = self.path == AUTHORITY
        self.reply(200 if found else 404, self.server.desk.authority if found else b"")

    def do_POST(self) -> None:
        """Admit who shows a token."""
        desk = self.server.desk
        try:
            size = int(self.headers.get("content-length", 0))
            if not 0 <= size <= MOST_BYTES:  # a negative one would be read for ever
                raise ValueError(size)
            asked = json.loads(self.rfile.read(size))
            status, said = 200, desk.admit(str(asked["token"]), str(asked["key"]))
        except (ValueError, KeyError, TypeError):
            status, said = 400, {"error": "what it sent is no question of 'spcacw deploy join'"}
        except SpcacwError as error:
            status, said = 403, {"error": str(error).removesuffix(".")}
        if "error" in said:
            why = f"{self.client_address[0]}: {said['error']}"
            desk.server.note(audit.REFUSED, kind="token", why=why)
        self.reply(status, json.dumps(said).encode())


def join(place: Silo, token: str, data: str) -> str:
    """Make a silo's directory, have its key admitted, and return the SuperLink's address.

    In a directory that there is, its key and its number stay as they are. SpcacwError if the token
    is not good, or the server is not the one that it names.
    """
    address, silo, pin = _parts(token)
    anyone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    _, authority = _asked(address, anyone, "GET", AUTHORITY)
    if _pin(authority) != pin:
        raise SpcacwError(
            f"{address} has another authority than the token names: the token is mistyped, or "
            "somebody else answers there. Nothing was sent."
        )
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / certificates.CA_CERTIFICATE
        path.write_bytes(authority)
        context = ssl.create_default_context(cafile=path)
        if not place.public_key.exists():
            place.make(silo, path, data)
    own = place.directory / certificates.CA_CERTIFICATE
    if place.node_config()["silos"] != str(silo) or own.read_bytes() != authority:
        raise SpcacwError(
            f"{place.directory} is another silo's than {silo}, or of another authority: name "
            "another directory."
        )
    key, _ = members.key_in(place.public_key)
    status, said = _asked(address, context, "POST", JOIN, {"token": token, "key": key})
    try:
        told = json.loads(said)
        if status == 200:
            return str(told["superlink"])
        why = str(told["error"])
    except (ValueError, KeyError, TypeError):
        why = f"it says {status}"
    raise SpcacwError(f"{address} refuses: {why}. Ask the server's owner for another token.")


def _parts(token: str) -> tuple[str, int, str]:
    """Return address, silo and pin; SpcacwError if it is no token."""
    parts = token.strip().split("/")
    silos = numbers_in(parts[1], MOST_SILOS) if len(parts) == 4 else None
    if not silos or len(silos) > 1:
        raise SpcacwError(f"{token!r} is no token: copy what 'spcacw deploy invite' printed.")
    host_and_port(parts[0], "The token's address")
    return parts[0], silos[0], parts[3]


def _asked(
    address: str, context: ssl.SSLContext, how: str, what: str, told: Any = None
) -> tuple[int, bytes]:
    where, seconds = host_and_port(address), 6 * SECONDS
    try:
        with closing(http.client.HTTPSConnection(*where, timeout=seconds, context=context)) as line:
            line.request(how, what, None if told is None else json.dumps(told))
            reply = line.getresponse()
            return reply.status, reply.read(MOST_BYTES)
    except (OSError, ValueError, http.client.HTTPException) as error:  # of a name that is none, too
        raise SpcacwError(
            f"{address} cannot be reached ({certificates.why_unknown(error)}): the token was used, "
            "or its time is over, or the address is wrong. Ask the server's owner for another."
        ) from error


def _checked(key: str) -> str:
    """Return a silo's public key; SpcacwError if it is none."""
    try:
        certificates.public_key(key.encode())
        _type, _key = key.split()
    except ValueError:
        raise SpcacwError("the key is none of 'spcacw deploy'") from None
    return key


def _pin(authority: bytes) -> str:
    return hashlib.sha256(authority).hexdigest()
