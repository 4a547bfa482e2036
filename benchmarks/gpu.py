"""What one round of SP-CACW costs on a GPU with the paper's largest network, part by part.

    python -m benchmarks.gpu benchmarks/gpu.csv --device cuda

20 silos of random images in the shape of CIFAR-100, VGG16, batches of 32: whole rounds of three
methods, and the parts of one, with convolutions in tf32 and in bfloat16. The silos' passes are
recorded as one CUDA graph, on 1 to 20 streams, or launched one by one; ``off`` is by how much the
recorded rows differ from those, in units of their norm.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import typer
from torch import Tensor

from benchmarks.workload import RandomImages, make_method, make_pool, medians, train, write
from spcacw_flwr.alpha import grams
from spcacw_flwr.silos import graphs
from spcacw_flwr.silos.pool import SiloPool, clip_rows

SILOS, STREAMS = 20, (1, 2, 5, 10, 20)
METHODS = "spcacw", "spcacw-plus", "local"


class RandomPictures(RandomImages):
    """Silos of ``samples-per-silo`` random images of 3 × 32 × 32 each."""

    num_classes, input_shape = 100, (3, 32, 32)
    defaults = RandomImages.defaults | {"model": "vgg16", "eta": 0.1}


def gradients(pool: SiloPool, vector: Tensor, rows: Tensor, streams: int) -> Callable[[], object]:
    """Return one call for all silos' gradients; ``streams`` 0 launches each kernel by itself."""
    (batch,) = pool.data.batches(1, pool.silos)
    recorded = graphs.Graphs(pool.model, pool.compute._one_gradient)
    recorded.on = streams > 0

    def work() -> None:
        graphs.STREAMS, pool.compute._graphs = streams, recorded
        pool.compute(vector, batch.x, batch.y, rows, batch.seed_of)

    work(), work(), work()  # from the third on it is recorded
    return work


def measure(device: str, precision: str, width: float, repetitions: int) -> Iterator[dict]:
    """Yield a row for each part of a round, and for whole rounds."""
    keys = {"setting": f"{__name__}:RandomPictures", "device": device, "precision": precision,
            "width": width, "smoothness": 0.0}  # fmt: skip
    pool = make_pool(SILOS, **keys)
    method = make_method(pool)
    train(pool, method, 1)
    rows = torch.randn(SILOS, pool.layout.size, device=pool.device)
    found = {n: torch.empty_like(rows) for n in (0, *STREAMS)}
    passes = {n: gradients(pool, method.parameters, into, n) for n, into in found.items()}
    off = {n: float((found[n] - found[0]).norm() / found[0].norm()) for n in found}
    replies = pool.answer(method.request(2)).replies
    low = precision == "bf16"
    works = {f"gradients, {n} streams" if n else "gradients, one by one": work
             for n, work in passes.items()} | {
        "cut batches": lambda: list(pool.data.batches(1, pool.silos)),
        "norms and clip": lambda: clip_rows(rows, torch.linalg.vector_norm(rows, dim=1), 1e9),
        "bias": lambda: method.bias.update(rows, pool.silos),
        "inner products": lambda: grams(method.bias.estimate, rows, low=low),
        "step": lambda: method.step(replies),
        "L, ten products": lambda: pool.smoothness(method.parameters, 1, 0),
        "test on 320": lambda: pool.evaluate(method.parameters, 0),
    }  # fmt: skip
    times = medians(works, repetitions, device)
    graphs.STREAMS = min(STREAMS, key=lambda n: times[f"gradients, {n} streams"])
    for name in METHODS:
        whole = make_pool(SILOS, **keys | {"method": name, "batch_size": 32})
        state, count = make_method(whole), 0

        def ten(whole=whole, state=state) -> None:
            nonlocal count
            for _ in range(10):
                count += 1
                train(whole, state, count)

        times |= {f"ten rounds of {name}": medians({"": ten}, repetitions, device)[""]}
    for part, ms in times.items():
        streams = part.removeprefix("gradients, ").partition(" ")[0]
        yield {
            "device": torch.cuda.get_device_name() if device == "cuda" else device,
            "precision": precision, "width": width, "part": part, "median_ms": f"{ms:.2f}",
            "off": f"{off[int(streams)]:.1e}" if streams.isdigit() else "",
        }  # fmt: skip


def main(
    path: Path, device: str = "cuda", width: float = 1.0, repetitions: int = 5,
    precisions: str = "tf32,bf16",
) -> None:  # fmt: skip
    """Write the table."""
    write(path, (row for precision in precisions.split(",")
                 for row in measure(device, precision, width, repetitions)))  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
