"""Methods without silos: the test is the silos, and writes their replies by hand."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.registry import method_class
from spcacw_flwr.methods.base import Method
from spcacw_flwr.silos.layout import Layout
from spcacw_flwr.silos.protocol import LOSSES, Federation, Replies, Request, SiloInfo

PLAIN = {"momentum": 0.0, "weight_decay": 0.0, "max_norm": 0.0}
"""Keys under which a step is w − ηg."""
Silo = Callable[[Request], Replies]

G = [[1.0, -0.5, 0.25], [0.9, -0.4, 0.35], [0.2, 0.8, -0.6], [-1.0, 0.4, 0.1]]
"""Gradients of four silos at one point."""
W = [[0.10, -0.20, 0.30], [0.12, -0.18, 0.28], [0.50, 0.10, 0.0], [-0.40, 0.60, -0.10]]
"""Models of their own."""


def make(
    method: str, start: Sequence[float] = (0.0, 0.0), sizes: Sequence[int] = (64, 32, 32),
    own: Mapping[str, object] | None = None, label_counts: Sequence[Sequence[int]] | None = None,
    layout: Layout | None = None, target: int = 0, oracle: Sequence[int] = (), **keys: object,
) -> Method:  # fmt: skip
    """Return a method at its start, with plain steps; ``own`` are keys of its own.

    64 samples in batches of 32 are K = 2 rounds an epoch.
    """
    config = Config.from_keys(
        method=method, target=target, **PLAIN | keys, **{method: own} if own else {}
    )
    counts = label_counts or [(n,) for n in sizes]
    infos = tuple(
        SiloInfo(i, n, tuple(c), float(i), tuple(oracle))
        for i, (n, c) in enumerate(zip(sizes, counts, strict=True))
    )
    federation = Federation(
        infos, target, config.training.batch_size, layout or shaped(w=(len(start),))
    )
    return method_class(method)(config, federation, torch.tensor(start))


def shaped(**shapes: Sequence[int]) -> Layout:
    """Return the layout of tensors of these shapes."""
    return Layout(tuple((name, torch.Size(shape)) for name, shape in shapes.items()))


def converse(method: Method, round_: int, silo: Silo) -> list[Request]:
    """Run a round, its questions answered by ``silo``; return the questions."""
    asked: list[Request] = []
    steps, replies = method.play(round_), None
    try:
        while True:
            asked.append(steps.send(replies))
            replies = silo(asked[-1])
    except StopIteration:
        return asked


def play(method: Method, rounds: int, silo: Silo) -> list[Request]:
    """Run rounds 1, 2, …; return the questions of the last one."""
    return [converse(method, t, silo) for t in range(1, rounds + 1)][-1]


def replies_of(request: Request, rows: Sequence[Sequence[float]] | Tensor) -> Replies:
    """Return gradients, a row for each silo that was asked, with losses of 1."""
    gradients = torch.as_tensor(rows, dtype=torch.float32)
    return Replies(request.silos, gradients, torch.ones(len(gradients)))


def sending(rows: Sequence[Sequence[float]] | Tensor) -> Silo:
    """Return silos that send these gradients whatever they are asked: silo i the row i."""
    gradients = torch.as_tensor(rows, dtype=torch.float32)
    return lambda request: replies_of(request, gradients[list(request.silos)])


def heard(replies: Replies, silos: Sequence[int]) -> Replies:
    """Return the replies of some silos alone: the others were silent."""
    rows = [replies.silos.index(silo) for silo in silos]
    return Replies(tuple(silos), replies.gradients[rows], replies.losses[rows])


def quadratics(centres: Tensor | Sequence[Sequence[float]]) -> Silo:
    """Return silos with f_i(w) = ½‖w − c_i‖² without noise; ``centres`` are (M, d)."""
    centres = torch.as_tensor(centres)

    def silo(request: Request) -> Replies:
        own = centres[list(request.silos)]
        if request.want == LOSSES:
            losses = 0.5 * (request.points - own[:, None]).square().sum(dim=2)
            return Replies(request.silos, losses.new_empty(len(own), 0), losses)
        rows = request.points - own
        return Replies(request.silos, rows, 0.5 * rows.square().sum(dim=1))

    return silo


def close(found: Tensor, expected: Tensor | Sequence, **tolerance: float) -> None:
    """Fail where a tensor is not what was worked out by hand."""
    torch.testing.assert_close(found, torch.as_tensor(expected), **tolerance)
