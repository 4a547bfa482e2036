"""The target's end of all streams: a gRPC service that lets in the nodes that Flower invited.

A token is made for one node of one run, travels in an authenticated Flower message, opens one
stream and is worth nothing afterwards. Whatever a stream brings is put into :attr:`Service.inbox`
by a thread of its own; nothing here waits for a silo.
"""

from __future__ import annotations

import hashlib
import ipaddress
import logging
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import grpc

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.keys import TransportKeys
from spcacw_flwr.flower.stream.frames import (
    ANSWER,
    END,
    METHOD,
    NODE,
    OPTIONS,
    SILOS,
    TOKEN,
    Exchange,
    FrameError,
    frames,
    heard,
)

log = logging.getLogger(__name__)
GRACE_SECONDS = 5.0
"""How long streams have to end by themselves when the service closes."""


def host_of(address: str) -> str:
    """Return the host of ``host:port``; SpcacwError if it is not of that form."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise SpcacwError(
            f"stream-address = {address!r} is not of the form host:port, such as "
            "'silo0.example.org:7443'."
        )
    return host.strip("[]")


def is_loopback(address: str) -> bool:
    """Say whether ``host:port`` can be reached from its own machine only."""
    host = host_of(address)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def server_credentials(keys: TransportKeys) -> grpc.ServerCredentials | None:
    """Return the credentials of the service; None is plaintext.

    Raises
    ------
    SpcacwError
        If a file cannot be read, one of the two is missing, or both are and the address is not a
        loopback one.
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
    host_of(keys.stream_address)
    try:
        pair = Path(private).expanduser().read_bytes(), Path(certificate).expanduser().read_bytes()
    except OSError as error:
        raise SpcacwError(f"stream-certificate or stream-key cannot be read: {error}.") from error
    return grpc.ssl_server_credentials([pair])


class Event(NamedTuple):
    """What happened on a stream: a message came, or (None) it opened or broke."""

    link: Link
    heard: Exchange | None


@dataclass(eq=False)
class Link:
    """One open stream."""

    node: int
    silos: tuple[int, ...]
    peer: str
    outgoing: SimpleQueue[Iterable[bytes] | None] = field(default_factory=SimpleQueue)
    waiting_for: int | None = None
    """The question that has not been answered yet; a stream is asked one at a time."""
    broken: str | None = None
    """Why it can no longer be used."""
    wrong: str | None = None
    """What was wrong with what came, if that is why."""

    def ask(self, id_: int, message: Iterable[bytes]) -> None:
        """Send a question."""
        self.waiting_for = id_
        self.outgoing.put(message)


@dataclass(frozen=True)
class Invitation:
    """Who may open a stream with a token."""

    node: int
    silos: tuple[int, ...]


class Service:
    """Listens from the moment it is made until :meth:`close`.

    Parameters
    ----------
    address : str
        host:port; port 0 is any free one, :attr:`address` has the one that was found.
    credentials : grpc.ServerCredentials or None
        None is plaintext.
    nodes : int
        How many nodes are expected, for the number of threads.
    limit : int
        Most bytes of the arrays of one answer, for each silo of a node.

    Raises
    ------
    SpcacwError
        If the address cannot be listened at.
    """

    def __init__(
        self, address: str, credentials: grpc.ServerCredentials | None, nodes: int, limit: int
    ) -> None:
        self.links: dict[int, Link] = {}
        """The stream of each node: the last one, broken or not."""
        self.inbox: SimpleQueue[Event] = SimpleQueue()
        self.refused: list[str] = []
        """Why streams were not let in, a sentence each."""
        self._limit, self._lock = limit, threading.Lock()
        self._invited: dict[str, Invitation] = {}
        self._used: set[str] = set()
        room = 2 * nodes + 8  # a thread for each stream; a new one may come before the old one goes
        handler = grpc.stream_stream_rpc_method_handler(self._talk)
        _, service, name = METHOD.split("/")
        self._server = grpc.server(
            ThreadPoolExecutor(room, thread_name_prefix="spcacw-stream"),
            handlers=[grpc.method_handlers_generic_handler(service, {name: handler})],
            options=[*OPTIONS, ("grpc.so_reuseport", 0)],
            maximum_concurrent_rpcs=room,
        )
        self.tls = credentials is not None
        host = host_of(address)
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
            self._invited[_digest(token)] = Invitation(node, tuple(silos))
        return token

    def alive(self, node: int) -> Link | None:
        """Return the open stream of a node, if there is one."""
        link = self.links.get(node)
        return link if link and not link.broken else None

    def close(self, reason: str) -> None:
        """Tell every node that it is over, let the streams end, and stop listening."""
        for link in self.links.values():
            link.outgoing.put(frames(Exchange(END, told={"reason": reason})))
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
        """Open a stream, or end it with the reason why not."""
        shown = {name: str(value) for name, value in context.invocation_metadata()}
        peer = context.peer()
        with self._lock:
            found = self._invitation(shown)
            if isinstance(found, Invitation):
                link, before = Link(found.node, found.silos, peer), self.links.get(found.node)
                self.links[found.node] = link
        if not isinstance(found, Invitation):
            sentence = f"A stream from {peer} was refused: {found}."
            log.warning("%s", sentence)
            self.refused.append(sentence)
            context.abort(grpc.StatusCode.UNAUTHENTICATED, found)
        if before:
            self._break(before, "the node opened another one")
        log.info("Node %s opened a stream from %s for silos %s.", link.node, peer, link.silos)
        self.inbox.put(Event(link, None))
        return link

    def _invitation(self, shown: Mapping[str, str]) -> Invitation | str:
        """Use up the token that is shown, or say why it is not good."""
        if not shown.get(TOKEN):
            return "it shows no token"
        digest = _digest(shown[TOKEN])
        if digest in self._used:
            return "its token was used before"
        invitation = self._invited.get(digest)
        if invitation is None:
            return "its token is not known"
        if shown.get(NODE) != str(invitation.node):
            return f"its token is of node {invitation.node}, not of node {shown.get(NODE)}"
        if shown.get(SILOS) != silos_text(invitation.silos):
            return (
                f"its token is for silos {silos_text(invitation.silos)}, not for silos "
                f"{shown.get(SILOS)}"
            )
        del self._invited[digest]
        self._used.add(digest)
        return invitation

    def _listen(self, link: Link, requests: Iterator[bytes]) -> None:
        """Put the messages of a stream into the inbox until it ends."""
        try:
            for message in heard(requests, self._limit * len(link.silos)):
                if message.kind != ANSWER or link.waiting_for != message.id:
                    raise FrameError("what came is no answer to what was asked")
                link.waiting_for = None
                self.inbox.put(Event(link, message))
        except FrameError as error:
            link.wrong = str(error)
            sentence = f"it broke the protocol: {error}"
            log.warning("The stream of node %s from %s was ended: %s.", link.node, link.peer, error)
        except Exception:  # what gRPC raises when the other side is gone, of no common type
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


def silos_text(silos: Iterable[int]) -> str:
    """Return silos as the metadata of a stream names them."""
    return ",".join(map(str, sorted(silos)))


def _digest(token: Any) -> str:
    """Return what is kept of a token: looking up a digest tells nothing by its time."""
    return hashlib.sha256(str(token).encode()).hexdigest()
