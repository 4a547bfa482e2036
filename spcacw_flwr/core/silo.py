"""What a silo computes for the target: mini-batch gradients, L, accuracy. Nothing is remembered.

The functions know a model and tensors, not methods. All silos of a node are one batched call, since
they share the model w_t (:mod:`spcacw_flwr.core.gradients`). Power iteration on Hessian-vector
products follows the paper's appendix (Practical Algorithmic Details, item 1; Pearlmutter 1994).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.func import functional_call

from partitions import Setting
from spcacw_flwr.alpha import spectral_norm
from spcacw_flwr.core.batches import MODEL_NOISE, POWER_ITERATION, stream
from spcacw_flwr.core.config import Config
from spcacw_flwr.core.gradients import SiloGradients, losses_of
from spcacw_flwr.core.models import Layout, make_model, parameters_of
from spcacw_flwr.core.stacked import Stacked, find_device

TEST_CHUNK = 4096
"""Samples of the test data that go through the model at a time."""


@dataclass(frozen=True)
class SiloInfo:
    """What a silo tells about itself when asked: never its data."""

    silo: int
    size: int
    label_counts: tuple[int, ...]
    group: float | None = None
    """True cluster or angle, where the setting knows it: for reports and the Oracle only."""
    oracle: tuple[int, ...] = ()
    """The silos of the same true cluster, where the setting knows it."""


@dataclass(frozen=True)
class Gradients:
    """Mini-batch gradients of k silos."""

    rows: Tensor
    """(k, d) float32; the pool's next call overwrites it."""
    losses: Tensor
    """(k,)"""
    norms: Tensor
    """(k,) before clipping: not finite where a gradient is not."""


def clip_rows(rows: Tensor, norms: Tensor, max_norm: float) -> None:
    """Scale each row, in place, to a norm of at most ``max_norm``; ``norms`` (k,) are theirs."""
    if bool((norms > max_norm).any()):
        rows.mul_((max_norm / norms).clamp_(max=1.0).unsqueeze(1))


def smoothness(
    loss: Callable[[Tensor], Tensor], vector: Tensor, start: Tensor, iterations: int
) -> float:
    """Return L: the largest |eigenvalue| of the Hessian of ``loss`` at w (READING.md 5).

    The gradient's graph is built once; each Hessian-vector product is one pass back through it
    (Pearlmutter 1994).
    """
    leaf = vector.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(leaf), leaf, create_graph=True)

    def product(v: Tensor) -> Tensor:
        return torch.autograd.grad(gradient @ v, leaf, retain_graph=True)[0]

    return spectral_norm(product, start, iterations)


class SiloPool:
    """The silos that one node holds (one in deployment, several if fewer nodes simulate all)."""

    def __init__(self, config: Config, setting: Setting, silos: Sequence[int]) -> None:
        self.config = config
        self.setting = setting
        self.silos = tuple(silos)
        self.device = find_device(config.run.device)
        self.model = make_model(
            setting.input_shape, setting.num_classes, config.training.hidden, config.run.seed
        ).to(self.device)
        self.layout = Layout.of(parameters_of(self.model))
        self.compute = SiloGradients(self.model, self.layout)
        self._rows = torch.empty(0, self.layout.size, device=self.device)

    @cached_property
    def data(self) -> Stacked:
        """The training data of all silos of the pool, on its device."""
        return Stacked(self.setting, self.silos, self.device)

    def initial_parameters(self) -> Tensor:
        """Return w_0 (d,), the same at every node that has the run's seed."""
        return self.layout.flatten(parameters_of(self.model))

    def describe(self) -> list[SiloInfo]:
        """Say which silos are held: id, size, label counts, and the true group where known."""
        setting = self.setting
        infos, groups = [], setting.groups
        for silo in self.silos:
            data = setting.train(silo)
            counts = tuple(data.label_counts(setting.num_classes).tolist())
            # Only the target's true cluster is ever used; with many silos, all are M² numbers.
            oracle = tuple(setting.oracle(silo)) if silo == self.config.run.target else ()
            infos.append(SiloInfo(silo, len(data.y), counts, groups[silo], oracle))
        return infos

    def gradients(self, vector: Tensor, round_: int, silos: Sequence[int]) -> Gradients:
        """Return the clipped gradients of ``silos`` at w = ``vector``."""
        config, vector = self.config, vector.to(self.device)
        if len(self._rows) < len(silos):
            self._rows = torch.empty(len(silos), self.layout.size, device=self.device)
        rows, losses = self._rows[: len(silos)], torch.empty(len(silos), device=self.device)
        seed, size = config.run.seed, config.training.batch_size
        for batch in self.data.batches(seed, round_, silos, size):
            everyone = len(batch.at) == len(silos)
            into = rows if everyone else rows.new_empty(len(batch.at), self.layout.size)
            asked = [silos[k] for k in batch.at]
            found = self.compute(vector, batch.x, batch.y, into, self._seed_of(asked, round_))
            if everyone:
                losses = found
            else:
                rows[batch.at], losses[batch.at] = into, found
        norms = torch.linalg.vector_norm(rows, dim=1)
        training = config.training
        if training.clip == "silo" and training.max_norm > 0:
            clip_rows(rows, norms, training.max_norm)
        return Gradients(rows, losses, norms)

    def _seed_of(self, silos: Sequence[int], round_: int) -> Callable[[int], int]:
        """Return the seed of what the model draws (dropout) for the k-th of ``silos``."""
        seed = self.config.run.seed
        return lambda k: int(stream(MODEL_NOISE, seed, silos[k], round_).integers(2**62))

    def smoothness(self, vector: Tensor, round_: int, silo: int) -> float:
        """Return L on the mini-batch of ``silo`` at this round.

        The model is in evaluation mode, so that dropout does not make the operator random.
        """
        config, vector = self.config, vector.to(self.device)
        seed, size = config.run.seed, config.training.batch_size
        (batch,) = self.data.batches(seed, round_, [silo], size)
        rng = stream(POWER_ITERATION, seed, silo, round_)
        start = torch.from_numpy(rng.standard_normal(self.layout.size)).float().to(self.device)

        def loss(w: Tensor) -> Tensor:
            outputs = functional_call(self.model, self.layout.unflatten(w), (batch.x[0],))
            return losses_of(outputs, batch.y[0]).mean()

        self.model.eval()
        try:
            return smoothness(loss, vector, start, config.spcacw.smoothness_iterations)
        finally:
            self.model.train()

    @torch.no_grad()
    def evaluate(self, vector: Tensor, silo: int) -> tuple[float, float]:
        """Return accuracy in percent and mean loss of w on the test data of ``silo``."""
        data = self.setting.test(silo)
        weights = self.layout.unflatten(vector.to(self.device))
        correct, loss = 0.0, 0.0
        self.model.eval()
        for x, y in zip(data.x.split(TEST_CHUNK), data.y.split(TEST_CHUNK), strict=True):
            x, y = x.to(self.device), y.to(self.device)
            outputs = functional_call(self.model, weights, (x,))
            correct += float((outputs.argmax(dim=-1) == y).sum())
            loss += float(losses_of(outputs, y).sum())
        self.model.train()
        return 100.0 * correct / data.y.numel(), loss / len(data.y)
