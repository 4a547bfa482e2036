"""Rounds a second of silos in streams with audit logs, over those without.

    python -m benchmarks.audit benchmarks/audit.csv

The federations are those of :mod:`benchmarks.stream`; with and without take turns, and each number
is the median of its turns. ``processor_ratio`` is of the processor seconds of a round, which tell
more where others share the machine. ``line_us`` is what a line takes, its lock and its chain
included, and ``seal_ms`` a signature with the head beside it, on the disk, once a second.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path

import torch
import typer

from benchmarks.stream import WARM, measure
from benchmarks.workload import medians, write
from spcacw_flwr.flower import certificates
from spcacw_flwr.flower.audit import ANSWER, LOG, Log

LINES = 100


def costs() -> dict[str, float]:
    """Return what a line and a seal take."""
    with tempfile.TemporaryDirectory() as name:
        host = Path(name) / "host"
        certificates.make_silo_key(host)
        log = Log(host / LOG, host / certificates.SILO_KEY)
        told = {"0": {"floats": 50_891, "bytes": 203_568, "norm": 0.5}}

        def lines() -> None:
            for round_ in range(LINES):
                log.note(ANSWER, round=round_, draw=0, number=0, want="gradients", silos=told)

        def seal() -> None:
            log.note(ANSWER, silos=told)
            log.seal()

        found = medians({"lines": lines, "seal": seal}, 21)
    return {"line_us": round(1000 * found["lines"] / LINES, 1), "seal_ms": round(found["seal"], 2)}


def row(silos: int, rounds: int, turns: int) -> dict[str, float]:
    """Return a row of the table."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    work: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(2 * turns):
        audited = turn % 4 in (1, 2)  # neither is always first
        found = measure(silos, rounds, WARM, audited=audited)
        rates[audited].append(found["rounds_per_second"])
        work[audited].append(found["target_cpu_ms"] + found["silos_cpu_ms"])
    without, with_ = (statistics.median(rates[audited]) for audited in (False, True))
    ratio, more = (
        statistics.median(b / a for a, b in zip(of[False], of[True], strict=True))
        for of in (rates, work)
    )
    return {
        "silos": silos, "rounds": rounds, "turns": turns, "without": round(without, 1),
        "audited": round(with_, 1), "ratio": round(ratio, 3),
        "processor_ratio": round(more, 3), **costs(),
        "cores": os.cpu_count() or 0, "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip


def main(path: Path, silos: str = "3,7,20", rounds: int = 300, turns: int = 7) -> None:
    """Write the table."""
    torch.set_num_threads(1)
    write(path, (row(int(count), rounds, turns) for count in silos.split(",")))


if __name__ == "__main__":
    typer.run(main)
