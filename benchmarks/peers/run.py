"""The same rounds in three other libraries and in ours, as ratios from one run on one machine.

    python benchmarks/peers/run.py OUT.csv --repetitions 5

Each library gets its own virtual environment, made once and then reused, with the pinned version
and with this Python's version of PyTorch. In every repetition, for every number of silos M, all
libraries run in turn, ours first, each in a fresh process. The table has the median over the
repetitions of each run's median round, and that as a multiple of ours. ``libraries.py`` explains a
round in each library, and the choices in its favour. Ours is there twice: with FedAvg it does the
same work as the peers, with SP-CACW much more.
"""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

SPIN = "20000"
"""The value of GOMP_SPINCOUNT that importing spcacw_flwr before PyTorch sets."""
HERE = Path(__file__).resolve().parent
SAME = "fedavg"
"""Our method whose round equals the peers' round: the multiples are of its time."""
ROUNDS = {SAME: 100, "spcacw": 100, "pfl": 50, "fedlab": 50, "flower": 25}
"""The number of timed rounds of each library."""
# These resolve on Python 3.11 with PyTorch 2.15.0 and NumPy 2.4 (November 2026).
PINS = {"pfl": "pfl==0.6.0", "fedlab": "fedlab==1.3.0", "flower": "flwr[simulation]==1.41.0"}


def python_of(library: str, environments: Path) -> str:
    """Return the Python that has ``library``; make its environment if it does not exist."""
    if library not in PINS:
        return sys.executable
    environment = environments / library
    python = environment / "bin" / "python"
    pins = [PINS[library], "torch==" + version("torch").partition("+")[0]]
    installed = environment / "installed.json"
    if not installed.exists() or json.loads(installed.read_text()) != pins:
        print(f"Installing {', '.join(pins)} in {environment} (some 6 GB) ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *pins], check=True)
        installed.write_text(json.dumps(pins))
    return str(python)


def measure(library: str, python: str, silos: int, rounds: int) -> dict[str, Any]:
    """Run the library in its own process and return the content of its last line."""
    command = [python, str(HERE / "libraries.py"), library, str(silos), str(rounds)]
    # Only ours may import this repository. PyTorch is imported before it, so the package cannot
    # set GOMP_SPINCOUNT itself.
    path = {} if library in PINS else {"PYTHONPATH": str(HERE.parents[1]), "GOMP_SPINCOUNT": SPIN}
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | path
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    line: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"M = {silos}: {line['library']} {line['version']}: {line['median_ms']} ms", flush=True)
    return line


def summary(lines: list[dict[str, Any]]) -> pd.DataFrame:
    """Return a row per (M, library): the median of the runs' medians, and its multiple of ours."""
    groups = pd.DataFrame(lines).groupby(["silos", "library", "version"], sort=False)
    table = groups["median_ms"].median().reset_index()
    ours = table[table.library.str.endswith(SAME)].set_index("silos").median_ms
    return table.assign(multiple_of_our_fedavg=table.median_ms / table.silos.map(ours))


def main(
    path: Path, repetitions: int = 5, silos: str = "7,20,89",
    rounds: Annotated[int, typer.Option(help="to time; 0: each library's own number")] = 0,
    environments: Path = Path("~/.cache/spcacw-peers"),
) -> None:  # fmt: skip
    """Make the environments, measure in turn, and write the table."""
    pythons = {name: python_of(name, environments.expanduser().resolve()) for name in ROUNDS}
    cases = product(range(repetitions), map(int, silos.split(",")), ROUNDS)
    table = summary(
        [measure(name, pythons[name], m, rounds or ROUNDS[name]) for _, m, name in cases]
    )
    digits = {"median_ms": "{:.3f}".format, "multiple_of_our_fedavg": "{:.2f}".format}
    for name, text in digits.items():
        table[name] = table[name].map(text)
    table.to_csv(path, index=False)
    print(table.to_string(index=False))


if __name__ == "__main__":
    typer.run(main)
