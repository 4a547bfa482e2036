"""The cost of a round of SP-CACW in process, part by part, compared with bare gradients.

    python -m benchmarks.engine benchmarks/engine.csv --threads 1,2

For each number of silos M: the bare ``vmap(grad)`` of all silos on ready batches, a whole round
(batches, gradients, clipping, bias, inner products, step), the whole round in bfloat16 and with a
sketch, and each part of the round. Each is repeated by itself, as rounds follow rounds, in blocks
that take turns. So none finds another's data in the caches, and all see the same changes of the
machine's speed. One thread is timed by the processor's time, which other programs change little;
several threads are timed by the clock. The floor is the arithmetic of gradients and inner products
at the rate of a large matrix product measured in the same run.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from statistics import median
from typing import Annotated

import torch
import typer
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from benchmarks.workload import Clock, clock_of, make_method, make_pool, medians, train, write
from spcacw_flwr.alpha import grams
from spcacw_flwr.engine.simulate import threads
from spcacw_flwr.methods.spcacw import SPCACWMethod
from spcacw_flwr.silos.pool import SiloPool, clip_rows

SKETCH = 4096
GEMM = 2048
BLOCKS = 7


def bare_gradients(pool: SiloPool, vector: torch.Tensor) -> Callable[[], object]:
    """Return ``vmap(grad)`` over ready batches."""
    (batch,) = pool.data.batches(1, pool.silos)
    named = pool.layout.unflatten(vector)
    gradient = grad(lambda p, x, y: cross_entropy(functional_call(pool.model, p, (x,)), y))
    batched = vmap(gradient, in_dims=(None, 0, 0))
    return lambda: batched(named, batch.x, batch.y)


def parts(pool: SiloPool, method: SPCACWMethod) -> dict[str, Callable[[], object]]:
    """Return the parts of a round as separate calls."""
    request = method.request(1)
    replies = pool.answer(request).replies
    (batch,) = pool.data.batches(1, pool.silos)
    rows, silos = torch.empty_like(replies.gradients), request.silos
    return {
        "cut batches": lambda: list(pool.data.batches(1, silos)),
        "gradients": lambda: pool.compute(method.parameters, batch.x, batch.y, rows, int),
        "norms and clip": lambda: clip_rows(rows, torch.linalg.vector_norm(rows, dim=1), 1.0),
        "bias": lambda: method.bias.update(rows, silos),
        "inner products": lambda: grams(method.bias.estimate, rows),
        "step": lambda: method.step(replies),
    }


def floor(num_silos: int, dimension: int, device: str, clock: Clock) -> float:
    """Return the milliseconds of a round's multiplications at the rate of a large matrix product.

    A gradient takes 4bd for the forward pass and the weights (b = 32 samples), and the hidden
    layer's 2b·64·10; each symmetric M × M product of d-vectors takes M(M + 1)d.
    """
    a = torch.rand(GEMM, GEMM, device=device)
    rate = 2 * GEMM**3 / medians({"gemm": lambda: a @ a}, 7, device, clock)["gemm"]
    gradients = num_silos * (4 * 32 * dimension + 2 * 32 * 640)
    return (gradients + 2 * num_silos * (num_silos + 1) * dimension) / rate


def measure(num_silos: int, device: str, repetitions: int, cores: int) -> dict[str, float]:
    """Return the medians of the blocks' medians in ms for M = ``num_silos``.

    ``vmap`` uses PyTorch's threads; a round uses the threads of a run.
    """
    clock = clock_of(device, cores)
    keys = {"device": device, "update_every": 1000}
    pool, small = make_pool(num_silos, **keys), make_pool(num_silos, sketch=SKETCH, **keys)
    half = make_pool(num_silos, precision="bf16", **keys)
    method, sketched, low = make_method(pool), make_method(small), make_method(half)
    single = parts(pool, method)
    works = {
        "bare vmap(grad)": bare_gradients(pool, method.parameters),
        # Always the first round: α is never solved in it.
        "whole round": lambda: train(pool, method, 1),
        "whole round, bf16": lambda: train(half, low, 1),
        f"whole round, sketch {SKETCH}": lambda: train(pool, sketched, 1),
        **single,
    }
    blocks: dict[str, list[float]] = {name: [] for name in works}
    repetitions *= max(1, 100 // num_silos)  # half of a shorter block would be warming up
    for _, (name, work) in product(range(BLOCKS), works.items()):
        ours = threads(cores, num_silos * pool.config.training.batch_size, pool)
        with nullcontext() if name.startswith("bare") else ours:
            blocks[name].append(medians({name: work}, repetitions, device, clock)[name])
    found = {name: median(values) for name, values in blocks.items()}
    found["the rest"] = found["whole round"] - sum(found[name] for name in single)
    found["arithmetic floor"] = floor(num_silos, pool.layout.size, device, clock)
    return found


def rows(cores: list[int], silos: list[int], device: str, repetitions: int) -> Iterator[dict]:
    """Yield a row per number of threads, of silos and part."""
    for number, num_silos in product(cores, silos):
        torch.set_num_threads(number)
        found = measure(num_silos, device, repetitions, number)
        bare, least = found["bare vmap(grad)"], found["arithmetic floor"]
        for part, ms in found.items():
            yield {
                "device": device, "threads": number, "silos": num_silos, "part": part,
                "median_ms": f"{ms:.3f}", "times_vmap": f"{ms / bare:.2f}",
                "times_floor": f"{ms / least:.2f}",
            }  # fmt: skip


def main(
    path: Path, threads: str = "1", silos: str = "7,20,89,500", device: str = "cpu",
    repetitions: Annotated[int, typer.Option(help="in a block of 100 silos; of fewer, more")] = 9,
) -> None:  # fmt: skip
    """Write the table."""
    cores, sizes = ([int(n) for n in text.split(",")] for text in (threads, silos))
    write(path, rows(cores, sizes, device, repetitions))


if __name__ == "__main__":
    typer.run(main)
