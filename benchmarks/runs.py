"""How long whole runs take in process, from the shell's prompt to the report, in seconds.

    python -m benchmarks.runs benchmarks/runs.csv --data-dir DIR

Each repetition is ``spcacw run --engine in-process`` in a fresh process: Python's start, data,
50 epochs of SP-CACW, artefacts and pictures; without and with the 50 epochs of training alone that
a run makes for comparison. Threads are those that a run takes by itself: the machine must be idle.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

SETTINGS = ("digits-relabel", "mnist-relabel", "mnist-rotate")
COLUMNS = (
    "setting", "compare_alone", "repetitions", "cores", "median_s", "least_s", "most_s",
    "best_accuracy", "last_accuracy",
)  # fmt: skip


def run(setting: str, alone: str, data_dir: str, output: Path) -> float:
    """Run one setting and return the seconds from start to end."""
    spcacw = str(Path(sys.executable).parent / "spcacw")
    command = [spcacw, "run", "--engine", "in-process", "--setting", setting]
    command += ["--set", f"compare-alone={alone}"]
    start = time.perf_counter()
    subprocess.run(
        [*command, "--data-dir", data_dir, "--output", str(output)], check=True, capture_output=True
    )
    return time.perf_counter() - start


def main() -> None:
    """Measure in turn and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("path", type=Path)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--repetitions", type=int, default=5)
    given = parser.parse_args()
    cases = list(product(SETTINGS, ("false", "true")))
    seconds: dict[tuple[str, str], list[float]] = {case: [] for case in cases}
    summaries = {}
    with tempfile.TemporaryDirectory() as scratch:
        for repetition in range(given.repetitions):
            for case in cases:
                output = Path(scratch) / f"{'-'.join(case)}-{repetition}"
                seconds[case].append(run(*case, given.data_dir, output))
                summaries[case] = json.loads((output / "summary.json").read_text())
                print(*case, f"{seconds[case][-1]:.2f} s", flush=True)
    with given.path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for case, took in seconds.items():
            one = summaries[case]
            times = [f"{f(took):.2f}" for f in (statistics.median, min, max)]
            accuracies = [f"{one[name]:.2f}" for name in COLUMNS[-2:]]
            writer.writerow([*case, len(took), os.cpu_count(), *times, *accuracies])


if __name__ == "__main__":
    main()
