"""How long whole runs take in process, from the shell's prompt to the report, in seconds.

    python -m benchmarks.runs benchmarks/runs.csv --data-dir DIR

Each repetition is ``spcacw run --engine in-process`` in a fresh process: Python's start, data,
50 epochs of SP-CACW, the same of training alone for comparison, artefacts and pictures.
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
from pathlib import Path

SETTINGS = ("digits-relabel", "mnist-relabel", "mnist-rotate")
COLUMNS = (
    "setting", "repetitions", "cores", "median_s", "least_s", "most_s", "best_accuracy",
    "last_accuracy", "alone_best_accuracy",
)  # fmt: skip


def run(setting: str, data_dir: str, output: Path) -> float:
    """Run one setting and return the seconds from start to end."""
    spcacw = str(Path(sys.executable).parent / "spcacw")
    command = [spcacw, "run", "--engine", "in-process", "--setting", setting]
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
    seconds: dict[str, list[float]] = {setting: [] for setting in SETTINGS}
    summaries = {}
    with tempfile.TemporaryDirectory() as scratch:
        for repetition in range(given.repetitions):
            for setting in SETTINGS:
                output = Path(scratch) / f"{setting}-{repetition}"
                seconds[setting].append(run(setting, given.data_dir, output))
                summaries[setting] = json.loads((output / "summary.json").read_text())
                print(setting, f"{seconds[setting][-1]:.2f} s", flush=True)
    with given.path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for setting, took in seconds.items():
            one = summaries[setting]
            times = [f"{f(took):.2f}" for f in (statistics.median, min, max)]
            best = (one["best_accuracy"], one["last_accuracy"], one["alone"]["best_accuracy"])
            accuracies = [f"{accuracy:.2f}" for accuracy in best]
            writer.writerow([setting, len(took), os.cpu_count(), *times, *accuracies])


if __name__ == "__main__":
    main()
