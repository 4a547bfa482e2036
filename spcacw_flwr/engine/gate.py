"""The gate between a method and any engine: no reply reaches a method's state unchecked.

An engine gives :meth:`Gate.play` the function that asks the silos. The method is given the answers
that can be used; what cannot is left out, as if that silo had stayed silent for the rest of the
round. A silo that goes on sending such answers is put into quarantine: it is not asked, but for a
probe now and then, and has no weight until its probes are good.

What is wrong with a message the transport has found (:attr:`Answers.faults`). :func:`judge` finds
here whether an answer can be a gradient at all: finite, and no longer than an honest one can be.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from spcacw_flwr.alpha import norms_of
from spcacw_flwr.config.config import Config
from spcacw_flwr.methods.base import Method
from spcacw_flwr.silos.batches import batch_length
from spcacw_flwr.silos.protocol import LOSSES, Answers, Fault, Replies, Request
from spcacw_flwr.silos.streams import PARTICIPATION, stream
from spcacw_flwr.silos.wire import slack

log = logging.getLogger(__name__)


class Gate:
    """Checks what M silos answer, and remembers who answered badly (keys of :class:`TrustKeys`).

    Attributes
    ----------
    counts : array
        (M, len(REASONS)) answers that were left out, by silo and reason.
    strikes : array
        (M,) rounds with such an answer, less those with good ones; 0 … ``max-strikes``.
    quarantined : array
        (M,) of bool. A silo goes in when its strikes are ``max-strikes``, out when they are 0.
    faults : dict
        What was left out in this round, by silo.
    """

    def __init__(self, config: Config, num_silos: int) -> None:
        self.keys, self.seed, self.target = config.trust, config.run.seed, config.run.target
        self.bound = norm_bound(config)
        self.counts = np.zeros((num_silos, len(REASONS)), dtype=np.int64)
        self.strikes = np.zeros(num_silos, dtype=np.int64)
        self.quarantined = np.zeros(num_silos, dtype=bool)
        self.faults: dict[int, Fault] = {}
        self._sized: set[int] = set()

    def play(self, method: Method, round_: int, ask: Callable[[Request], Answers]) -> None:
        """Run round t of a method: ``ask`` its questions, judge what comes back.

        Raises SpcacwError if the target was asked and there is no answer that can be used.
        """
        faulty, good = (np.zeros(len(self.strikes), dtype=bool) for _ in range(2))
        self.faults = {}
        hushed = self.quarantined.copy()
        if hushed.any():  # whom a probe reaches is a pure function of (seed, round)
            draws = stream(self.seed, PARTICIPATION, round_, 2).random(len(hushed))
            hushed &= draws >= self.keys.quarantine_probe

        def cut(request: Request) -> Request:
            shut = hushed | faulty
            if not shut.any():
                return request
            return request.only(tuple(silo for silo in request.silos if not shut[silo]))

        steps = method.play(round_, cut)
        with suppress(StopIteration):
            request = next(steps)
            while True:
                answers = ask(request) if request.silos else Answers(nothing(request))
                self._compare_sizes(method, request, answers.replies)
                private = self._bounds_of_noise(method, request)
                replies, faults = judge(request, answers, self.bound, private)
                for silo, fault in faults.items():
                    self._reject(request.round, silo, fault)
                self.faults |= faults
                good[list(replies.silos)] = True
                faulty[list(faults)] = True
                replies = without(replies, set(np.flatnonzero(self.quarantined)))
                replies.faults = faults
                if faulty.any() or self.quarantined.any():
                    replies.early = None
                request = steps.send(replies)
        self._count_strikes(method, round_, faulty, good & ~faulty)

    def _bounds_of_noise(self, method: Method, request: Request) -> dict[int, float]:
        """Return how long answers of private silos may be, unless ``norm-bound`` says it."""
        bounds = method.ledger.bounds(request)
        own = self.keys.norm_bound > 0
        return {silo: self.bound if own else (1 + ROUNDING) * b for silo, b in bounds.items()}

    def _compare_sizes(self, method: Method, request: Request, replies: Replies) -> None:
        """Say that a silo's first mini-batch has another size than was asked for.

        Its gradient is as good as any. A whole one is no other where a pass ends.
        """
        if len(self._sized) == len(self.strikes):
            return
        for silo, told in zip(replies.silos, replies.samples, strict=False):
            if silo in self._sized:
                continue
            self._sized.add(silo)
            asked = sizes_asked(method, request, silo)
            if told and told not in asked:
                log.warning(
                    "Round %s: the gradient of silo %s is of %s samples, and %s were asked for: "
                    "let its ClientApp take the batch-size that it is told (docs/app.md).",
                    request.round, silo, told, asked[0],
                )  # fmt: skip

    def _reject(self, round_: int, silo: int, fault: Fault) -> None:
        """Count an answer that cannot be used, and say so: the first three times, then rarely."""
        self.counts[silo, list(REASONS).index(fault.reason)] += 1
        times = int(self.counts[silo].sum())
        if times <= 3 or times & (times - 1) == 0:
            log.warning("Round %s goes on without silo %s: %s (%s; no. %s of this silo).",
                        round_, silo, fault.words, fault.reason, times)  # fmt: skip

    def _count_strikes(
        self, method: Method, round_: int, faulty: NDArray[np.bool_], good: NDArray[np.bool_]
    ) -> None:
        """Add the round's strikes, take away those that good answers forgive, and tell the method.

        The target is never in quarantine: without it there is nothing to learn.
        """
        limit = self.keys.max_strikes
        if limit == 0 or not (faulty.any() or self.strikes.any()):
            return
        before = self.quarantined.copy()
        self.strikes = np.clip(self.strikes + faulty - good, 0, limit)
        self.quarantined |= self.strikes == limit
        self.quarantined &= self.strikes > 0
        self.quarantined[self.target] = False
        moved = np.flatnonzero(self.quarantined != before).tolist()
        for silo in moved:
            if self.quarantined[silo]:
                words = "Silo %s is in quarantine from round %s on: %s strikes."
                log.warning(words, silo, round_, limit)
            else:
                log.info("Silo %s is out of quarantine after round %s.", silo, round_)
        if moved:
            method.quarantine(self.quarantined.copy(), round_)

    def report(self) -> dict[str, float]:
        """Return an epoch's figures for the log."""
        return {"rejected": int(self.counts.sum()), "quarantined": int(self.quarantined.sum())}

    def rejections(self) -> dict[str, dict[str, int]]:
        """Return the counts of each silo by reason, where there are any."""
        names = list(REASONS)
        return {
            str(silo): {names[k]: int(row[k]) for k in np.flatnonzero(row)}
            for silo, row in enumerate(self.counts)
            if row.any()
        }


REASONS = {
    "not-finite": "not a number, or infinite", "too-long": "larger than allowed",
    "shape": "of another shape", "dtype": "of another type", "round": "to another question",
    "silo": "for another silo", "malformed": "incomplete", "error": "an error instead",
}  # fmt: skip
"""Why an answer is left out, and what came, in words."""
ROUNDING = 1e-4
"""By how much, relatively, a clipped gradient may be longer than the clipping norm."""
LONGEST = 1e18
"""Beyond this norm squares of gradients overflow in float32, which no method could bear."""


def sizes_asked(method: Method, request: Request, silo: int) -> tuple[int, int]:
    """Return of how many samples a silo's gradient is in a round, and where no pass ends."""
    own, config, fold = method.federation.silos[silo].size, method.config, request.fold
    if fold is not None and silo == config.run.target:
        own = len(fold.rows(config.run.seed, silo, own))
    batch, draws = config.training.batch_size, config.transport.local_batches
    most = own if request.samples is None else request.samples[request.silos.index(silo)]
    short = batch_length(request.round, own, batch)
    return draws * min(short, most), draws * min(batch, own, most)


def norm_bound(config: Config) -> float:
    """Return the largest norm of a gradient that is used."""
    longest = config.trust.norm_bound or min(config.training.longest, LONGEST)
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
        norms = norms_of(replies.gradients)
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
    norm = float(norms_of(row.double()))
    if norm <= bound:
        return None
    words = f"its gradient has norm {norm:.4g}, more than {bound:.4g}: clip it to max-norm"
    return Fault("too-long", words)


def without(replies: Replies, silos: Collection[int]) -> Replies:
    """Return the answers of all but ``silos``."""
    if not silos:
        return replies
    at = [k for k, silo in enumerate(replies.silos) if silo not in silos]
    kept = tuple(replies.silos[k] for k in at)
    told = tuple(replies.samples[k] for k in at if replies.samples)
    rest = replies.gradients[at], replies.losses[at], replies.smoothness
    return Replies(kept, *rest, samples=told)


def nothing(request: Request) -> Replies:
    """Return the answers of nobody."""
    wide = 0 if request.want == LOSSES else request.points.shape[-1]
    return Replies((), request.points.new_empty(0, wide), request.points.new_empty(0))
