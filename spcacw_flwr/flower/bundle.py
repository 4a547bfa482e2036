"""A node's reply as it came off the wire, and whether it is an answer to what was asked.

Every engine with messages unpacks them into a :class:`Bundle`; :func:`opened` does the rest of what
can be seen without looking at the numbers. What the numbers are worth is the gate's to judge
(:mod:`spcacw_flwr.engine.gate`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spcacw_flwr.silos.protocol import LOSSES, Fault, Replies, Request

Answer = tuple[Tensor, Tensor]
"""A silo's gradient (d,), or (0,), and its loss, () or (c,)."""


WORDS = 200
"""Most characters of a node's own words, which may be anything."""


@dataclass(frozen=True)
class Bundle:
    """What a node says: which question it answers, for whom, and the answers, a row for each."""

    round: int
    draw: int
    silos: list[int]
    gradients: NDArray[Any]
    """(k, d), or (k, 0) where losses were asked for."""
    losses: list[float]
    """k, or k·c, by silo."""


def opened(
    bundle: Bundle, request: Request, asked: Sequence[int]
) -> tuple[dict[int, Answer], dict[int, Fault]]:
    """Return the answers of the silos that a node was ``asked`` for, and what is wrong elsewhere.

    Every silo in ``asked`` is in one of the two. A silo that is not there, or twice, costs the node
    only that silo; silos out of order cost it all of them, for rows and names may be swapped.
    """
    if (bundle.round, bundle.draw) != (request.round, request.draw):
        return {}, for_all(
            asked, "round", f"it answers round {bundle.round}, draw {bundle.draw}, where "
            f"{request.round}, draw {request.draw} was asked",
        )  # fmt: skip
    judging, count = request.want == LOSSES, len(bundle.silos)
    shape = (count, 0 if judging else request.points.shape[-1])
    columns = request.points.shape[-2] if judging else 1
    if bundle.gradients.dtype != np.float32:
        words = f"its gradients are {bundle.gradients.dtype}, not float32"
        return {}, for_all(asked, "dtype", words)
    if bundle.gradients.shape != shape or len(bundle.losses) != count * columns:
        words = (
            f"it has gradients of shape {bundle.gradients.shape} and {len(bundle.losses)} losses "
            f"where {shape} and {count * columns} were expected"
        )
        return {}, for_all(asked, "shape", words)
    places = dict.fromkeys(bundle.silos, -1)
    for k, silo in enumerate(bundle.silos):
        places[silo] = k if places[silo] < 0 else count  # of two, neither
    at = {silo: places[silo] for silo in asked if places.get(silo, count) < count}
    if list(at.values()) != sorted(at.values()):
        return {}, for_all(asked, "silo", f"it answers for silos {bundle.silos} in another order")
    faults, missing = {}, [silo for silo in asked if silo not in at]
    if missing:  # as good as never, and a line's words are looked at one by one
        faults = for_all(missing, "silo", f"its node answers for silos {bundle.silos}")
    rows, losses = torch.from_numpy(bundle.gradients), torch.tensor(bundle.losses).float()
    if judging:  # a model whose loss is not a number is worse than any other
        losses = losses.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
        losses = losses.view(count, columns)
    return {silo: (rows[k], losses[k]) for silo, k in at.items()}, faults


def for_all(silos: Sequence[int], reason: str, words: str) -> dict[int, Fault]:
    """Return one fault for each of ``silos``, its words cut to a line that is fit for a log."""
    line = " ".join("".join(c if c.isprintable() else " " for c in words).split())
    fault = Fault(reason, line if len(line) <= WORDS else f"{line[:WORDS]}…")
    return dict.fromkeys(silos, fault)


def stacked(
    answers: Mapping[int, Answer], request: Request, rows: Tensor, smoothness: float | None = None
) -> Replies:
    """Put answers together in silo order; gradients in the first of ``rows`` (M, d), overwritten.

    ``smoothness`` is what the target sent as L.
    """
    silos = tuple(sorted(answers))
    losses = [answers[silo][1] for silo in silos]
    table = torch.stack(losses).to(rows.device) if losses else rows.new_empty(0)
    if request.want == LOSSES:
        return Replies(silos, rows[: len(silos), :0], table)
    for k, silo in enumerate(silos):
        rows[k] = answers[silo][0]
    return Replies(silos, rows[: len(silos)], table, smoothness)
