"""Join by a one-time token, instead of sending ``ca.crt`` and ``silo.pub`` by hand.

The server's owner runs ``spcacw deploy invite``, which listens for some minutes. Its token is
``host:port/silo/secret/pin``. The silo first fetches ``ca.crt``, and trusts it if the pin is its
SHA-256. The silo shows the secret only over TLS that this authority has signed. Then the silo's
public key is admitted for that silo number only, and the token is worth nothing any more.
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
from spcacw_flwr.flower.pages import EVERYWHERE, SECONDS, Listener, Visit
from spcacw_flwr.flower.processes import POLL_SECONDS, Say, host_and_port
from spcacw_flwr.flower.service import digest_of

PORT, MOST_BYTES = 9093, 1 << 16
AUTHORITY, JOIN = "/ca.crt", "/join"


class Desk:
    """Admits each silo that shows a token, once for each token, until the time is over.

    Silos reach the desk at the host:port ``address``, and the SuperLink at ``superlink``.
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
        self._lock, self.strangers = threading.Lock(), audit.Strangers()

    def admit(self, token: str, key: str) -> dict[str, str]:
        """Admit a key and return what its silo needs; SpcacwError if token or key is not valid."""
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
        """Listen during the block; yield the port. SpcacwError if it cannot listen there."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        place = self.server.directory
        context.load_cert_chain(
            place / certificates.SERVER_CERTIFICATE, place / certificates.SERVER_KEY
        )
        try:
            listener = Listener((EVERYWHERE, port), type("Visit", (_Visit,), {"desk": self}))
        except OSError as error:
            raise SpcacwError(f"Port {port} cannot be listened at: {error}.") from error
        # Each visit makes its own handshake: a slow one keeps no other visit waiting.
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
                late = sorted(self._silos[digest] for digest in list(self.waiting))
                raise SpcacwError(
                    f"Silo {', '.join(map(str, late))} did not join within {self.minutes:g} "
                    "minutes: its token is worth nothing now."
                )
            time.sleep(POLL_SECONDS)


class _Visit(Visit):
    desk: Desk

    def do_GET(self) -> None:
        """Show the authority's certificate."""
        found = self.path == AUTHORITY
        self.reply(200 if found else 404, self.desk.authority if found else b"")

    def do_POST(self) -> None:
        """Admit a silo that shows a token."""
        try:
            size = int(self.headers.get("content-length", 0))
            if not 0 <= size <= MOST_BYTES:  # a negative size would be read for ever
                raise ValueError(size)
            asked = json.loads(self.rfile.read(size))
            status, said = 200, self.desk.admit(str(asked["token"]), str(asked["key"]))
        except (ValueError, KeyError, TypeError):
            status, said = 400, {"error": "what it sent is no question of 'spcacw deploy join'"}
        except SpcacwError as error:
            status, said = 403, {"error": str(error).removesuffix(".")}
        if "error" in said and (fields := self.desk.strangers.came()) is not None:
            visitor = self.client_address[0].removeprefix("::ffff:")  # IPv4 behind IPv6
            why = f"{visitor}: {said['error']}"
            self.desk.server.note(audit.REFUSED, kind="token", why=why, **fields)
        self.reply(status, json.dumps(said).encode())


def join(place: Silo, token: str, data: str) -> str:
    """Make a silo's directory, have its key admitted, and return the SuperLink's address.

    A directory that exists keeps its key and its number. SpcacwError if the token is not valid, or
    the server is not the one that the token names.
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
    """Return a token's address, silo and pin; SpcacwError if it is no token."""
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
    except (OSError, ValueError, http.client.HTTPException) as error:  # also for a bad name
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
