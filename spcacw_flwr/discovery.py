"""Which node holds which silo: found by asking, never by order.

Every node is sent a query as soon as it appears; answers are taken as they come, so that one silent
node does not hold up the others, and nothing waits for ever.

A node with a key keeps its id when it comes back, and is simply asked again. One without comes back
as another node: while a silo does not answer, nodes that have appeared since are asked for it. A
silo is never taken from a node that is there.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from logging import INFO, WARNING

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.logger import log
from flwr.serverapp import Grid

from spcacw_flwr import records
from spcacw_flwr.core.silo import SiloInfo
from spcacw_flwr.keys import SpcacwError

POLL_SECONDS = 0.1
GONE = (
    ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE,
    ErrorCode.CLIENT_APP_CRASHED,
)  # fmt: skip
"""Flower's codes of a node that was killed. It is found out up to a minute later."""


@dataclass
class Found:
    """What asking has brought to light so far."""

    infos: dict[int, SiloInfo] = field(default_factory=dict)
    nodes: dict[int, int] = field(default_factory=dict)
    """The node of each silo."""

    def add(self, node: int, content: RecordDict) -> None:
        """Note the silos of a node that answered."""
        for record in content.metric_records.values():
            info = records.record_to_info(record)
            if info.silo in self.nodes:
                raise SpcacwError(
                    f"Silo {info.silo} is claimed by two nodes, {self.nodes[info.silo]} and "
                    f"{node}: give each node its own silos in its node config."
                )
            self.infos[info.silo], self.nodes[info.silo] = info, node


class Lookout:
    """Looks out for silos that have fallen silent, among the nodes that appear later.

    Parameters
    ----------
    grid : Grid
        The nodes.
    found : Found
        Who holds what; changed when a silo comes back on another node.
    """

    def __init__(self, grid: Grid, found: Found) -> None:
        self.grid, self.found = grid, found
        self._asked = set(found.nodes.values())
        self._waiting: set[str] = set()

    def look(self, silent: Collection[int]) -> None:
        """Ask nodes that are new, and take the answers that have come; never waits."""
        online = set(self.grid.get_node_ids())
        if new := online - self._asked:
            self._asked |= new
            self._waiting |= set(self.grid.push_messages([query(node) for node in new]))
        for reply in self.grid.pull_messages(self._waiting) if self._waiting else []:
            self._waiting.discard(reply.metadata.reply_to_message_id)
            try:
                content = records.usable(reply)
                infos = [records.record_to_info(r) for r in content.metric_records.values()]
            except SpcacwError as error:
                log(WARNING, "A node that has appeared cannot be used (%s).", error)
                continue
            for info in infos:
                self._consider(reply.metadata.src_node_id, info.silo, silent, online)

    def _consider(
        self, node: int, silo: int, silent: Collection[int], online: Collection[int]
    ) -> None:
        holder = self.found.nodes.get(silo)
        if holder is not None and silo in silent and holder not in online:
            self.found.nodes[silo] = node
            log(INFO, "Silo %s is back, as node %s.", silo, node)
        else:
            log(WARNING, "Node %s claims silo %s, which is node %s: refused.", node, silo, holder)


def discover(grid: Grid, num_silos: int, timeout: float) -> Found:
    """Ask all nodes until silos 0…M−1 are found.

    Raises
    ------
    SpcacwError
        If silos are still missing after ``timeout`` seconds, if two nodes claim one silo, or if a
        node that answered cannot take part (its sentence is passed on).
    """
    found, asked = Found(), dict[int, bool]()
    waiting: dict[str, int] = {}
    deadline = time.monotonic() + timeout
    while missing := [silo for silo in range(num_silos) if silo not in found.nodes]:
        if time.monotonic() > deadline:
            raise SpcacwError(_sentence(missing, num_silos, timeout, asked))
        new = [node for node in grid.get_node_ids() if node not in asked]
        if new:
            asked.update(dict.fromkeys(new, False))
            messages = grid.push_messages([query(node) for node in new])
            waiting.update(zip(messages, new, strict=True))
        for reply in grid.pull_messages(waiting) if waiting else []:
            node = waiting.pop(reply.metadata.reply_to_message_id)
            if reply.has_error() and reply.error.code in GONE:
                del asked[node]  # to be asked again if it is there still, or again
                continue
            asked[node] = True
            found.add(node, records.usable(reply))
        time.sleep(POLL_SECONDS)
    return found


def query(node: int) -> Message:
    """Return the question which silos a node holds."""
    content = RecordDict({records.CONFIG: ConfigRecord({})})
    return Message(content, dst_node_id=node, message_type=MessageType.QUERY)


def _sentence(missing: list[int], num_silos: int, timeout: float, asked: dict[int, bool]) -> str:
    silent = sum(not answered for answered in asked.values())
    return (
        f"No node holds silo {', '.join(map(str, missing))} after {timeout:g} s (node-timeout): "
        f"{len(asked)} nodes are connected, {silent} of them did not answer; start the missing "
        f"nodes, or run with at least one node for each share of the {num_silos} silos."
    )
