"""Whether an answer can be a gradient at all: finite, and no longer than an honest one can be."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.silos.protocol import LOSSES, Answers, Fault, Replies, Request
from spcacw_flwr.silos.wire import slack

REASONS = (
    "not-finite", "too-long", "shape", "dtype", "round", "silo", "malformed", "error",
)  # fmt: skip
"""A gradient or loss with NaN or ∞, or of too large a norm; of another shape or type; to another
question; for another silo; a message that lacks something; one that only says what went wrong."""
ROUNDING = 1e-4
"""By how much, relatively, a clipped gradient may be longer than the clipping norm."""
LONGEST = 1e18
"""Beyond this norm squares of gradients overflow in float32, which no method could bear."""


def norm_bound(config: Config) -> float:
    """Return the largest norm of a gradient that is used."""
    training, own = config.training, config.trust.norm_bound
    clipped = training.clip == "silo" and training.max_norm > 0
    longest = own or (training.max_norm if clipped else LONGEST)
    return longest * (1 + ROUNDING + slack(config.transport.wire))


def judge(
    request: Request, answers: Answers, bound: float, private: Mapping[int, float] | None = None
) -> tuple[Replies, dict[int, Fault]]:
    """Return the answers that can be used, and what is wrong with the others.

    ``bound`` is the largest norm of a gradient; ``private`` is that of silos whose gradients have
    noise, which tell no losses.
    """
    replies, norms = answers.replies, answers.norms
    faults = {silo: fault for silo, fault in answers.faults.items() if silo in request.silos}
    if not replies.silos:
        return replies, faults
    if norms is None:
        norms = torch.linalg.vector_norm(replies.gradients, dim=1)
    # A few numbers for each silo: NumPy's functions of so few cost less than PyTorch's.
    losses = replies.losses.cpu().numpy().reshape(len(replies.silos), -1)
    judging = request.want == LOSSES  # a model may be so bad that its loss is infinite
    usable: NDArray[np.bool_] = losses > -np.inf if judging else np.isfinite(losses)
    usable = np.logical_and.reduce(usable, axis=1)
    bounds = np.full(len(usable), bound, np.float32)
    if private and not judging:
        for k, silo in enumerate(replies.silos):
            bounds[k] = private.get(silo, bound)
            usable[k] |= silo in private
    passed = usable & (norms.cpu().numpy() <= bounds)
    if passed.all():
        return replies, faults
    for k in np.flatnonzero(~passed).tolist():
        fault = _fault(replies.gradients[k], bool(usable[k]), float(bounds[k]))
        if fault:
            faults[replies.silos[k]] = fault
    return without(replies, faults), faults


def _fault(row: Tensor, usable: bool, bound: float) -> Fault | None:
    """Say what is wrong with a gradient; a norm that overflows need not be."""
    if not usable:
        return Fault("not-finite", "its loss is not finite")
    if not bool(row.isfinite().all()):
        return Fault("not-finite", "its gradient is not finite")
    norm = float(torch.linalg.vector_norm(row, dtype=torch.float64))
    if norm <= bound:
        return None
    return Fault("too-long", f"its gradient has norm {norm:.4g}, more than {bound:.4g}")


def without(replies: Replies, silos: Collection[int]) -> Replies:
    """Return the answers of all but ``silos``."""
    if not silos:
        return replies
    at = [k for k, silo in enumerate(replies.silos) if silo not in silos]
    kept = tuple(replies.silos[k] for k in at)
    return Replies(kept, replies.gradients[at], replies.losses[at], replies.smoothness)


def nothing(request: Request) -> Replies:
    """Return the answers of nobody."""
    wide = 0 if request.want == LOSSES else request.points.shape[-1]
    return Replies((), request.points.new_empty(0, wide), request.points.new_empty(0))
