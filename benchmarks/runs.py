"""The seconds that whole runs take in process, from the shell's prompt to the report.

    python -m benchmarks.runs benchmarks/runs.csv --data-dir DIR

Each repetition is ``spcacw run --engine in-process`` in a fresh process: Python's start, data,
50 epochs of SP-CACW, artefacts and pictures. Each case is measured without and with the 50 epochs
of training alone for comparison. A run chooses its own threads, so the machine must be idle.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import typer

from benchmarks.workload import write

SETTINGS = ("digits-relabel", "mnist-relabel", "mnist-rotate")


def run(setting: str, alone: str, data_dir: str, output: Path) -> float:
    """Run one setting and return the seconds from start to end."""
    spcacw = str(Path(sys.executable).parent / "spcacw")
    command = [spcacw, "run", "--engine", "in-process", "--setting", setting, "--method", "spcacw"]
    command += ["--set", f"compare-alone={alone}"]
    start = time.perf_counter()
    subprocess.run(
        [*command, "--data-dir", data_dir, "--output", str(output)], check=True, capture_output=True
    )
    return time.perf_counter() - start


def measure(data_dir: str, repetitions: int) -> Iterator[dict[str, object]]:
    """Measure in turn; yield two rows per setting, without and with the comparison."""
    cases = list(product(SETTINGS, ("false", "true")))
    seconds: dict[tuple[str, str], list[float]] = {case: [] for case in cases}
    summaries = {}
    with tempfile.TemporaryDirectory() as scratch:
        for repetition, case in product(range(repetitions), cases):
            output = Path(scratch) / f"{'-'.join(case)}-{repetition}"
            seconds[case].append(run(*case, data_dir, output))
            summaries[case] = json.loads((output / "summary.json").read_text())
    for (setting, alone), took in seconds.items():
        times = {"median_s": statistics.median(took), "least_s": min(took), "most_s": max(took)}
        one = summaries[setting, alone]
        accuracies = {name: one[name] for name in ("best_accuracy", "last_accuracy")}
        yield {
            "setting": setting, "compare_alone": alone, "repetitions": repetitions,
            "cores": os.cpu_count(), **{k: f"{v:.2f}" for k, v in (times | accuracies).items()},
        }  # fmt: skip


def main(path: Path, data_dir: str = typer.Option(), repetitions: int = 5) -> None:
    """Write the table."""
    write(path, measure(data_dir, repetitions))


if __name__ == "__main__":
    typer.run(main)
