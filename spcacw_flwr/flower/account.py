"""A real silo's own account of what it has told in a run, beside the target's.

A process that answers one message and ends keeps it in the node's state, which Flower holds while
the run goes on; one that answers a stream keeps it in memory.
"""

from __future__ import annotations

from logging import INFO

from flwr.app import Context, MetricRecord
from flwr.common.logger import log

from spcacw_flwr.flower import records
from spcacw_flwr.silos.accounting import Ledger
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.protocol import Federation, Request, SiloInfo


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
