"""What a round of SP-CACW costs beside the gradients, as ratios measured side by side in one run.

    python benchmarks/round.py benchmarks/round.csv

For each number of silos M, on random data in the shape of the paper's MNIST columns (MLP 784-64-10,
batches of 32, one thread): the bare ``vmap(grad)`` of all silos, the silo function that wraps it
(batches, flattening, clipping), and the method (bias, Gram products, step), in turn within each
repetition; the table has their medians in ms and as multiples of the bare gradient.
"""

from __future__ import annotations

import csv
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from partitions import Setting, SiloData
from spcacw_flwr.core.config import Config
from spcacw_flwr.core.loop import answer
from spcacw_flwr.core.method import Federation
from spcacw_flwr.core.registry import method_class
from spcacw_flwr.core.silo import SiloPool

SILOS = (7, 20, 89)
REPETITIONS = 31


class RandomImages(Setting):
    """Silos of 320 random images of 28 × 28 each."""

    name, num_classes, input_shape, group_kind = "random", 10, (1, 28, 28), "cluster"

    @property
    def groups(self) -> list[float]:
        """One cluster."""
        return [0.0] * self.keys.silos

    def prepare(self) -> None:
        """Nothing to prepare."""

    def train(self, silo: int) -> SiloData:
        """Return the silo's random images."""
        rng = torch.Generator().manual_seed(silo)
        x = torch.rand(320, 1, 28, 28, generator=rng)
        return SiloData(x, torch.randint(10, (320,), generator=rng))

    test = train


def milliseconds(work: Callable[[], object]) -> float:
    """Time one call."""
    start = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - start)


def measure(num_silos: int) -> dict[str, float]:
    """Return the medians for M = ``num_silos``."""
    config = Config.from_keys(smoothness=1.0, silos=num_silos)
    setting = RandomImages(config.partition, 0)
    kept = {i: setting.train(i) for i in range(num_silos)}
    setting.train = kept.__getitem__  # type: ignore[method-assign]
    pool = SiloPool(config, setting, range(num_silos))
    vector = pool.initial_parameters()
    federation = Federation(tuple(pool.describe()), 0, config.training.batch_size)
    method = method_class("spcacw")(config, federation, vector)
    x = torch.stack([kept[i].x[:32] for i in range(num_silos)])
    y = torch.stack([kept[i].y[:32] for i in range(num_silos)])
    named = pool.layout.unflatten(vector)
    bare = vmap(
        grad(lambda p, x, y: cross_entropy(functional_call(pool.model, p, (x,)), y)),
        in_dims=(None, 0, 0),
    )
    request = method.request(1)
    replies = answer(pool, method, request)
    works: dict[str, Callable[[], object]] = {
        "bare gradients": lambda: bare(named, x, y),
        "silo functions": lambda: pool.gradients(vector, 1, request.silos),
        "method": lambda: method.fold(request, replies),
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()  # the first call of each compiles and allocates
    for _ in range(REPETITIONS):
        for name, work in works.items():
            times[name].append(milliseconds(work))
    return {name: statistics.median(values) for name, values in times.items()}


def main(path: Path) -> None:
    """Write the table."""
    torch.set_num_threads(1)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["silos", "part", "median_ms", "multiple_of_bare_gradients"])
        for num_silos in SILOS:
            medians = measure(num_silos)
            for part, median in medians.items():
                ratio = median / medians["bare gradients"]
                writer.writerow([num_silos, part, f"{median:.3f}", f"{ratio:.2f}"])
    print(path.read_text())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
