"""A Flower Grid that answers messages by calling the ClientApp in this process: no Ray, no network.

It can be told to misbehave: nodes that never answer, that raise, or whose replies are spoiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from spcacw_flwr.config.config import Config
from spcacw_flwr.flower.client_app import app, silos_of_node

Spoil = Callable[[Message, RecordDict], RecordDict | None]
"""Changes a node's reply content; None means that the node does not answer."""


class LocalGrid(Grid):
    """Nodes 101, 102, … in this process; the last is partition 0 unless they have configs."""

    def __init__(
        self, config: Config, nodes: int, node_configs: list[dict[str, Any]] | None = None
    ) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        run_config = config.to_flat()
        shared = [{"partition-id": i, "num-partitions": nodes} for i in range(nodes)]
        ids = range(100 + nodes, 100, -1)  # in reverse, so that nothing can rely on their order
        self.contexts = {
            node: Context(1, node, node_config, RecordDict(), run_config)
            for node, node_config in zip(ids, node_configs or shared, strict=True)
        }
        self.spoil: dict[int, Spoil] = {}
        self.apps: dict[int, ClientApp] = {}
        """Of nodes that run another ClientApp than ours."""
        self.sent: list[Message] = []
        self.replies: dict[str, Message] = {}

    def node_of(self, silo: int) -> int:
        """The node that holds this silo, alone or among others."""
        held = {n: silos_of_node(c.node_config, 7) for n, c in self.contexts.items()}
        return next(node for node, silos in held.items() if silo in silos)

    set_run = run = create_message = None  # nobody calls them

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send them. Like Flower's HTTP grid it goes over them twice: no iterator will do."""
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())
        for message in messages:
            self.sent.append(message)
            ids.append(message.metadata.message_id)
            reply = self._answer(message)
            if reply is not None:
                self.replies[message.metadata.message_id] = reply
        return ids

    def _answer(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        try:
            reply = self.apps.get(node, app)(message, self.contexts[node])
        except Exception as error:
            return Message(Error(code=2, reason=repr(error)), reply_to=message)
        if node in self.spoil:
            content = self.spoil[node](message, reply.content)
            return None if content is None else Message(content, reply_to=message)
        return reply

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(i) for i in list(message_ids) if i in self.replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))
