"""Find which node holds which silo by asking the nodes, never by their order.

Every node gets a query as soon as it appears. Answers are taken as they come, so a silent node does
not hold up the others, and nothing waits for ever.

A node with a key keeps its id when it comes back, and is asked again. A node without a key comes
back as another node: while a silo does not answer, new nodes are asked whether they hold it. A silo
is never taken from a node that is still there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from flwr.app import ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.serverapp import Grid

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.flower import members, records
from spcacw_flwr.flower.records import Told
from spcacw_flwr.silos.layout import Layout, difference
from spcacw_flwr.silos.protocol import SiloInfo

log = logging.getLogger(__name__)
POLL_SECONDS = 0.1


class Found:
    """What the nodes of a grid have answered so far.

    Each question sends a node the keys ``told``. A node is asked once for as long as it is there.
    """

    def __init__(self, grid: Grid, told: Told | None = None) -> None:
        self.grid, self.told = grid, told or {}
        self.infos: dict[int, SiloInfo] = {}
        self.nodes: dict[int, int] = {}
        """The node of each silo."""
        self.models: dict[int, Layout] = {}
        """The parameters that each node trains; other people's ClientApps need not report them."""
        self.answers: dict[int, Message | None] = {}
        """The answer of each node that was asked; None if it has not come yet."""
        self.lost: dict[int, str] = {}
        """Why Flower says that a node's last answer is lost; the node is asked again."""
        self._waiting: dict[str, int] = {}
        self._alone = False
        """Whether answers are pulled one by one, because one could not be read."""
        self.revoked: set[int] = set()
        """The nodes that are known to be revoked by the server's owner."""

    def ask(self, nodes: set[int]) -> dict[int, Message]:
        """Ask the ``nodes`` that are new or back; return the answers so far, without waiting."""
        self.answers = {node: said for node, said in self.answers.items() if node in nodes}
        if new := list(nodes - self.answers.keys()):
            messages = self.grid.push_messages([self._query(node) for node in new])
            self.answers.update(dict.fromkeys(new))
            self._waiting.update(zip(messages, new, strict=True))
        pulled = records.pull(self.grid, list(self._waiting), self._alone) if self._waiting else []
        if pulled is None:
            for node in self._waiting.values():
                self.answers.pop(node, None)  # to be asked again
            self._waiting, self._alone = {}, True
        came = {}
        for id_, reply in pulled or []:
            node = self._waiting.pop(id_)
            if isinstance(reply, str):
                log.warning("Node %s does not take part: %s.", node, reply)
            elif node not in nodes or records.gone(reply):
                self.answers.pop(node, None)  # to be asked again if it is there, or comes back
                if reply.has_error():
                    self.lost[node] = str(reply.error.reason)
            else:
                came[node] = self.answers[node] = reply
        return came

    def _query(self, node: int) -> Message:
        told = {**self.told, records.VERSION: records.version()}
        content = RecordDict({records.CONFIG: ConfigRecord(told)})
        return Message(content, dst_node_id=node, message_type=MessageType.QUERY)

    def add(self, node: int, content: RecordDict) -> None:
        """Note the silos of a node that answered."""
        if records.CONFIG in content.config_records:
            self.models[node] = records.config_to_layout(content.config_records[records.CONFIG])
            first, model = next(iter(self.models.items()))
            if self.models[node] != model:
                raise SpcacwError(
                    f"Node {node} trains another model than node {first}: "
                    f"{difference(self.models[node], model)}; all silos must train one model."
                )
        told, known = content.metric_records.values(), members.here()
        for info in map(records.record_to_info, told):
            theirs = known.silos_of(node)
            if theirs and info.silo not in theirs:
                raise SpcacwError(
                    f"Node {node} claims silo {info.silo}, and its key was admitted for silo "
                    f"{', '.join(map(str, theirs))}: its owner puts 'silos' right in node.toml."
                )
            if info.silo in self.nodes and not known.revoked(self.nodes[info.silo]):
                raise SpcacwError(
                    f"Silo {info.silo} is claimed by two nodes, {self.nodes[info.silo]} and "
                    f"{node}: give each node its own silos in its node config."
                )
            self.infos[info.silo], self.nodes[info.silo] = info, node
        known.remember(node, [dict(record) for record in told])

    def recall(self) -> None:
        """Restore what is known of silos that the server's owner has revoked since."""
        for node, told in members.here().lost().items():
            for info in (records.record_to_info(MetricRecord(record)) for record in told):
                self.infos[info.silo], self.nodes[info.silo] = info, node

    def look(
        self, gone: Callable[[int], bool] = lambda node: True
    ) -> list[tuple[int, int, list[int]]]:
        """Look for silos on nodes that are new or back, without waiting.

        Returns each replacement: the new node, the old node, and their silos. ``gone`` says whether
        a node that Flower does not see is gone. If the place of a new node is not free yet, each
        call tries again: Flower notices up to a minute late that the old node is gone.
        """
        self.shut_out()
        online, taken = set(self.grid.get_node_ids()), []
        fresh = self.ask(online - set(self.nodes.values()))
        for node, answer in self.answers.items():
            if answer is None:
                continue
            try:
                old, silos = self._take_over(
                    node, answer, lambda holder: holder not in online and gone(holder)
                )
            except SpcacwError as error:
                if node in fresh:
                    why = str(error).removesuffix(".")
                    log.warning("Node %s does not take part: %s.", node, why)
                continue
            log.warning("Node %s holds silos %s now, in the place of node %s.", node, silos, old)
            taken.append((node, old, silos))
        return taken

    def shut_out(self) -> None:
        """Find the nodes that the server's owner has revoked since, and log them."""
        holders = set(self.nodes.values()) - self.revoked
        fresh = [node for node in holders if members.here().revoked(node)]
        self.revoked.update(fresh)
        for node in fresh:
            silos = ", ".join(str(silo) for silo, at in sorted(self.nodes.items()) if at == node)
            log.warning("Silo %s was revoked (node %s): the run goes on without it.", silos, node)

    def _take_over(
        self, node: int, reply: Message, gone: Callable[[int], bool]
    ) -> tuple[int, list[int]]:
        """Let a new node take the place of a node that is ``gone`` and held the same silos.

        Returns the old node and their silos. SpcacwError if the new node cannot take part, or its
        silos are not missing.
        """
        new = Found(self.grid)
        new.models = dict([*self.models.items()][:1])
        new.add(node, records.usable(reply))
        for old in set(self.nodes.values()):
            silos = sorted(silo for silo, holder in self.nodes.items() if holder == old)
            if gone(old) and new.infos == {silo: self.infos[silo] for silo in silos}:
                self.nodes.update(dict.fromkeys(silos, node))
                self.models.pop(old, None)
                self.models |= new.models
                return old, silos
        raise SpcacwError(
            f"the silos that it holds, {sorted(new.infos)}, are not missing, or held other data"
        )


def discover(
    grid: Grid, num_silos: int, timeout: float, told: Told | None = None, resumes: bool = False
) -> Found:
    """Ask all nodes until silos 0…M−1 are found; each question sends a node the keys ``told``.

    A run that ``resumes`` goes on without silos that have been revoked meanwhile. SpcacwError if
    silos are still missing after ``timeout`` seconds, if two nodes claim one silo, or if a node
    that answered cannot take part (its sentence is passed on).
    """
    found, deadline, online = Found(grid, told), time.monotonic() + timeout, set[int]()
    if resumes:
        found.recall()
    while missing := [str(silo) for silo in range(num_silos) if silo not in found.nodes]:
        if time.monotonic() > deadline:
            silent = [node for node in online if found.answers.get(node) is None]
            lost = [f"; Flower of node {n}: {found.lost[n]}" for n in silent if n in found.lost]
            if lost:
                lost.append(
                    f"; Flower gives a program {HEARTBEAT_DEFAULT_INTERVAL} s to start: too many "
                    "nodes on one machine take longer"
                )
            raise SpcacwError(
                f"No node holds silo {', '.join(missing)} after {timeout:g} s (node-timeout): "
                f"{len(online)} nodes are connected, {len(silent)} of them did not answer"
                f"{''.join(lost)}; start the missing nodes, or run with at least one node for each "
                f"share of the {num_silos} silos."
            )
        online = set(grid.get_node_ids())
        for node, reply in found.ask(online).items():
            found.add(node, records.usable(reply))
        time.sleep(POLL_SECONDS)
    return found
