"""What a silo computes for the target: mini-batch gradients, L, accuracy. Nothing is remembered.

The functions know a model and tensors, not methods. All silos of a node are one batched call:
since they share the model w_t, ``vmap`` over the silos' batches gives one row of G per silo.
Power iteration on Hessian-vector products follows the paper's appendix (Practical Algorithmic
Details, item 1; Pearlmutter 1994).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, jvp, vmap
from torch.nn.functional import cross_entropy

from partitions import Setting
from spcacw_flwr.alpha import spectral_norm
from spcacw_flwr.core.batches import POWER_ITERATION, batch_indices, stream
from spcacw_flwr.core.config import Config
from spcacw_flwr.core.models import Layout, make_model, parameters_of


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


def loss_of(model: nn.Module, parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Return the mean cross-entropy ℓ(w; ξ) of a batch."""
    return cross_entropy(functional_call(model, parameters, (x,)), y)


def per_silo_gradients(
    model: nn.Module, layout: Layout, vector: Tensor, x: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    """Return g_t^{(i)} = ∇ℓ(w_t; ξ_t^{(i)}) as rows (k, d), and the losses (k,).

    ``x`` is (k, b, …) and ``y`` (k, b): k silos with b samples each.
    """

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return loss_of(model, parameters, x, y)

    batched = vmap(grad_and_value(loss), in_dims=(None, 0, 0), randomness="different")
    gradients, losses = batched(layout.unflatten(vector), x, y)
    return layout.flatten(gradients, rows=len(x)), losses


def clip_rows(gradients: Tensor, max_norm: float) -> Tensor:
    """Scale each row, in place, to a norm of at most ``max_norm`` (0: leave as it is)."""
    if max_norm > 0:
        norms = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
        gradients.mul_((max_norm / norms).clamp_(max=1.0))
    return gradients


def smoothness(
    model: nn.Module, layout: Layout, vector: Tensor, x: Tensor, y: Tensor,
    start: Tensor, iterations: int,
) -> float:  # fmt: skip
    """Return L: the largest |eigenvalue| of the mini-batch Hessian at w (READING.md 5).

    The model is in evaluation mode, so that dropout does not make the operator random.
    """
    training = model.training
    model.eval()

    def gradient(vector: Tensor) -> Tensor:
        return grad(lambda v: loss_of(model, layout.unflatten(v), x, y))(vector)

    try:
        return spectral_norm(lambda v: jvp(gradient, (vector,), (v,))[1], start, iterations)
    finally:
        model.train(training)


class SiloPool:
    """The silos that one node holds (one in deployment, several if fewer nodes simulate all)."""

    def __init__(self, config: Config, setting: Setting, silos: Sequence[int]) -> None:
        self.config = config
        self.setting = setting
        self.silos = tuple(silos)
        self.model = make_model(
            setting.input_shape, setting.num_classes, config.training.hidden, config.run.seed
        )
        self.layout = Layout.of(parameters_of(self.model))

    def initial_parameters(self) -> Tensor:
        """Return w_0 (d,), the same at every node that has the run's seed."""
        return self.layout.flatten(parameters_of(self.model))

    def describe(self) -> list[SiloInfo]:
        """Say which silos are held: id, size, label counts, and the true group where known."""
        setting = self.setting
        infos = []
        for silo in self.silos:
            data = setting.train(silo)
            counts = tuple(data.label_counts(setting.num_classes).tolist())
            group, oracle = setting.groups[silo], tuple(setting.oracle(silo))
            infos.append(SiloInfo(silo, len(data.y), counts, group, oracle))
        return infos

    def _batch(self, silo: int, round_: int) -> tuple[Tensor, Tensor]:
        data, config = self.setting.train(silo), self.config
        rows = torch.from_numpy(
            batch_indices(config.run.seed, silo, round_, len(data.y), config.training.batch_size)
        )
        return data.x[rows], data.y[rows]

    def gradients(self, vector: Tensor, round_: int, silos: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the clipped gradients (k, d) and losses (k,) of ``silos`` at w = ``vector``.

        Silos whose batches have the same length share one batched call: a short last batch is
        never padded, so that models with batch statistics see only real samples.
        """
        batches = [self._batch(silo, round_) for silo in silos]
        lengths = [len(y) for _, y in batches]
        rows = torch.empty(len(batches), self.layout.size)
        losses = torch.empty(len(batches))
        for length in sorted(set(lengths)):
            members = [k for k, n in enumerate(lengths) if n == length]
            x = torch.stack([batches[k][0] for k in members])
            y = torch.stack([batches[k][1] for k in members])
            group, group_losses = per_silo_gradients(self.model, self.layout, vector, x, y)
            if len(members) == len(batches):
                rows, losses = group, group_losses
            else:
                rows[members], losses[members] = group, group_losses
        training = self.config.training
        return clip_rows(rows, training.max_norm if training.clip == "silo" else 0.0), losses

    def smoothness(self, vector: Tensor, round_: int, silo: int) -> float:
        """Return L on the mini-batch of ``silo`` at this round."""
        rng = stream(POWER_ITERATION, self.config.run.seed, silo, round_)
        start = torch.from_numpy(rng.standard_normal(self.layout.size)).float()
        return smoothness(
            self.model, self.layout, vector, *self._batch(silo, round_),
            start, self.config.spcacw.smoothness_iterations,
        )  # fmt: skip

    @torch.no_grad()
    def evaluate(self, vector: Tensor, silo: int) -> tuple[float, float]:
        """Return accuracy in percent and mean loss of w on the test data of ``silo``."""
        data = self.setting.test(silo)
        self.model.eval()
        logits = functional_call(self.model, self.layout.unflatten(vector), (data.x,))
        self.model.train()
        correct = int((logits.argmax(dim=-1) == data.y).sum())
        return 100.0 * correct / len(data.y), cross_entropy(logits, data.y).item()
