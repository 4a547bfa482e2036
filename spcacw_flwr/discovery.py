"""Which node holds which silo: found by asking, never by order.

Every node is sent a query as soon as it appears; answers are taken as they come, so that one silent
node does not hold up the others, and nothing waits for ever.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from spcacw_flwr import records
from spcacw_flwr.core.silo import SiloInfo
from spcacw_flwr.keys import SpcacwError

POLL_SECONDS = 0.1


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


def discover(grid: Grid, num_silos: int, timeout: float) -> Found:
    """Ask all nodes until silos 0…M−1 are found.

    Raises
    ------
    SpcacwError
        If silos are still missing after ``timeout`` seconds, if two nodes claim one silo, or if a
        node that answered cannot take part (its sentence is passed on).
    """
    found, asked = Found(), dict[int, bool]()
    waiting: set[str] = set()
    deadline = time.monotonic() + timeout
    while missing := [silo for silo in range(num_silos) if silo not in found.nodes]:
        if time.monotonic() > deadline:
            raise SpcacwError(_sentence(missing, num_silos, timeout, asked))
        new = [node for node in grid.get_node_ids() if node not in asked]
        if new:
            asked.update(dict.fromkeys(new, False))
            waiting.update(grid.push_messages([query(node) for node in new]))
        for reply in grid.pull_messages(waiting) if waiting else []:
            waiting.discard(reply.metadata.reply_to_message_id)
            node = reply.metadata.src_node_id
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
