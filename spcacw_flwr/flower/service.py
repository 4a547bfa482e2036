"""The target's end of all streams: a gRPC service that lets in the nodes that Flower invited.

A token is made for one node of one run. It travels in an authenticated Flower message, opens one
stream, and is worth nothing afterwards. Each stream has a thread, which puts the messages that come
into :attr:`Service.inbox`; nothing here waits for a silo.
"""

from __future__ import annotations

import hashlib
import ipaddress
import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import grpc

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.keys import TransportKeys
from spcacw_flwr.flower import audit, frames
from spcacw_flwr.flower.processes import host_and_port

log = logging.getLogger(__name__)
BESIDE = 1 << 20
"""Bytes that an answer may have besides a float32 gradient: losses, and small models' buffers."""
GRACE_SECONDS = 5.0
"""How long a stream may take to end by itself when it breaks, or when the service closes."""


def is_loopback(address: str) -> bool:
    """Say whether ``host:port`` can be reached from its own machine only."""
    host, _ = host_and_port(address)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def server_credentials(keys: TransportKeys) -> grpc.ServerCredentials | None:
    """Return the credentials of the service; None means plaintext.

    The files are read again for each handshake, so a certificate can be renewed during a run.
    SpcacwError if a file cannot be read, if only one of the two is named, or if none is named and
    the address is not a loopback address.
    """
    certificate, private = keys.stream_certificate, keys.stream_key
    if bool(certificate) != bool(private):
        raise SpcacwError("stream-certificate and stream-key go together: name both files.")
    if not certificate:
        if not is_loopback(keys.stream_address):
            raise SpcacwError(
                f"stream-address = {keys.stream_address!r} can be reached from other machines, and "
                "gradients must not travel there in the clear: name stream-certificate and "
                "stream-key."
            )
        return None
    host_and_port(keys.stream_address)
    paths = [Path(name).expanduser() for name in (private, certificate)]

    def pair() -> grpc.ServerCertificateConfiguration:
        key, chain = (path.read_bytes() for path in paths)
        return grpc.ssl_server_certificate_configuration([(key, chain)])

    try:
        return grpc.dynamic_ssl_server_credentials(pair(), pair)
    except OSError as error:
        raise SpcacwError(f"stream-certificate or stream-key cannot be read: {error}.") from error


class Event(NamedTuple):
    """What happened on a stream: a message came, or (None) the stream opened or broke."""

    link: Link
    heard: frames.Exchange | None


@dataclass(eq=False)
class Link:
    """A stream that a node was invited to open, or has opened."""

    node: int
    silos: tuple[int, ...]
    peer: str = ""
    """The address from which the node opened it, once it is open."""
    cancel: Callable[[], object] = bool
    """Ends the stream, whether or not the node reads."""
    outgoing: SimpleQueue[Iterable[bytes] | None] = field(default_factory=SimpleQueue)
    waiting_for: int | None = None
    """The question that has no answer yet; a stream carries one question at a time."""
    broken: str | None = None
    """Why the stream can no longer be used."""
    wrong: str | None = None
    """What was wrong with the node's message, if that is why."""

    def ask(self, id_: int, message: Iterable[bytes]) -> None:
        """Send a question."""
        self.waiting_for = id_
        self.outgoing.put(message)


class Service:
    """Listens from the moment it is made until :meth:`close`.

    Port 0 of ``address`` (host:port) means any free port: :attr:`address` has it. ``credentials``
    None means plaintext. ``nodes`` is how many nodes are expected, ``limit`` the most bytes of an
    answer's arrays for each silo of its node. SpcacwError if it cannot listen at the address.
    """

    def __init__(
        self, address: str, credentials: grpc.ServerCredentials | None, nodes: int, limit: int
    ) -> None:
        self.links: dict[int, Link] = {}
        """The stream of each node: the last one, broken or not."""
        self.inbox: SimpleQueue[Event] = SimpleQueue()
        self._limit, self._lock = limit, threading.Lock()
        self._invited: dict[str, Link] = {}
        """The streams that are not open yet, by the digests of their tokens."""
        self._used: set[str] = set()
        self._strangers = audit.Strangers()
        room = 2 * nodes + 8  # a thread for each stream; a new one may open before the old one ends
        handler = grpc.stream_stream_rpc_method_handler(self._talk)
        _, service, name = frames.METHOD.split("/")
        self._server = grpc.server(
            ThreadPoolExecutor(room, thread_name_prefix="spcacw-stream"),
            handlers=[grpc.method_handlers_generic_handler(service, {name: handler})],
            options=[*frames.OPTIONS, ("grpc.so_reuseport", 0)],
            maximum_concurrent_rpcs=room,
        )
        self.tls = credentials is not None
        host, _ = host_and_port(address)
        try:
            if credentials is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise SpcacwError(
                f"stream-address = {address!r} cannot be listened at: another program has the "
                "port, or the host is none of this machine."
            ) from error
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._server.start()

    def invite(self, node: int, silos: Iterable[int]) -> str:
        """Return a new token with which ``node`` may open one stream for its silos."""
        token = secrets.token_urlsafe(32)
        with self._lock:
            self._invited[digest_of(token)] = Link(node, tuple(silos))
        return token

    def alive(self, node: int) -> Link | None:
        """Return the open stream of a node, if there is one."""
        link = self.links.get(node)
        return link if link and not link.broken else None

    def shut_out(self, node: int) -> None:
        """End the stream of a node whose key was revoked, and forget its token."""
        with self._lock:
            self._invited = {d: link for d, link in self._invited.items() if link.node != node}
        if link := self.links.get(node):
            self._break(link, "its key was revoked")
            audit.refused("stream", f"{link.peer}: node {node} was revoked")

    def close(self) -> None:
        """Tell every node that this is the end, let the streams end, and stop listening."""
        for link in [*self.links.values()]:  # another one may open meanwhile
            link.outgoing.put(frames.frames(frames.Exchange(frames.END)))
            link.outgoing.put(None)
        self._server.stop(GRACE_SECONDS).wait()

    def _talk(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        link = self._admit(context)
        threading.Thread(target=self._listen, args=(link, requests), daemon=True).start()
        context.add_callback(lambda: self._break(link, "it was disconnected"))
        while (message := link.outgoing.get()) is not None:
            yield from message
        if link.broken:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, link.broken)

    def _admit(self, context: grpc.ServicerContext) -> Link:
        """Open a stream, or refuse it with the reason."""
        shown = {name: str(value) for name, value in context.invocation_metadata()}
        peer = context.peer()
        with self._lock:
            found = self._invitation(shown)
            if isinstance(found, Link):
                link, before = found, self.links.get(found.node)
                link.peer, link.cancel, self.links[link.node] = peer, context.cancel, link
        if isinstance(found, str):
            if (fields := self._strangers.came()) is not None:
                log.warning("A stream from %s was refused: %s.", peer, found)
                audit.refused("stream", f"{peer}: {found}", **fields)
            context.abort(grpc.StatusCode.UNAUTHENTICATED, found)
        if before:
            self._break(before, "the node opened another one")
        log.info("Node %s opened a stream from %s for silos %s.", link.node, peer, link.silos)
        self.inbox.put(Event(link, None))
        return link

    def _invitation(self, shown: Mapping[str, str]) -> Link | str:
        """Use up the token that a node shows, or return why the token is not valid."""
        if not shown.get(frames.TOKEN):
            return "it shows no token"
        digest = digest_of(shown[frames.TOKEN])
        if digest in self._used:
            return "its token was used before"
        link = self._invited.get(digest)
        if link is None:
            return "its token is not known"
        if shown.get(frames.NODE) != str(link.node):
            return f"its token is of node {link.node}, not of node {shown.get(frames.NODE)}"
        if shown.get(frames.SILOS) != silos_text(link.silos):
            return (
                f"its token is for silos {silos_text(link.silos)}, not for silos "
                f"{shown.get(frames.SILOS)}"
            )
        del self._invited[digest]
        self._used.add(digest)
        return link

    def _listen(self, link: Link, requests: Iterator[bytes]) -> None:
        """Put the messages of a stream into the inbox until it ends."""
        try:
            for message in frames.heard(requests, self._limit * len(link.silos)):
                if message.kind != frames.ANSWER or link.waiting_for != message.id:
                    raise frames.FrameError("what came is no answer to what was asked")
                link.waiting_for = None
                self.inbox.put(Event(link, message))
        except frames.FrameError as error:
            link.wrong = str(error)
            sentence = f"it broke the protocol: {error}"
            log.warning("The stream of node %s from %s was ended: %s.", link.node, link.peer, error)
        except Exception:  # gRPC raises various types when the other side is gone
            sentence = "it was disconnected"
        else:
            sentence = "the node ended it"
        self._break(link, sentence)

    def _break(self, link: Link, reason: str) -> None:
        with self._lock:
            if link.broken:
                return
            link.broken = reason
        link.outgoing.put(None)
        self.inbox.put(Event(link, None))
        late = threading.Timer(GRACE_SECONDS, link.cancel)
        late.daemon = True
        late.start()


def silos_text(silos: Iterable[int]) -> str:
    """Return silos as the metadata of a stream names them."""
    return ",".join(map(str, sorted(silos)))


def digest_of(token: str) -> str:
    """Return the digest that is kept of a token: the time to look it up reveals nothing."""
    return hashlib.sha256(token.encode()).hexdigest()
