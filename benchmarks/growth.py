"""The growth of a round's time and memory with the number of silos M and of parameters d.

    python -m benchmarks.growth benchmarks/growth.csv docs/growth.png benchmarks/scale.csv

Each point is a fresh process. It has the median of whole rounds (gradients, clipping, bias, inner
products, step), and the rise of the process's peak memory above its memory when the data are ready,
as a multiple of one M × d float32 matrix. The batch, half of one at d = 50,890, is included. The
exponents are least squares on the logarithms of the larger half of the points, where the fixed
costs of a round are small. ``scale.csv`` has the predictions of a M + b M² for larger federations,
sketched. The two factors are least squares, relative, on the points of FITTED silos.
"""

from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import typer
from scipy.optimize import nnls

from benchmarks.workload import make_method, make_pool, medians, train, write
from spcacw_flwr.engine.plots import new_figure

SILOS = (7, 20, 50, 100, 200, 500, 1000, 2000)
HIDDEN = (8, 16, 32, 64, 128, 256, 512, 1024)
MANY = (4000, 8000, 12000)
"""Only with a sketch."""
FITTED = (1000, 8000)
ASKED = (12_000, 100_000)
SKETCH = 1024
FIXED_SILOS, FIXED_HIDDEN = 20, 64


def peak_bytes() -> int:
    """Return the largest resident size of this process so far (Linux).

    ``ru_maxrss`` is unsuitable: it starts at the parent process's size at the fork.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def point(case: tuple[str, int, int, int]) -> dict[str, object]:
    """Measure one point in this process; return its row."""
    against, silos, hidden, sketch = case
    keys = {"hidden": hidden, "sketch": sketch, "samples_per_silo": 32, "update_every": 10**6}
    pool = make_pool(silos, **keys)
    _ = pool.data  # made now, because it is not part of the round
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
    points = [("M", silos, FIXED_HIDDEN, 0) for silos in SILOS]
    points += [("M", silos, FIXED_HIDDEN, SKETCH) for silos in SILOS + MANY]
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


def predicted(M: pd.Series, y: pd.Series, asked: float) -> float:
    """Return a M + b M² at ``asked`` for the a, b ≥ 0 that fit y best, relative to y."""
    factors, _ = nnls(np.column_stack((M / y, M**2 / y)), np.ones(len(M)))
    return float(factors @ (asked, asked**2))


def scale(table: pd.DataFrame) -> pd.DataFrame:
    """Return the costs of larger federations: predicted and, if there is a point, measured."""
    points = table[table.sketch == SKETCH].set_index("silos", drop=False)
    gib = points.silos * points.dimension * 4 / 2**30 * points.memory_in_matrices
    figures = {"seconds": points.median_ms / 1000, "gib": gib}
    lines = []
    for silos in ASKED:
        line: dict[str, object] = {"silos": silos}
        for name, y in figures.items():
            some = y.loc[slice(*FITTED)]
            line[f"{name}_predicted"] = f"{predicted(points.silos[some.index], some, silos):.3g}"
            line[f"{name}_measured"] = f"{y[silos]:.3g}" if silos in y.index else ""
        lines.append(line)
    return pd.DataFrame(lines)


def main(path: Path, picture: Path, larger: Path) -> None:
    """Write the table and draw it, and write the costs of larger federations."""
    write(path, measure())
    draw(pd.read_csv(path), picture)
    scale(pd.read_csv(path)).to_csv(larger, index=False)


if __name__ == "__main__":
    typer.run(main)
