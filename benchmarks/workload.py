"""The workload that the benchmarks time: silos of random images in the shape of MNIST.

One round is one gradient per silo at the shared model (MLP 784-64-10, batches of 32) and the rest
of SP-CACW's round.
"""

import csv
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from spcacw_flwr.config.config import Config
from spcacw_flwr.engine.simulate import method_for
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.setting import Setting, SiloData
from spcacw_flwr.silos.setup import setting_of


class RandomImages(Setting):
    """``silos`` silos of ``samples-per-silo`` random images of 28 × 28 each."""

    name, num_classes, input_shape, group_kind = "random", 10, (1, 28, 28), "cluster"
    defaults = {"samples_per_silo": 320}  # noqa: RUF012

    @property
    def groups(self) -> list[float]:
        """One cluster."""
        return [0.0] * self.keys.silos

    def prepare(self) -> None:
        """Do nothing: there is nothing to prepare."""

    def train(self, silo: int) -> SiloData:
        """Return the silo's random images."""
        rng, size = torch.Generator().manual_seed(silo), self.keys.samples_per_silo
        x = torch.rand(size, *self.input_shape, generator=rng)
        return SiloData(x, torch.randint(self.num_classes, (size,), generator=rng))

    test = train


def make_config(silos: int, **keys: object) -> Config:
    """Return a run's configuration; L is given, not estimated, unless ``keys`` say otherwise."""
    common = {"setting": f"{__name__}:RandomImages", "method": "spcacw", "smoothness": 1.0}
    return Config.from_keys(silos=silos, **(common | keys))


def make_pool(num_silos: int, **keys: object) -> SiloPool:
    """Return M = ``num_silos`` silos."""
    config = make_config(num_silos, **keys)
    return SiloPool(config, setting_of(config), range(num_silos))


def make_method(pool: SiloPool) -> Any:
    """Return the state of the method before the first round."""
    return method_for(pool.config, pool.describe(), pool)


def train(pool: SiloPool, method: Any, round_: int) -> None:
    """Train for a round, with a method that asks the silos once per round."""
    steps = method.round(round_)
    with suppress(StopIteration):
        steps.send(pool.answer(next(steps)).replies)


Clock = Callable[[], float]


def clock_of(device: str, threads: int) -> Clock:
    """Return the clock: for one CPU thread the processor's, which other programs change little."""
    return time.process_time if device == "cpu" and threads == 1 else time.perf_counter


def medians(
    works: Mapping[str, Callable[[], object]], repetitions: int, device: str = "cpu",
    clock: Clock = time.perf_counter,
) -> dict[str, float]:  # fmt: skip
    """Return the median milliseconds of each work; each repetition runs all works in turn."""
    for work in works.values():
        work()  # the first call of each allocates
        work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repetitions):
        for name, work in works.items():
            start = clock()
            work()
            if device != "cpu":
                torch.cuda.synchronize()
            times[name].append(1000 * (clock() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def write(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Write rows as CSV, with their keys as columns, and print them, each as soon as it comes."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        for k, row in enumerate(rows):
            for line in [[*row]] * (k == 0) + [[*row.values()]]:
                writer.writerow(line)
                print(*line, sep="\t", flush=True)
            file.flush()
