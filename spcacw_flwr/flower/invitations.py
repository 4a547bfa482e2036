"""Invite nodes through Flower to the target's service for streams, and back to it.

Each node gets one message for the run, with the service's address and a token of its own. The
node's reply, or its error, ends the invitation. A thread does this, so rounds wait for nothing: a
node whose stream ended gets a new message with a new token as soon as it is there again. A node
without a key that starts again has a new id for Flower. It is asked which silos it holds, and takes
the place of the node that held them if that node is gone.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.simulate import threads
from spcacw_flwr.flower import records
from spcacw_flwr.flower.asker import Asker
from spcacw_flwr.flower.discovery import Found
from spcacw_flwr.flower.grid import GridSilos
from spcacw_flwr.flower.service import BESIDE, Service, server_credentials
from spcacw_flwr.silos.protocol import Federation

log = logging.getLogger(__name__)
POLL_SECONDS = 0.5
BROKEN_SECONDS = 3.0
"""How long after its stream broke a node is invited again, even if Flower has not noticed yet."""
LONGEST_PAUSE = 30.0
END_SECONDS = 20.0
"""How long the end waits for the nodes' last replies."""
LIFE_SECONDS = 30 * 24 * 3600.0
"""How long a message may be on its way: Flower's own limit of 12 hours would end longer runs."""


@dataclass
class Guest:
    """A node, and the state of its invitation."""

    silos: list[int]
    message: str | None = None
    """The message that the node has not replied to."""
    sent: float = 0.0
    broken: float | None = None
    """Since when its stream is known to be gone."""
    failures: int = 0
    again: float = 0.0
    """The node is not invited before this moment."""


class Invitations:
    """Invites nodes from the beginning of a ``with`` block to its end, which closes the service.

    Within the block only one thread of this object uses ``grid``. ``found`` is kept up to date. A
    node that neither opened a stream nor replied for ``patience`` seconds is invited again.
    """

    def __init__(self, grid: Grid, service: Service, found: Found, patience: float) -> None:
        self.grid, self.service, self.patience = grid, service, patience
        self.found = found
        self.guests: dict[int, Guest] = {}
        for silo, node in sorted(found.nodes.items()):
            self.guests.setdefault(node, Guest([])).silos.append(silo)
        self._sent: dict[str, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="invitations", daemon=True)

    def __enter__(self) -> Invitations:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *reason: Any) -> None:
        """End all streams, and collect the replies to Flower's messages."""
        self._over.set()
        self._thread.join()
        self.service.close()
        deadline = time.monotonic() + END_SECONDS
        while any(guest.message for guest in self.guests.values()):
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)
            self._guarded(self._collect)

    def _run(self) -> None:
        while not self._over.is_set():
            self._guarded(self._look)
            self._over.wait(POLL_SECONDS)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Work with the grid and log errors; streams go on while Flower's SuperLink is away."""
        try:
            work()
        except Exception as error:  # of whatever kind Flower's connection raises
            log.warning("Flower's SuperLink cannot be asked: %s: %s", type(error).__name__, error)

    def _look(self) -> None:
        self._collect()
        self.found.shut_out()
        for node in self.found.revoked & self.guests.keys():
            if (guest := self.guests[node]).again < math.inf:
                self.service.shut_out(node)
                self.guests[node] = Guest(guest.silos, again=math.inf)
        now, missing = time.monotonic(), []
        for node, guest in self.guests.items():
            if self.service.alive(node):
                guest.broken, guest.failures = None, 0
            else:
                if guest.broken is None and node in self.service.links:
                    guest.broken = now
                missing.append(node)
        if not missing:
            return
        present = set(self.grid.get_node_ids())
        for node in missing:
            if node in present and self._due(self.guests[node], now):
                self._invite(node)
        for new, old, silos in self.found.look(gone=lambda node: not self.service.alive(node)):
            del self.guests[old]
            self.guests[new] = Guest(silos)

    def _due(self, guest: Guest, now: float) -> bool:
        if now < guest.again:
            return False
        if guest.message is None:
            return True
        if guest.broken is not None and guest.broken > guest.sent:
            return now - guest.broken > BROKEN_SECONDS
        return now - guest.sent > self.patience

    def _invite(self, node: int) -> None:
        guest = self.guests[node]
        config = ConfigRecord({
            "address": self.service.address, "tls": self.service.tls,
            "token": self.service.invite(node, guest.silos), records.VERSION: records.version(),
        })  # fmt: skip
        message = Message(
            RecordDict({records.CONFIG: config}), dst_node_id=node,
            message_type=f"train.{records.STREAM}", ttl=LIFE_SECONDS,
        )  # fmt: skip
        (guest.message,) = self.grid.push_messages([message])
        guest.sent = time.monotonic()
        self._sent[guest.message] = node
        log.info("Node %s (silos %s) is invited to %s.", node, guest.silos, self.service.address)

    def _collect(self) -> None:
        """Take the replies of nodes whose stream has ended."""
        for reply in self.grid.pull_messages(list(self._sent)) if self._sent else []:
            id_ = reply.metadata.reply_to_message_id
            node = self._sent.pop(id_)
            guest = self.guests.get(node)
            try:
                records.usable(reply)
            except SpcacwError as error:
                log.warning("The stream of node %s ended: %s", node, error)
            if guest and guest.message == id_:
                guest.message = None
                guest.failures += 1
                guest.again = time.monotonic() + min(LONGEST_PAUSE, 2.0 ** (guest.failures - 1))


@contextmanager
def streams(silos: GridSilos, federation: Federation) -> Iterator[Asker]:
    """Yield the silos, to be asked in streams. SpcacwError if the target opens none."""
    grid, found, config = silos.grid, silos.found, silos.config
    transport, run = config.transport, config.run
    service = Service(
        transport.stream_address, server_credentials(transport), len(set(found.nodes.values())),
        4 * silos.layout.size + BESIDE,
    )  # fmt: skip
    samples = federation.num_silos * config.samples_per_round
    with Invitations(grid, service, found, run.node_timeout), threads(run.threads, samples):
        asker = Asker(config, federation, service, found.nodes)
        asker.wait_for_all(run.node_timeout)
        yield asker
