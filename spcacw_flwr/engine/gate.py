"""The gate between a method and any engine: no reply reaches a method's state unchecked.

An engine gives :meth:`Gate.play` the function that asks the silos. The method receives the usable
answers. The gate rejects any other answer, as if that silo were silent for the rest of the round. A
silo that keeps sending such answers goes into quarantine: it gets only an occasional probe, and
has no weight until its probes are good.

The transport reports faults of the messages (:attr:`Answers.faults`). :func:`judge` checks whether
an answer can be a gradient: finite, and no longer than an honest gradient can be.
"""

import logging
from collections.abc import Callable, Collection, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spcacw_flwr.alpha import norms_of
from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError, part_of
from spcacw_flwr.methods.base import Method
from spcacw_flwr.silos.batches import batch_length
from spcacw_flwr.silos.protocol import LOSSES, Answers, Fault, Replies, Request, Round
from spcacw_flwr.silos.streams import PARTICIPATION, stream
from spcacw_flwr.silos.wire import slack

log = logging.getLogger(__name__)


class Gate:
    """Checks the answers of M silos, and counts bad ones (keys of :class:`TrustKeys`).

    Attributes
    ----------
    counts : array
        (M, len(REASONS)) numbers of rejected answers, by silo and reason.
    strikes : array
        (M,) rounds with a rejected answer, less rounds with good ones; 0 … ``max-strikes``.
    quarantined : array
        (M,) of bool. A silo goes in when its strikes are ``max-strikes``, out when they are 0.
    silent : dict
        For each silo that was ever silent, by its number as text: how many questions it left
        ``unanswered``, and ``since`` which round it is silent; 0 if it has answered again.
    faults : dict
        The faults of the answers rejected in this round, by silo.
    """

    def __init__(self, config: Config, num_silos: int) -> None:
        self.keys, self.seed, self.target = config.trust, config.run.seed, config.run.target
        self.bound = norm_bound(config)
        self.counts = np.zeros((num_silos, len(REASONS)), dtype=np.int64)
        self.strikes = np.zeros(num_silos, dtype=np.int64)
        self.quarantined = np.zeros(num_silos, dtype=bool)
        self.silent: dict[str, dict[str, int]] = {}
        self.faults: dict[int, Fault] = {}
        self._sized: set[int] = set()

    def play(self, method: Method, round_: int, ask: Callable[[Request], Answers]) -> None:
        """Run round t of a method: ``ask`` its requests, and judge the answers.

        Raises SpcacwError if the target was asked and gave no usable answer.
        """
        faulty, good = (np.zeros(len(self.strikes), dtype=bool) for _ in range(2))
        self.faults = {}
        hushed = self.quarantined.copy()
        if hushed.any():  # the choice of probed silos is a pure function of (seed, round)
            draws = stream(self.seed, PARTICIPATION, round_, 2).random(len(hushed))
            hushed &= draws >= self.keys.quarantine_probe

        def cut(request: Request) -> Request:
            shut = hushed | faulty
            if not shut.any():
                return request
            return request.only(tuple(silo for silo in request.silos if not shut[silo]))

        steps = method.play(round_, cut)
        request = next_question(method, steps, None)
        while request:
            answers = ask(request) if request.silos else Answers(nothing(request))
            self._compare_sizes(method, request, answers.replies)
            private = self._bounds_of_noise(method, request)
            replies, faults = judge(request, answers, self.bound, private)
            for silo, fault in faults.items():
                self._reject(request.round, silo, fault)
            self.faults |= faults
            self._note_silence(request, {*replies.silos, *faults})
            good[list(replies.silos)] = True
            faulty[list(faults)] = True
            replies = without(replies, set(np.flatnonzero(self.quarantined)))
            replies.faults = faults
            if faulty.any() or self.quarantined.any():
                replies.early = None
            request = next_question(method, steps, replies)
        self._count_strikes(method, round_, faulty, good & ~faulty)

    def _bounds_of_noise(self, method: Method, request: Request) -> dict[int, float]:
        """Return the largest norms of private silos' answers; ``norm-bound`` overrides them."""
        bounds = method.ledger.bounds(request)
        own = self.keys.norm_bound > 0
        return {silo: self.bound if own else (1 + ROUNDING) * b for silo, b in bounds.items()}

    def _compare_sizes(self, method: Method, request: Request, replies: Replies) -> None:
        """Warn if a silo's first mini-batch has another size than the request asked for.

        The gradient is used. Where a pass ends, a whole mini-batch is accepted as well.
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

    def _note_silence(self, request: Request, heard: Collection[int]) -> None:
        """Count the silos of a question that gave neither an answer nor a bad one."""
        if len(heard) < len(request.silos) or self.silent:
            for silo in {*request.silos}.difference(heard):
                told = self.silent.setdefault(str(silo), {"unanswered": 0, "since": request.round})
                told["unanswered"] += 1
                told["since"] = told["since"] or request.round
            for name in {*map(str, heard)}.intersection(self.silent):
                self.silent[name]["since"] = 0

    def _reject(self, round_: int, silo: int, fault: Fault) -> None:
        """Count a rejected answer, and warn: the first three times, then rarely."""
        self.counts[silo, list(REASONS).index(fault.reason)] += 1
        times = int(self.counts[silo].sum())
        if times <= 3 or times & (times - 1) == 0:
            log.warning("Round %s goes on without silo %s: %s (%s; no. %s of this silo).",
                        round_, silo, fault.words, fault.reason, times)  # fmt: skip

    def _count_strikes(
        self, method: Method, round_: int, faulty: NDArray[np.bool_], good: NDArray[np.bool_]
    ) -> None:
        """Add the round's strikes, subtract good answers, and report quarantine to the method.

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
        """Return the counts by reason of each silo that has rejected answers."""
        names = list(REASONS)
        return {
            str(silo): {names[k]: int(row[k]) for k in np.flatnonzero(row)}
            for silo, row in enumerate(self.counts)
            if row.any()
        }


def next_question(method: Method, steps: Round, replies: Replies | None) -> Request | None:
    """Return a method's next question, None if its round is over.

    SpcacwError for whatever a user's own method raises, or if it gives no question.
    """
    name = method.config.run.method
    with part_of(
        "method", name, f"round, which must yield Requests ({Request.__module__}), raises"
    ):
        try:
            request = steps.send(replies)  # type: ignore[arg-type]  # None starts it
        except StopIteration:
            return None
        except torch.OutOfMemoryError as error:  # no mistake of the method
            raise MemoryError(str(error)) from error
    if request.points.shape[-1] != len(method.parameters):
        raise SpcacwError(
            f"method = {name!r} asks at models of shape {tuple(request.points.shape)}: each must "
            f"have the {len(method.parameters)} numbers of its parameters."
        )
    return request


REASONS = {
    "not-finite": "not a number, or infinite", "too-long": "larger than allowed",
    "shape": "of another shape", "dtype": "of another type", "round": "to another question",
    "silo": "for another silo", "malformed": "incomplete", "error": "an error instead",
}  # fmt: skip
"""Why an answer is rejected, and a description of the answer in words."""
ROUNDING = 1e-4
"""The relative excess that a clipped gradient may have over the clipping norm."""
LONGEST = 1e18
"""Beyond this norm the squares of gradients overflow in float32, and every method fails."""


def sizes_asked(method: Method, request: Request, silo: int) -> tuple[int, int]:
    """Return the samples of a silo's gradient in this round, and in a round where no pass ends."""
    own, config, fold = method.federation.silos[silo].size, method.config, request.fold
    if fold is not None and silo == config.run.target:
        own = len(fold.rows(config.run.seed, silo, own))
    batch, draws = config.training.batch_size, config.transport.local_batches
    most = own if request.samples is None else request.samples[request.silos.index(silo)]
    short = batch_length(request.round, own, batch)
    return draws * min(short, most), draws * min(batch, own, most)


def norm_bound(config: Config) -> float:
    """Return the largest norm that a gradient may have."""
    longest = config.trust.norm_bound or min(config.training.longest, LONGEST)
    return longest * (1 + ROUNDING + slack(config.transport.wire))


def judge(
    request: Request, answers: Answers, bound: float, private: Mapping[int, float] | None = None
) -> tuple[Replies, dict[int, Fault]]:
    """Return the usable answers, and the faults of the others.

    ``bound`` is the largest norm of a gradient. ``private`` has the largest norm for each silo
    that adds noise to its gradients; these silos report no losses.
    """
    replies, norms = answers.replies, answers.norms
    faults = {silo: fault for silo, fault in answers.faults.items() if silo in request.silos}
    if not replies.silos:
        return replies, faults
    if norms is None:
        norms = norms_of(replies.gradients)
    # Each silo has few numbers: NumPy is faster than PyTorch for so few.
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
    """Return the fault of a gradient; None if only its norm in float32 overflowed."""
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
    """Return replies that hold no answer."""
    wide = 0 if request.want == LOSSES else request.points.shape[-1]
    return Replies((), request.points.new_empty(0, wide), request.points.new_empty(0))
