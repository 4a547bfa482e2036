"""How time and memory of a round grow with the number of silos M and of parameters d.

    python -m benchmarks.growth benchmarks/growth.csv docs/growth.png

Each point is a process of its own: the median of whole rounds (gradients, clipping, bias, inner
products, step), and how far the process's peak of memory rose above what it held when the data lay
ready, as a multiple of one M × d float32 matrix; the batch, half of one at d = 50,890, is in it.
The exponents are least squares on the logarithms of the larger half of the points, where the fixed
costs of a round have faded.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.engine import whole_round
from benchmarks.workload import make_method, make_pool, medians

SILOS = (7, 20, 50, 100, 200, 500, 1000, 2000)
HIDDEN = (8, 16, 32, 64, 128, 256, 512, 1024)
SKETCH = 1024
FIXED_SILOS, FIXED_HIDDEN = 20, 64
COLUMNS = ("against", "silos", "dimension", "sketch", "median_ms", "memory_in_matrices")


def peak_bytes() -> int:
    """Return the largest resident size of this process so far (Linux).

    ``ru_maxrss`` would not do: it starts at what the parent process held when it forked.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def point(silos: int, hidden: int, sketch: int) -> dict[str, float]:
    """Measure one point, in this process."""
    keys = {"hidden": hidden, "sketch": sketch, "samples_per_silo": 32, "update_every": 10**6}
    pool = make_pool(silos, **keys)
    _ = pool.data  # put together now: it is not the round's
    before = psutil.Process().memory_info().rss
    method = make_method(pool)
    repetitions = 5 if silos * pool.layout.size > 2e7 else 15
    (ms,) = medians({"round": whole_round(pool, method)}, repetitions).values()
    matrices = (peak_bytes() - before) / (4 * silos * pool.layout.size)
    return {"dimension": pool.layout.size, "median_ms": ms, "memory_in_matrices": matrices}


def measure() -> list[dict[str, object]]:
    """Measure all points, each in a fresh process."""
    points = [("M", silos, FIXED_HIDDEN, sketch) for sketch in (0, SKETCH) for silos in SILOS]
    points += [("d", FIXED_SILOS, hidden, 0) for hidden in HIDDEN]
    rows = []
    for against, silos, hidden, sketch in points:
        command = [sys.executable, "-m", "benchmarks.growth", "--point"]
        command += [str(silos), str(hidden), str(sketch)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        row = {"against": against, "silos": silos, "sketch": sketch, **json.loads(done.stdout)}
        rows.append(row)
        print(*(row[name] for name in COLUMNS), sep="\t", flush=True)
    return rows


def exponent(x: list[float], y: list[float]) -> float:
    """Return the slope of log y over log x on the larger half of the points."""
    half = len(x) // 2
    return float(np.polyfit(np.log(x[half:]), np.log(y[half:]), 1)[0])


def draw(rows: list[dict[str, object]], path: Path) -> None:
    """Draw time and memory against M and d, log-log, with the fitted exponents."""
    figure = Figure(figsize=(10, 7), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 2)
    cases = [
        (0, "M", "silos", 0, "exact, d = 50,890"),
        (0, "M", "silos", SKETCH, f"sketch of {SKETCH:,}, d = 50,890"),
        (1, "d", "dimension", 0, f"exact, M = {FIXED_SILOS}"),
    ]
    for column, against, name, sketch, label in cases:
        chosen = [r for r in rows if (r["against"], r["sketch"]) == (against, sketch)]
        x = [float(str(r[name])) for r in chosen]
        for axes, y in zip(panels[:, column], (times(chosen), mebibytes(chosen)), strict=True):
            axes.loglog(x, y, "o-", label=f"{label}: {against}^{exponent(x, y):.2f}")
            axes.set_xlabel(f"{against}, {'silos' if against == 'M' else 'parameters'}")
    titles = "ms per round of SP-CACW", "peak of memory above the data, MiB"
    for row, title in zip(panels, titles, strict=True):
        for axes in row:
            axes.set_ylabel(title)
            axes.grid(alpha=0.3, which="both")
            axes.legend(loc="upper left")
            axes.margins(y=0.2)
    figure.savefig(path)


def times(rows: list[dict[str, object]]) -> list[float]:
    """Return the milliseconds of points."""
    return [float(str(r["median_ms"])) for r in rows]


def mebibytes(rows: list[dict[str, object]]) -> list[float]:
    """Return the memory of points: M × d float32 matrices, in MiB."""
    sizes = (float(str(r["silos"])) * float(str(r["dimension"])) * 4 / 2**20 for r in rows)
    return [size * float(str(r["memory_in_matrices"])) for size, r in zip(sizes, rows, strict=True)]


def main(table: Path, picture: Path) -> None:
    """Measure, write the table, draw the picture."""
    rows = measure()
    with table.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in rows:
            ms, matrices = f"{row['median_ms']:.3f}", f"{row['memory_in_matrices']:.2f}"
            writer.writerow([*(row[name] for name in COLUMNS[:4]), ms, matrices])
    draw(rows, picture)


if __name__ == "__main__":
    if sys.argv[1] == "--point":
        print(json.dumps(point(*map(int, sys.argv[2:]))))
    else:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
