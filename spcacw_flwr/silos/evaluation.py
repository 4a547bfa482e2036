"""How good a model is for a silo, and BatchNorm's statistics, because silos keep no state.

In training, a model normalises each mini-batch by the batch's own statistics. Evaluation needs
fixed statistics, those of the silo that the model serves (READING 19: the target's own). They are
averages over batches of that silo's training data, computed at exactly the weights that are
evaluated: "precise BatchNorm" of Y. Wu and J. Johnson, Rethinking "Batch" in BatchNorm, arXiv
2105.07576, section 3. An exponential average over past rounds would need a state, and would mix in
the statistics of earlier weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spcacw_flwr.silos.layout import call
from spcacw_flwr.silos.metrics import METRICS, Found, standard_error, student
from spcacw_flwr.silos.setting import SiloData


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Keep a model in evaluation mode (no dropout), then put it back into training mode."""
    model.eval()
    try:
        yield
    finally:
        model.train()


@torch.no_grad()
def buffers_at(
    model: nn.Module, weights: dict[str, Tensor], batches: Iterable[Tensor]
) -> dict[str, Tensor]:
    """Return the model's buffers, those of BatchNorm as averages over ``batches``.

    The statistics are those at the parameters w = ``weights``, on inputs (b, …) without dropout.
    The model's own buffers do not change. Without running statistics, ``batches`` is not read.
    """
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    momenta: dict[_BatchNorm, float | None] = {}
    for name, norm in model.named_modules():
        if isinstance(norm, _BatchNorm) and norm.running_mean is not None:
            momenta[norm] = norm.momentum
            place = f"{name}." if name else ""
            buffers[f"{place}running_mean"].zero_()
            buffers[f"{place}running_var"].fill_(1)
            buffers[f"{place}num_batches_tracked"].zero_()
    if not momenta:
        return buffers
    with evaluating(model):
        try:
            for norm in momenta:
                norm.momentum = None  # for PyTorch this means a plain average
                norm.train()
            for x in batches:
                call(model, weights | buffers, x)
        finally:
            for norm, momentum in momenta.items():
                norm.momentum = momentum
    return buffers


CHUNK = 1024
"""Samples of the test data that go through the model at once."""


@torch.no_grad()
def scores_of(
    model: nn.Module, state: dict[str, Tensor], data: SiloData,
    scores: Mapping[str, Callable[[Tensor, Tensor], Tensor]], device: torch.device,
) -> dict[str, Tensor]:  # fmt: skip
    """Return the values of functions (outputs, labels) → (n,), with the model in evaluation mode.

    ``state`` holds the parameters and buffers to use.
    """
    parts: dict[str, list[Tensor]] = {name: [] for name in scores}
    with evaluating(model):
        for x, y in zip(data.x.split(CHUNK), data.y.split(CHUNK), strict=True):
            x, y = x.to(device), y.to(device)
            outputs = call(model, state, x)
            for name, score in scores.items():
                parts[name].append(score(outputs, y).cpu())
    return {name: torch.cat(some) for name, some in parts.items()}


CASES = "test-cases"
"""The name of the figure for the number of test cases."""


@dataclass(frozen=True)
class Cases:
    """The scores that some metrics give to each test case of a model."""

    scores: Mapping[str, Tensor]
    """Scores (n,) for each metric's name."""
    y: Tensor
    weight: Tensor | None

    def found(self, name: str) -> Found:
        """Return a metric; NaN if the model has diverged."""
        scores = self.scores[name].double()
        if not scores.isfinite().all():
            return Found(math.nan, torch.full_like(scores, math.nan), 1.0)
        return METRICS[name].find(scores, self.y, self.weight)

    def figures(self) -> dict[str, float]:
        """Return each metric and its 95 % interval: ``auroc``, ``auroc-low``, ``auroc-high``, …."""
        figures: dict[str, float] = {CASES: len(self.y)}
        for name in self.scores:
            found, scale = self.found(name), 100.0 if METRICS[name].percent else 1.0
            low, high = METRICS[name].interval(found)
            ends = {name: found.value, f"{name}-low": low, f"{name}-high": high}
            figures |= {key: scale * value for key, value in ends.items()}
        return figures

    def gains(self, other: Cases) -> dict[str, list[float]]:
        """Return how much better each metric is than another model's: [gain, low, high].

        Where a case is right or wrong, one extra case on which the models differ widens the
        interval, as in A. Agresti and Y. Min (Statistics in Medicine 24, 2005). It also widens the
        interval where two models put all cases in the same order. AUROC has Student's interval, of
        one degree of freedom less than the rarer class has cases.
        """
        gains = {}
        for name in self.scores:
            metric, ours, theirs = METRICS[name], self.found(name), other.found(name)
            scale = (100.0 if metric.percent else 1.0) * metric.sign
            ends = []
            for a, b in product(ours.signs, theirs.signs):
                error = standard_error(a * ours.influence - b * theirs.influence)
                one = ours.one if metric.percent or (metric.share and not error) else 0.0
                more = student(ours.freedom) * math.hypot(error, one) * abs(scale)
                gain = scale * (a * ours.value - b * theirs.value)
                ends += [gain - more, gain + more]
            gains[name] = [scale * (ours.value - theirs.value), min(ends), max(ends)]
        return gains
