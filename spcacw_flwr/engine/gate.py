"""The gate between a method and any engine: no reply reaches a method's state unchecked.

An engine asks :meth:`Gate.play` for the questions of a round, and sends it what came back. The
method is given the answers that can be used; what cannot is left out, as if that silo had stayed
silent for the rest of the round. A silo that goes on sending such answers is put into quarantine:
it is not asked, but for a probe now and then, and has no weight until its probes are good::

    steps = gate.play(method, round_)
    request = next(steps)
    while True:  # until StopIteration
        request = steps.send(Answers(replies, faults))

``faults`` are what the transport found wrong; whether an answer is
finite and short enough is found here (:mod:`spcacw_flwr.engine.checks`).
"""

from __future__ import annotations

import logging
from collections.abc import Generator

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.config.config import Config
from spcacw_flwr.engine.checks import REASONS, ROUNDING, judge, norm_bound, nothing, without
from spcacw_flwr.methods.base import Method
from spcacw_flwr.silos.protocol import Answers, Fault, Request
from spcacw_flwr.silos.streams import PARTICIPATION, stream

log = logging.getLogger(__name__)


class Gate:
    """Checks what silos answer, and remembers who answered badly.

    Parameters
    ----------
    config : Config
        The run's configuration: ``norm-bound``, ``max-strikes``, ``quarantine-probe``.
    num_silos : int
        M.

    Attributes
    ----------
    counts : array
        (M, len(REASONS)) answers that were left out, by silo and reason.
    strikes : array
        (M,) rounds with such an answer, less those with good ones; 0 … ``max-strikes``.
    quarantined : array
        (M,) of bool. A silo goes in when its strikes are ``max-strikes``, out when they are 0.
    """

    def __init__(self, config: Config, num_silos: int) -> None:
        self.keys, self.seed, self.target = config.trust, config.run.seed, config.run.target
        self.bound = norm_bound(config)
        self.counts = np.zeros((num_silos, len(REASONS)), dtype=np.int64)
        self.strikes = np.zeros(num_silos, dtype=np.int64)
        self.quarantined = np.zeros(num_silos, dtype=bool)

    def play(self, method: Method, round_: int) -> Generator[Request, Answers, None]:
        """Run round t of a method: yield its questions, be sent what comes back.

        Raises
        ------
        SpcacwError
            If the target was asked and there is no answer that can be used.
        """
        faulty, good = (np.zeros(len(self.strikes), dtype=bool) for _ in range(2))
        hushed = self.quarantined.copy()
        if hushed.any():
            hushed &= ~self._probed(round_)

        def cut(request: Request) -> Request:
            shut = hushed | faulty
            if not shut.any():
                return request
            return request.only(tuple(silo for silo in request.silos if not shut[silo]))

        steps = method.play(round_, cut)
        try:
            request = next(steps)
            while True:
                answers = (yield request) if request.silos else Answers(nothing(request))
                private = self._bounds_of_noise(method, request)
                replies, faults = judge(request, answers, self.bound, private)
                for silo, fault in faults.items():
                    self._reject(request.round, silo, fault)
                good[list(replies.silos)] = True
                faulty[list(faults)] = True
                replies = without(replies, set(np.flatnonzero(self.quarantined)))
                replies.faults = faults
                if faulty.any() or self.quarantined.any():
                    replies.early = None
                request = steps.send(replies)
        except StopIteration:
            pass
        self._count_strikes(method, round_, faulty, good & ~faulty)

    def _bounds_of_noise(self, method: Method, request: Request) -> dict[int, float]:
        """Return how long answers of private silos may be, unless ``norm-bound`` says it."""
        bounds = method.ledger.bounds(request)
        own = self.keys.norm_bound > 0
        return {silo: self.bound if own else (1 + ROUNDING) * b for silo, b in bounds.items()}

    def _reject(self, round_: int, silo: int, fault: Fault) -> None:
        """Count an answer that cannot be used, and say so: the first three times, then rarely."""
        self.counts[silo, REASONS.index(fault.reason)] += 1
        times = int(self.counts[silo].sum())
        if times <= 3 or times & (times - 1) == 0:
            log.warning("Round %s goes on without silo %s: %s (%s; no. %s of this silo).",
                        round_, silo, fault.words, fault.reason, times)  # fmt: skip

    def _probed(self, round_: int) -> NDArray[np.bool_]:
        """Return whom a probe reaches at round t, (M,): a pure function of (seed, round)."""
        rng = stream(self.seed, PARTICIPATION, round_, 2)
        chosen: NDArray[np.bool_] = rng.random(len(self.strikes)) < self.keys.quarantine_probe
        return chosen

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
        for silo in np.flatnonzero(self.quarantined != before).tolist():
            if self.quarantined[silo]:
                log.warning("Silo %s is in quarantine from round %s on: %s strikes.",
                            silo, round_, limit)  # fmt: skip
            else:
                log.info("Silo %s is out of quarantine after round %s.", silo, round_)
        if not np.array_equal(self.quarantined, before):
            method.quarantine(self.quarantined.copy(), round_)

    @property
    def rejected(self) -> int:
        """How many answers could not be used so far."""
        return int(self.counts.sum())

    def report(self) -> dict[str, float]:
        """Return an epoch's figures for the log."""
        return {"rejected": self.rejected, "quarantined": int(self.quarantined.sum())}

    def rejections(self) -> dict[str, dict[str, int]]:
        """Return the counts of each silo by reason, where there are any."""
        return {
            str(silo): {REASONS[k]: int(self.counts[silo, k]) for k in np.flatnonzero(row)}
            for silo, row in enumerate(self.counts)
            if row.any()
        }
