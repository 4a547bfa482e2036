"""What a checkpoint costs: megabytes on disk, milliseconds to write and to go on from.

    python -m benchmarks.checkpoint benchmarks/checkpoint.csv

Of SP-CACW, and of the method whose state is largest (pFedGraph: every silo's model, momentum and
centre), at 784-64-10. Beside them: one round of training, and the same bytes written and
flushed to the same disk as they are, which is the least that a checkpoint can cost there.
"""

from __future__ import annotations

import argparse
import csv
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.workload import make_method, make_pool, medians
from spcacw_flwr.engine.checkpoint import DIRECTORY, Keeper
from spcacw_flwr.engine.loop import play
from spcacw_flwr.methods.base import Method
from spcacw_flwr.silos.pool import SiloPool

WARM = 12
"""Rounds before the measurement: every buffer of an epoch is there."""


def written(path: Path, content: bytes) -> None:
    """Write bytes and wait until they are on the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def begin(pool: SiloPool, directory: Path) -> tuple[Method, Keeper]:
    """Return a fresh method and who keeps its checkpoint."""
    method = make_method(pool)
    return method, Keeper(directory, pool.config, method.federation, {"method": method})


def measure(
    name: str, silos: int, directory: Path, repetitions: int
) -> Iterator[tuple[str, int, str, str, str]]:
    """Yield a row per piece of work."""
    pool = make_pool(silos, method=name)
    method, keeper = begin(pool, directory)
    for round_ in range(1, WARM + 1):
        play(pool, method, round_)
    assert keeper.save(WARM, {}, {})
    content = b"".join(path.read_bytes() for path in (directory / DIRECTORY).iterdir())
    fresh = begin(pool, directory)[1]
    works = {
        "round": lambda: play(pool, method, WARM),
        "checkpoint": lambda: keeper.save(WARM, {}, {}),
        "plain write": lambda: written(directory / "plain", content),
        "resume": fresh.resume,
    }
    for what, ms in medians(works, repetitions).items():
        yield name, silos, what, f"{len(content) / 1e6:.2f}", f"{ms:.1f}"


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("path", type=Path)
    parser.add_argument("--methods", default="spcacw,pfedgraph")
    parser.add_argument("--silos", default="7,89")
    parser.add_argument("--repetitions", type=int, default=15)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with given.path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["method", "silos", "work", "megabytes", "median_ms"])
        for name in given.methods.split(","):
            for silos in map(int, given.silos.split(",")):
                with tempfile.TemporaryDirectory(dir=".") as directory:
                    for row in measure(name, silos, Path(directory), given.repetitions):
                        writer.writerow(row)
                        print(*row, sep="\t", flush=True)


if __name__ == "__main__":
    main()
