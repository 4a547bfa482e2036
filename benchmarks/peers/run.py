"""The same rounds in three other libraries and in this one, as ratios of one run on one machine.

    python benchmarks/peers/run.py OUT.csv --repetitions 5

Each library gets a virtual environment of its own, made once and then reused, with the pinned
version and with the PyTorch that this Python has. In every repetition, for every number of silos M,
all libraries run in turn, ours first, each in a fresh process. The table has the median over the
repetitions of each run's median round, and that as a multiple of ours. What a round is, and what
was chosen in its favour, is in each library's script. Ours is there twice: with FedAvg it does what
the peers do, with SP-CACW much more.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

SPIN = "20000"
"""What importing spcacw_flwr before PyTorch sets GOMP_SPINCOUNT to."""
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
COLUMNS = ("silos", "library", "version", "median_ms", "multiple_of_our_fedavg")


@dataclass(frozen=True)
class Library:
    """A library, its script, what pip installs for it, and how many rounds are timed."""

    script: str
    pin: str | None
    rounds: int
    method: str = ""

    @property
    def name(self) -> str:
        """The name of its environment."""
        return self.script.removesuffix("_rounds.py")


SAME = "fedavg"
"""Our method whose round is the peers' round: the multiples are of its time."""
OURS = tuple(Library("ours_rounds.py", None, 100, method) for method in (SAME, "spcacw"))
PEERS = (  # The pins resolve on Python 3.11 with PyTorch 2.15.0 and NumPy 2.4 (November 2026).
    Library("pfl_rounds.py", "pfl==0.6.0", 50),
    Library("fedlab_rounds.py", "fedlab==1.3.0", 50),
    Library("flower_rounds.py", "flwr[simulation]==1.41.0", 25),
)


def python_of(library: Library, environments: Path) -> str:
    """Return the Python that has ``library``, after making its environment if there is none."""
    if library.pin is None:
        return sys.executable
    environment = environments / library.name
    python = environment / "bin" / "python"
    pins = [library.pin, "torch==" + version("torch").partition("+")[0]]
    installed = environment / "installed.json"
    if not installed.exists() or json.loads(installed.read_text()) != pins:
        print(f"Installing {', '.join(pins)} in {environment} (some 6 GB) ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *pins], check=True)
        installed.write_text(json.dumps(pins))
    return str(python)


def measure(library: Library, python: str, silos: int, rounds: int) -> dict[str, Any]:
    """Run the library's script in a process of its own and return what its last line says."""
    command = [python, str(HERE / library.script), str(silos), str(rounds), library.method]
    # Only ours may import this repository; its script imports PyTorch first, so that the package
    # cannot set this itself.
    path = {"PYTHONPATH": str(ROOT), "GOMP_SPINCOUNT": SPIN} if library in OURS else {}
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | path
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    line: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"M = {silos}: {line['library']} {line['version']}: {line['median_ms']} ms", flush=True)
    return line


def table(lines: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return a row per (M, library): the median of the runs' medians, and its multiple of ours."""
    runs: dict[tuple[int, str, str], list[float]] = defaultdict(list)
    for line in lines:
        runs[line["silos"], line["library"], line["version"]].append(line["median_ms"])
    medians = {key: statistics.median(values) for key, values in runs.items()}
    ours = {silos: ms for (silos, library, _), ms in medians.items() if library.endswith(SAME)}
    return [
        (str(silos), library, version_, f"{ms:.3f}", f"{ms / ours[silos]:.2f}")
        for (silos, library, version_), ms in medians.items()
    ]


def write(rows: list[tuple[str, ...]], path: Path) -> None:
    """Write the table as CSV, and print it."""
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
    shown = Table(*COLUMNS)
    for row in rows:
        shown.add_row(*row)
    Console().print(shown)


def main() -> None:
    """Make the environments, measure in turn, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="the table, as CSV")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--silos", type=int, nargs="+", default=[7, 20, 89])
    parser.add_argument("--rounds", type=int, help="rounds to time; default: each library's own")
    cache = Path.home() / ".cache" / "spcacw-peers"
    parser.add_argument("--environments", type=Path, default=cache, help=f"default: {cache}")
    arguments = parser.parse_args()
    libraries = {
        library: python_of(library, arguments.environments.resolve()) for library in (*OURS, *PEERS)
    }
    lines = [
        measure(library, python, silos, arguments.rounds or library.rounds)
        for _ in range(arguments.repetitions)
        for silos in arguments.silos
        for library, python in libraries.items()
    ]
    write(table(lines), arguments.out)


if __name__ == "__main__":
    main()
