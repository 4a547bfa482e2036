"""The cost of a round of SP-CACW on a GPU with the paper's larger networks, part by part.

    python -m benchmarks.gpu benchmarks/gpu.csv
    python -m benchmarks.gpu benchmarks/gpu-lstm.csv --model char-lstm --silos 15,30

Silos have random images in the shape of CIFAR-100 for VGG16, or random symbols for CharLSTM, in
batches of 32. Measured are whole rounds of three methods, and the parts of a round of one. The
silos' passes are recorded as one CUDA graph, on 1 to 20 streams, or launched one by one, or are one
pass (CharLSTM). ``off`` is the distance from the rows launched one by one, in units of their norm.
"""

from collections.abc import Callable, Iterator
from itertools import chain, product
from pathlib import Path

import torch
import typer
from torch import Tensor

from benchmarks.workload import RandomImages, make_method, make_pool, medians, train, write
from spcacw_flwr.alpha import grams
from spcacw_flwr.silos import graphs
from spcacw_flwr.silos.pool import SiloPool, clip_rows
from spcacw_flwr.silos.setting import SiloData

STREAMS = 1, 2, 5, 10, 20
METHODS = "spcacw", "spcacw-plus", "local"


class RandomPictures(RandomImages):
    """Silos of ``samples-per-silo`` random images of 3 × 32 × 32 each."""

    num_classes, input_shape = 100, (3, 32, 32)
    defaults = RandomImages.defaults | {"model": "vgg16", "eta": 0.1}


class RandomTexts(RandomImages):
    """Silos of ``samples-per-silo`` random sequences of 50 symbols each."""

    num_classes, input_shape = 80, (50,)
    defaults = RandomImages.defaults | {"model": "char-lstm", "eta": 0.01}

    def train(self, silo: int) -> SiloData:
        """Return the silo's sequences, with a label at each position."""
        shape = 2, self.keys.samples_per_silo, *self.input_shape
        rng = torch.Generator().manual_seed(silo)
        return SiloData(*torch.randint(self.num_classes, shape, generator=rng))

    test = train


OF_MODEL = {"vgg16": RandomPictures, "char-lstm": RandomTexts}


def gradients(pool: SiloPool, vector: Tensor, rows: Tensor, streams: int) -> Callable[[], object]:
    """Return one call for all silos' gradients.

    ``streams`` 0 launches each kernel separately; -1 is one pass for all silos.
    """
    (batch,) = pool.data.batches(1, pool.silos)
    recorded, stack = graphs.Graphs(pool.model), pool.compute._stack
    recorded.on = streams != 0

    def work() -> None:
        graphs.STREAMS, pool.compute.graphs = max(1, streams), recorded
        pool.compute._stack = stack if streams < 0 else []
        pool.compute(vector, batch.x, batch.y, rows, batch.seed_of)

    work(), work(), work()  # from the third call on it is recorded
    return work


def measure(
    model: str, silos: int, device: str, precision: str, width: float, repetitions: int
) -> Iterator[dict]:
    """Yield a row for each part of a round, and for whole rounds."""
    keys = {"setting": f"{__name__}:{OF_MODEL[model].__name__}", "device": device,
            "precision": precision, "width": width, "smoothness": 0.0}  # fmt: skip
    pool = make_pool(silos, **keys)
    method = make_method(pool)
    train(pool, method, 1)
    rows, stack = torch.randn(silos, pool.layout.size, device=pool.device), pool.compute._stack
    names = {n: f"gradients, {n} streams" for n in STREAMS}
    names |= {0: "gradients, one by one"} | ({-1: "gradients, together"} if stack else {})  # last
    found = {n: torch.empty_like(rows) for n in names}
    passes = {n: gradients(pool, method.parameters, into, n) for n, into in found.items()}
    off = {n: float((found[n] - found[0]).norm() / found[0].norm()) for n in found}
    replies = pool.answer(method.request(2)).replies
    low = precision == "bf16"
    works = {names[n]: work for n, work in passes.items()} | {
        "cut batches": lambda: list(pool.data.batches(1, pool.silos)),
        "norms and clip": lambda: clip_rows(rows, torch.linalg.vector_norm(rows, dim=1), 1e9),
        "bias": lambda: method.bias.update(rows, pool.silos),
        "inner products": lambda: grams(method.bias.estimate, rows, low=low),
        "step": lambda: method.step(replies),
        "L, ten products": lambda: pool.smoothness(method.parameters, 1, 0),
        "test on 320": lambda: pool.evaluate(method.parameters, 0),
    }
    times = medians(works, repetitions, device)
    graphs.STREAMS = min(STREAMS, key=lambda n: times[names[n]])
    for name in METHODS:
        whole = make_pool(silos, **keys | {"method": name, "batch_size": 32})
        state, count = make_method(whole), 0

        def ten(whole=whole, state=state) -> None:
            nonlocal count
            for _ in range(10):
                count += 1
                train(whole, state, count)

        times |= {f"ten rounds of {name}": medians({"": ten}, repetitions, device)[""]}
    gaps = {names[n]: f"{gap:.1e}" for n, gap in off.items() if n}
    for part, ms in times.items():
        yield {
            "device": torch.cuda.get_device_name() if device == "cuda" else device,
            "precision": precision, "silos": silos, "width": width, "part": part,
            "median_ms": f"{ms:.2f}", "off": gaps.get(part, ""),
        }  # fmt: skip


def main(
    path: Path, model: str = "vgg16", silos: str = "20", device: str = "cuda", width: float = 1.0,
    repetitions: int = 5, precisions: str = "tf32,bf16",
) -> None:  # fmt: skip
    """Write the table."""
    cases = product(precisions.split(","), map(int, silos.split(",")))
    of = (measure(model, count, device, one, width, repetitions) for one, count in cases)
    write(path, chain.from_iterable(of))


if __name__ == "__main__":
    typer.run(main)
