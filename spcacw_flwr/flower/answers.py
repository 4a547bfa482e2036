"""What nodes answer, as messages and streams bring it, and whether it answers what was asked.

:class:`Gathering` sees everything that can be seen without looking at the numbers. What the numbers
are worth is the gate's to judge (:mod:`spcacw_flwr.engine.gate`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from logging import INFO
from typing import Any

import numpy as np
import torch
from flwr.app import Context, MetricRecord
from flwr.common.logger import log
from numpy.typing import NDArray
from torch import Tensor

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.flower import records
from spcacw_flwr.flower.records import Arrays, Told
from spcacw_flwr.silos import wire
from spcacw_flwr.silos.accounting import Ledger
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.protocol import (
    LOSSES,
    Answers,
    Fault,
    Federation,
    Replies,
    Request,
    SiloInfo,
)

WORDS = 200
"""Most characters of a node's own words, which may be anything."""


def answer(pool: SiloPool, request: Request) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return what a node says to a request: its metrics, and its gradients as they travel."""
    replies, _ = pool.replies(request)
    parts = pool.packed(request, replies)
    sizes = [pool.data.sizes[silo] for silo in replies.silos]
    private = [silo for silo in replies.silos if silo in pool.private.mechanisms]
    metrics = records.replies_to_metrics(request, replies, sizes, private)
    return metrics, {name: part.cpu().numpy() for name, part in parts.items()}


def evaluation(
    pool: SiloPool, silo: int, model: Tensor
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return what a node says of a model (d,): its metrics, and the buffers that it used."""
    accuracy, loss, buffers = pool.evaluate(model, silo)
    metrics = {records.ACCURACY: accuracy, "loss": loss}
    metrics["num-examples"] = len(pool.setting.test(silo).y)
    return metrics, {name: buffer.cpu().numpy() for name, buffer in buffers.items()}


class Gathering:
    """The answers to a request, as they come from one node after the other.

    Parameters
    ----------
    request : Request
        What was asked.
    target : int
        The target silo, which alone is asked for L.
    how : str
        The key ``wire``: what gradients travel as.
    """

    def __init__(self, request: Request, target: int, how: str = wire.FLOAT32) -> None:
        self.request, self.target, self.how = request, target, how
        self.faults: dict[int, Fault] = {}
        self._found: dict[int, tuple[Tensor, Tensor]] = {}
        self._smoothness: float | None = None

    def wrong(self, silos: Sequence[int], reason: str, words: str) -> None:
        """Note one fault of each of ``silos``, its words cut to a line that is fit for a log."""
        line = " ".join("".join(c if c.isprintable() else " " for c in words).split())
        fault = Fault(reason, line if len(line) <= WORDS else f"{line[:WORDS]}…")
        self.faults |= dict.fromkeys(silos, fault)

    def add(self, asked: Sequence[int], metrics: Told, arrays: Arrays) -> None:
        """Take what a node says that was asked for the silos ``asked``.

        A silo that is not there, or twice, costs the node only that silo; silos out of order cost
        it all of them, for rows and names may be swapped.
        """
        try:
            self._open(asked, metrics, arrays)
        except Exception as error:  # a stranger's bytes may make a parser raise anything
            self.wrong(asked, "malformed", str(error))
            return
        if self.request.smoothness and self.target in asked:
            try:
                (self._smoothness,) = records.numbers(metrics, records.SMOOTHNESS)
                if not math.isfinite(self._smoothness):
                    raise SpcacwError(f"its {records.SMOOTHNESS} is {self._smoothness}")
            except Exception as error:
                self.wrong([self.target], "malformed", str(error))

    def answers(self, rows: Tensor) -> Answers:
        """Return all answers in silo order; gradients in the first of ``rows`` (M, d)."""
        silos = tuple(sorted(self._found.keys() - self.faults.keys()))
        losses = [self._found[silo][1] for silo in silos]
        table = torch.stack(losses).to(rows.device) if losses else rows.new_empty(0)
        if self.request.want == LOSSES:
            return Answers(Replies(silos, rows[: len(silos), :0], table), self.faults)
        for k, silo in enumerate(silos):
            rows[k] = self._found[silo][0]
        replies = Replies(silos, rows[: len(silos)], table, self._smoothness)
        return Answers(replies, self.faults)

    def _open(self, asked: Sequence[int], metrics: Told, arrays: Arrays) -> None:
        request, judging = self.request, self.request.want == LOSSES
        (round_,), (draw,) = (records.whole_numbers(metrics, name) for name in ("round", "draw"))
        silos, losses = records.whole_numbers(metrics, "silos"), records.numbers(metrics, "loss")
        gradients = wire.received(arrays, self.how)
        if (round_, draw) != (request.round, request.draw):
            words = f"it answers round {round_}, draw {draw}, where {request.round}, draw "
            self.wrong(asked, "round", f"{words}{request.draw} was asked")
            return
        count = len(silos)
        shape = (count, 0 if judging else request.points.shape[-1])
        columns = request.points.shape[-2] if judging else 1
        if gradients.dtype != np.float32:
            self.wrong(asked, "dtype", f"its gradients are {gradients.dtype}, not float32")
            return
        if gradients.shape != shape or len(losses) != count * columns:
            words = f"it has gradients of shape {gradients.shape} and {len(losses)} losses where "
            self.wrong(asked, "shape", f"{words}{shape} and {count * columns} were expected")
            return
        places = dict.fromkeys(silos, -1)
        for k, silo in enumerate(silos):
            places[silo] = k if places[silo] < 0 else count  # of two, neither
        at = {silo: places[silo] for silo in asked if places.get(silo, count) < count}
        if list(at.values()) != sorted(at.values()):
            self.wrong(asked, "silo", f"it answers for silos {silos} in another order")
            return
        missing = [silo for silo in asked if silo not in at]
        if missing:  # as good as never, and a line's words are looked at one by one
            self.wrong(missing, "silo", f"its node answers for silos {silos}")
        rows, table = torch.from_numpy(gradients), torch.tensor(losses).float()
        if judging:  # a model whose loss is not a number is worse than any other
            table = table.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
            table = table.view(count, columns)
        self._found |= {silo: (rows[k], table[k]) for silo, k in at.items()}


def ledger_of(pool: SiloPool) -> Ledger:
    """Return an empty ledger of a node's private silos."""
    sizes, own, config = pool.data.sizes, pool.private.mechanisms, pool.config
    infos = tuple(SiloInfo(i, sizes[i], (), privacy=own[i]) for i in pool.silos if i in own)
    return Ledger(config, Federation(infos, config.run.target, config.training.batch_size))


def log_told(ledger: Ledger) -> None:
    """Log what each private silo has told so far."""
    for silo, line in ledger.summary().items():
        log(INFO, "Silo %s has answered with %s gradients in this run: ε = %.3g at δ = %g.",
            silo, line["answers"], line["epsilon"], line["delta"])  # fmt: skip


def note_told(pool: SiloPool, request: Request, context: Context) -> None:
    """Add an answer to the account in the node's state, and log it."""
    ledger = ledger_of(pool)
    before = context.state.metric_records.get(records.PRIVACY)
    if before is not None:
        for silo in ledger.answers:
            ledger.restore(silo, records.counts(before, str(silo)))
    ledger.note(request, request.silos)
    context.state[records.PRIVACY] = MetricRecord(dict(ledger.state()))
    log_told(ledger)
