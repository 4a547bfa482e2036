"""Rounds a second of silos in their own processes over streams, and the costs of a round.

    python -m benchmarks.stream benchmarks/stream.csv

Real gradients (MLP 784-64-10, d = 50,890, batches of 32), one process for each silo, TLS on
loopback, SP-CACW as the method; and the same with 15 million parameters, 60 MB each way. The parts
are the target process's work and waiting. *pieces* serialises the model once for all silos. *wait*
lasts until the last answer has come (the silos' work, both ends' TLS and gRPC, which overlap); it
begins after the method's own work meanwhile. *unpack* goes from frames to checked rows. *method* is
the rest. ``compute`` is the time of one silo's gradient alone in this process. The processor
seconds of a round, of the target's process and of all silos together, show what idle cores would
allow if others share the machine: at most ``cores`` over their sum.
"""

import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import psutil
import torch
import typer

from benchmarks.separate import Separate, separate
from benchmarks.workload import make_config, medians, write
from spcacw_flwr.engine.gate import Gate
from spcacw_flwr.engine.loop import play
from spcacw_flwr.flower import asker as asking
from spcacw_flwr.silos.protocol import Request

SILOS = "3,7,20"
WARM, LARGE_ROUNDS = 20, 5
LARGE = 18_868
"""Hidden units of a model of 15 million parameters."""


@contextmanager
def timed(target: Any, name: str, into: dict[str, list[float]], key: str) -> Iterator[None]:
    """Note the seconds of each call of ``target.name``."""
    plain: Callable[..., Any] = getattr(target, name)

    def watched(*given: Any, **more: Any) -> Any:
        start = time.perf_counter()
        try:
            return plain(*given, **more)
        finally:
            into[key].append(time.perf_counter() - start)

    with patch.object(target, name, watched):
        yield


def processor_seconds(made: Separate) -> tuple[float, float]:
    """Return the processor seconds that this process and those of the silos have used so far."""
    silos = [psutil.Process(process.pid).cpu_times() for process in made.processes.values()]
    return time.process_time(), sum(used.user + used.system for used in silos)


def measure(silos: int, rounds: int, warm: int, **keys: object) -> dict[str, float]:
    """Return a row of the table."""
    keys = {"diagnostics": False, "update_every": 100, "samples_per_silo": 3200} | keys
    config = make_config(silos, **keys)
    times: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as tls:
        shares = [[silo] for silo in range(silos)]
        with separate(config, shares, tls=Path(tls)) as made:
            method, gate, asker = made.method(), Gate(made.config, silos), made.asker
            for round_ in range(1, warm + 1):
                play(asker, method, round_, gate)
            with (
                timed(asking, "_encoded", times, "pieces"),
                timed(asker, "_wait", times, "wait"),
                timed(asker, "answer", times, "answer"),
            ):
                before = processor_seconds(made)
                for round_ in range(warm + 1, warm + rounds + 1):
                    start = time.perf_counter()
                    play(asker, method, round_, gate)
                    times["round"].append(time.perf_counter() - start)
                used = [b - a for a, b in zip(before, processor_seconds(made), strict=True)]
            size = made.pool.layout.size
            asked = Request(1, (0,), made.pool.initial_parameters())
            alone = medians({"compute": lambda: made.pool.gradients(asked)}, 5)["compute"]
    ms = {name: 1000 * statistics.median(seconds) for name, seconds in times.items()}
    rate = len(times["round"]) / sum(times["round"])
    return {
        "silos": silos, "parameters": size, "rounds": rounds, "rounds_per_second": rate,
        "round_ms": ms["round"], "pieces_ms": ms["pieces"], "wait_ms": ms["wait"],
        "unpack_ms": ms["answer"] - ms["wait"],
        "method_ms": ms["round"] - ms["answer"] - ms["pieces"], "compute_ms": alone,
        "target_cpu_ms": 1000 * used[0] / rounds, "silos_cpu_ms": 1000 * used[1] / rounds,
        "mb_per_second": rate * silos * size * 8 / 1e6, "cores": os.cpu_count() or 0,
        "load": os.getloadavg()[0],
    }  # fmt: skip


def main(
    path: Path, silos: str = SILOS,
    large: Annotated[str, typer.Option(help="silos of 60 MB each way")] = SILOS, rounds: int = 300,
) -> None:  # fmt: skip
    """Write the table."""
    torch.set_num_threads(1)
    sizes: list[tuple] = [(int(n), rounds, WARM, {}) for n in silos.split(",") if n]
    keys = {"hidden": LARGE, "samples_per_silo": 320}
    sizes += [(int(n), LARGE_ROUNDS, 1, keys) for n in large.split(",") if n]
    found = (measure(n, of, warm, **more) for n, of, warm, more in sizes)
    write(path, ({name: round(value, 3) for name, value in row.items()} for row in found))


if __name__ == "__main__":
    typer.run(main)
