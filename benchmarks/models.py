"""The cost of the gradients of all silos for the paper's larger networks.

    python -m benchmarks.models benchmarks/models.csv --threads 2

One round of 20 silos × 32 images (VGG16) and of 15 silos × 32 windows × 50 symbols (CharLSTM), on
ready random samples. Measured in turn within each repetition: our gradients, a row for each silo,
in float32 and in bfloat16; a loop of plain PyTorch over the silos, with the same rows as result;
one ordinary backward pass over the same samples, which gives a single gradient of all and shows the
cost of the arithmetic; and ten Hessian products of one silo, from which L is estimated in every
tenth round, by second derivatives and by differences of gradients. One thread is timed by the
processor's time.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, product
from pathlib import Path

import torch
import typer
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from benchmarks.workload import clock_of, medians, write
from spcacw_flwr.silos.curvature import (
    FrozenLoss,
    difference,
    gradients_of,
    hessian,
    twice_differentiable,
)
from spcacw_flwr.silos.evaluation import evaluating
from spcacw_flwr.silos.gradients import SiloGradients
from spcacw_flwr.silos.layout import Layout, parameters_of
from spcacw_flwr.silos.models import losses_of, make_model

BATCH = 32
Work = Callable[[], object]


def images(rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return 20 silos' batches in the shape of CIFAR-100."""
    x = torch.randn(20, BATCH, 3, 32, 32, generator=rng)
    return x, torch.randint(100, (20, BATCH), generator=rng)


def windows(rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return 15 silos' batches of 50 symbols, and the symbols that follow."""
    x, y = torch.randint(80, (2, 15, BATCH, 50), generator=rng)
    return x, y


COLUMNS = {"vgg16": (images, (3, 32, 32), 100), "char-lstm": (windows, (50,), 80)}


def ours(model: nn.Module, x: Tensor, y: Tensor, low: bool = False) -> Work:
    """Return one call for the gradients of all silos."""
    layout = Layout.of(parameters_of(model))
    compute = SiloGradients(model, layout, low=low)
    vector = layout.flatten(parameters_of(model))
    rows = torch.empty(len(x), layout.size, device=x.device)
    return lambda: compute(vector, x, y, rows, int)


def loop(model: nn.Module, x: Tensor, y: Tensor) -> Work:
    """Return a backward pass for each silo, in plain PyTorch."""
    parameters = list(model.parameters())
    rows = torch.empty(len(x), sum(p.numel() for p in parameters), device=x.device)

    def work() -> None:
        for k in range(len(x)):
            model.zero_grad()
            losses_of(model(x[k]), y[k]).mean().backward()
            rows[k] = parameters_to_vector([p.grad for p in parameters if p.grad is not None])

    return work


def together(model: nn.Module, x: Tensor, y: Tensor) -> Work:
    """Return one ordinary backward pass over the samples of all silos."""
    x, y = x.flatten(0, 1), y.flatten(0, 1)

    def work() -> None:
        model.zero_grad()
        losses_of(model(x), y).mean().backward()

    return work


def products(model: nn.Module, x: Tensor, y: Tensor, exact: bool) -> Work:
    """Return ten products with the Hessian of the first silo's loss."""
    layout = Layout.of(parameters_of(model))
    vector = layout.flatten(parameters_of(model))
    loss = FrozenLoss(model, layout, losses_of, vector, x[0], y[0])

    def work() -> None:
        with evaluating(model), twice_differentiable(model):
            derived = hessian(nn.Identity(), loss, vector) if exact else None
            product = derived or partial(difference, gradients_of(loss), vector)
            for _ in range(10):
                product(vector)

    return work


def measure(name: str, width: float, device: str, threads: int, repetitions: int) -> Iterator[dict]:
    """Yield a row per way to compute, of one network."""
    torch.set_num_threads(threads)
    samples, shape, classes = COLUMNS[name]
    clock = clock_of(device, threads)
    x, y = (part.to(device) for part in samples(torch.Generator().manual_seed(0)))
    model = make_model(shape, classes, 64, 0, name, width).to(device)
    low = partial(ours, low=True)
    ways = {
        "ours": ours, "ours, bf16": low, "loop over silos": loop, "one pooled pass": together,
        "ten products, second derivatives": partial(products, exact=True),
        "ten products, differences": partial(products, exact=False),
    }  # fmt: skip
    found = medians({way: f(model, x, y) for way, f in ways.items()}, repetitions, device, clock)
    for way, ms in found.items():
        yield {
            "device": device, "threads": threads, "width": width, "model": name, "way": way,
            "median_ms": f"{ms:.1f}", "times_pooled": f"{ms / found['one pooled pass']:.2f}",
        }  # fmt: skip


def main(
    path: Path, models: str = ",".join(COLUMNS), width: float = 1.0, threads: str = "1",
    device: str = "cpu", repetitions: int = 5,
) -> None:  # fmt: skip
    """Write the table."""
    cases = product(map(int, threads.split(",")), models.split(","))
    rows = (measure(name, width, device, cores, repetitions) for cores, name in cases)
    write(path, chain.from_iterable(rows))


if __name__ == "__main__":
    typer.run(main)
