"""Rounds a second of silos in streams with audit logs, compared with those without.

    python -m benchmarks.audit benchmarks/audit.csv

Two federations like those of :mod:`benchmarks.stream` (d = 50,890, TLS) run side by side, one of
them with audit logs. They take turns of some rounds, so both see the same load. ``ratio`` is the
ratio of rounds a second. ``processor_ratio`` is that of the processor seconds of all processes
together, which shows more if others share the machine. ``line_us`` is the time of a line, including
its lock and its chain. ``seal_ms`` is the time of a signature with the head next to it, on the
disk; a log has a seal every five seconds.
"""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import torch
import typer

from benchmarks.separate import Separate, separate
from benchmarks.stream import processor_seconds
from benchmarks.workload import make_config, medians, write
from spcacw_flwr.engine.gate import Gate
from spcacw_flwr.engine.loop import play
from spcacw_flwr.flower import certificates
from spcacw_flwr.flower.audit import ANSWER, LOG, Log

LINES, ROUNDS = 100, 30


def costs() -> dict[str, float]:
    """Return the times of a line and of a seal."""
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


def turn_of(made: Separate, home: str) -> Callable[[], tuple[float, float]]:
    """Return a function that plays some rounds and returns the seconds, clock and CPU, of one."""
    method, gate, round_ = made.method(), Gate(made.config, len(made.shares)), 0

    def turn() -> tuple[float, float]:
        nonlocal round_
        with patch.dict(os.environ, FLWR_HOME=home):
            before, start = sum(processor_seconds(made)), time.perf_counter()
            for _ in range(ROUNDS):
                round_ += 1
                play(made.asker, method, round_, gate)
            seconds = time.perf_counter() - start
            return seconds / ROUNDS, (sum(processor_seconds(made)) - before) / ROUNDS

    return turn


def row(silos: int, turns: int) -> dict[str, float]:
    """Return a row of the table."""
    config = make_config(silos, diagnostics=False, update_every=100, samples_per_silo=3200)
    shares = [[silo] for silo in range(silos)]
    with tempfile.TemporaryDirectory() as name:
        bare, audited = (Path(name) / of for of in ("bare", "audited"))
        for path in (bare, audited):
            path.mkdir()
        with (
            separate(config, shares, tls=bare) as one,
            separate(config, shares, tls=audited, audited=True) as other,
        ):
            plays = turn_of(one, ""), turn_of(other, str(audited / "flower"))
            for play_ in plays:
                play_()
            spent = [[0.0, 0.0], [0.0, 0.0]]
            for turn in range(2 * turns):
                k = (0, 1, 1, 0)[turn % 4]
                spent[k] = [a + b for a, b in zip(spent[k], plays[k](), strict=True)]
    rates = [turns / seconds for seconds, _ in spent]
    work = spent[1][1] / spent[0][1]
    return {
        "silos": silos, "rounds": turns * ROUNDS, "without": round(rates[0], 1),
        "audited": round(rates[1], 1), "ratio": round(rates[1] / rates[0], 3),
        "processor_ratio": round(work, 3),
        **costs(), "cores": os.cpu_count() or 0, "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip


def main(path: Path, silos: str = "3,7,20", turns: int = 200) -> None:
    """Write the table."""
    torch.set_num_threads(1)
    write(path, (row(int(count), turns) for count in silos.split(",")))


if __name__ == "__main__":
    typer.run(main)
