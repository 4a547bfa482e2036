"""Methods without silos: the test is the silos, and writes their replies by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.registry import method_class
from spcacw_flwr.methods.base import Method
from spcacw_flwr.silos.layout import Layout
from spcacw_flwr.silos.protocol import LOSSES, Federation, Replies, Request, SiloInfo

PLAIN = {"momentum": 0.0, "weight_decay": 0.0, "max_norm": 0.0}
"""Keys under which a step is w − ηg."""


def make(
    method: str, start: Sequence[float] = (0.0, 0.0), sizes: Sequence[int] = (64, 32, 32),
    label_counts: Sequence[Sequence[int]] | None = None, layout: Layout | None = None,
    target: int = 0, oracle: Sequence[int] = (), **keys: object,
) -> Method:  # fmt: skip
    """Return a method at its start; 64 samples in batches of 32 are K = 2 rounds an epoch."""
    config = Config.from_keys(method=method, target=target, **keys)
    counts = label_counts or [(n,) for n in sizes]
    infos = tuple(
        SiloInfo(i, n, tuple(c), float(i), tuple(oracle))
        for i, (n, c) in enumerate(zip(sizes, counts, strict=True))
    )
    federation = Federation(infos, target, config.training.batch_size, layout)
    return method_class(method)(config, federation, torch.tensor(start))


def converse(method: Method, round_: int, silo: Callable[[Request], Replies]) -> list[Request]:
    """Run a round, its questions answered by ``silo``; return the questions."""
    asked: list[Request] = []
    steps, replies = method.play(round_), None
    try:
        while True:
            request = next(steps) if replies is None else steps.send(replies)
            asked.append(request)
            replies = silo(request)
    except StopIteration:
        return asked


def replies_of(request: Request, rows: Sequence[Sequence[float]] | Tensor) -> Replies:
    """Return gradients, a row for each silo that was asked, with losses of 1."""
    gradients = torch.as_tensor(rows, dtype=torch.float32)
    return Replies(request.silos, gradients, torch.ones(len(gradients)))


def heard(replies: Replies, silos: Sequence[int]) -> Replies:
    """Return the replies of some silos alone: the others were silent."""
    rows = [replies.silos.index(silo) for silo in silos]
    return Replies(tuple(silos), replies.gradients[rows], replies.losses[rows])


def quadratics(centres: Tensor) -> Callable[[Request], Replies]:
    """Return silos with f_i(w) = ½‖w − c_i‖² without noise; ``centres`` are (M, d)."""

    def silo(request: Request) -> Replies:
        own = centres[list(request.silos)]
        if request.want == LOSSES:
            losses = 0.5 * (request.points - own[:, None]).square().sum(dim=2)
            return Replies(request.silos, losses.new_empty(len(own), 0), losses)
        rows = request.points - own
        return Replies(request.silos, rows, 0.5 * rows.square().sum(dim=1))

    return silo
