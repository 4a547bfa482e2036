"""From the messages of a round to the gradients that may be used.

Every reply is checked before anything is learned from it: it must come from the node that was
asked, answer for the silos that were asked, have the right shape and type, and be finite. What
fails is left out, exactly as if that silo had not answered, and said in one sentence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from flwr.app import Message
from torch import Tensor

from spcacw_flwr import records
from spcacw_flwr.core.exchange import LOSSES, Replies, Request
from spcacw_flwr.core.wire import FLOAT32
from spcacw_flwr.keys import SpcacwError


@dataclass
class Collected:
    """What came out of a round's messages."""

    replies: Replies
    of_target: dict[str, float]
    """What the target sent beside its gradient."""
    buffers: dict[str, Tensor]
    """The buffers of the target's model, if they came with its accuracy."""
    dropped: list[str] = field(default_factory=list)
    """What could not be used and why, a phrase each."""


def collect(
    messages: Iterable[Message],
    asked: Mapping[int, list[int]],
    request: Request,
    rows: Tensor,
    target: int,
    wanted: list[str],
    how: str = FLOAT32,
) -> Collected:
    """Check the messages that answer a request and put them together.

    Parameters
    ----------
    messages : iterable of Message
        The replies; those that are missing are simply not there.
    asked : mapping
        The silos that each node was asked for.
    request : Request
        What was asked.
    rows : Tensor
        (M, d) float32, overwritten: the gradients come in its first rows, in silo order.
    target : int
        The target silo.
    wanted : list of str
        Metrics that the target was asked for beside its gradient.
    how : str
        The key ``wire``: what gradients travel as.
    """
    found: dict[int, tuple[Tensor, Tensor]] = {}
    of_target: dict[str, float] = {}
    buffers: dict[str, Tensor] = {}
    dropped = []
    for message in messages:
        node = message.metadata.src_node_id
        silos = asked.get(node, [])
        try:
            content = records.usable(message)
            replies = records.content_to_replies(content, request, silos, how)
            if target in silos:
                of_target = {name: records.metric(content, name)[0] for name in wanted}
                buffers = records.buffers(content)
        except SpcacwError as error:
            dropped.append(f"the reply of node {node} ({error})")
            continue
        for silo, gradient, loss in zip(silos, replies.gradients, replies.losses, strict=True):
            if bool(gradient.isfinite().all()):
                found[silo] = gradient, loss
            else:
                dropped.append(f"the gradient of silo {silo} (it is not finite)")
    smoothness = of_target.get(records.SMOOTHNESS)
    return Collected(_stack(found, request, rows, smoothness), of_target, buffers, dropped)


def _stack(
    found: dict[int, tuple[Tensor, Tensor]], request: Request, rows: Tensor,
    smoothness: float | None,
) -> Replies:  # fmt: skip
    silos = tuple(sorted(found))
    losses = [found[silo][1] for silo in silos]
    table = torch.stack(losses).to(rows.device) if losses else rows.new_empty(0)
    if request.want == LOSSES:
        return Replies(silos, rows[: len(silos), :0], table)
    for k, silo in enumerate(silos):
        rows[k] = found[silo][0]
    return Replies(silos, rows[: len(silos)], table, smoothness)
