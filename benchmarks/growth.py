"""How time and memory of a round grow with the number of silos M and of parameters d.

    python -m benchmarks.growth benchmarks/growth.csv docs/growth.png

Each point is a process of its own: the median of whole rounds (gradients, clipping, bias, inner
products, step), and how far the process's peak of memory rose above what it held when the data lay
ready, as a multiple of one M × d float32 matrix; the batch, half of one at d = 50,890, is in it.
The exponents are least squares on the logarithms of the larger half of the points, where the fixed
costs of a round have faded.
"""

from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import typer

from benchmarks.workload import make_method, make_pool, medians, train, write
from spcacw_flwr.engine.plots import new_figure

SILOS = (7, 20, 50, 100, 200, 500, 1000, 2000)
HIDDEN = (8, 16, 32, 64, 128, 256, 512, 1024)
SKETCH = 1024
FIXED_SILOS, FIXED_HIDDEN = 20, 64


def peak_bytes() -> int:
    """Return the largest resident size of this process so far (Linux).

    ``ru_maxrss`` would not do: it starts at what the parent process held when it forked.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def point(case: tuple[str, int, int, int]) -> dict[str, object]:
    """Measure one point, in this process; return its row."""
    against, silos, hidden, sketch = case
    keys = {"hidden": hidden, "sketch": sketch, "samples_per_silo": 32, "update_every": 10**6}
    pool = make_pool(silos, **keys)
    _ = pool.data  # put together now: it is not the round's
    before = psutil.Process().memory_info().rss
    method = make_method(pool)
    repetitions = 5 if silos * pool.layout.size > 2e7 else 15
    (ms,) = medians({"round": lambda: train(pool, method, 1)}, repetitions).values()
    matrices = (peak_bytes() - before) / (4 * silos * pool.layout.size)
    return {
        "against": against, "silos": silos, "dimension": pool.layout.size, "sketch": sketch,
        "median_ms": f"{ms:.3f}", "memory_in_matrices": f"{matrices:.2f}",
    }  # fmt: skip


def measure() -> Iterator[dict[str, object]]:
    """Measure all points, each in a fresh process."""
    points = [("M", silos, FIXED_HIDDEN, sketch) for sketch in (0, SKETCH) for silos in SILOS]
    points += [("d", FIXED_SILOS, hidden, 0) for hidden in HIDDEN]
    with get_context("spawn").Pool(1, maxtasksperchild=1) as fresh:
        yield from fresh.imap(point, points)


def exponent(x: pd.Series, y: pd.Series) -> float:
    """Return the slope of log y over log x on the larger half of the points."""
    half = len(x) // 2
    return float(np.polyfit(np.log(x[half:]), np.log(y[half:]), 1)[0])


def draw(table: pd.DataFrame, path: Path) -> None:
    """Draw time and memory against M and d, log-log, with the fitted exponents."""
    matrices = table.silos * table.dimension * 4 / 2**20 * table.memory_in_matrices
    table = table.assign(mebibytes=matrices)
    figure = new_figure(10, 7)
    panels = figure.subplots(2, 2)
    cases = [
        (0, "M", "silos", 0, "exact, d = 50,890"),
        (0, "M", "silos", SKETCH, f"sketch of {SKETCH:,}, d = 50,890"),
        (1, "d", "dimension", 0, f"exact, M = {FIXED_SILOS}"),
    ]
    for column, against, name, sketch, label in cases:
        chosen = table[(table.against == against) & (table.sketch == sketch)]
        for axes, y in zip(panels[:, column], ("median_ms", "mebibytes"), strict=True):
            found = exponent(chosen[name], chosen[y])
            axes.loglog(chosen[name], chosen[y], "o-", label=f"{label}: {against}^{found:.2f}")
            axes.set_xlabel(f"{against}, {'silos' if against == 'M' else 'parameters'}")
    titles = "ms per round of SP-CACW", "peak of memory above the data, MiB"
    for row, title in zip(panels, titles, strict=True):
        for axes in row:
            axes.set_ylabel(title)
            axes.grid(alpha=0.3, which="both")
            axes.legend(loc="upper left")
            axes.margins(y=0.2)
    figure.savefig(path)


def main(path: Path, picture: Path) -> None:
    """Write the table and draw it."""
    write(path, measure())
    draw(pd.read_csv(path), picture)


if __name__ == "__main__":
    typer.run(main)
