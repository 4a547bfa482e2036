"""The gradients of all silos at one shared model, by the fastest way that the model allows.

Three ways, one result (up to the order of float32 sums):

*pooled*
    one pass of all silos' samples through the model, see :mod:`spcacw_flwr.silos.layers`; for
    models that are sequences of known layers;
*vmap*
    ``torch.func.vmap`` over the silos' batches, for any model that it can trace;
*loop*
    a silo at a time, for the rest: models with a ``forward`` of their own that draw random numbers,
    or use operators without a batching rule (recurrent layers).

A silo's random numbers come from a seed of its own in each of the ways that allow them, and its
BatchNorm statistics from its own batch in all three. On a GPU the loop draws there, and so draws
other numbers than a pooled pass, which draws on the CPU.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from spcacw_flwr.alpha.crew import shares, spread
from spcacw_flwr.silos.chain import chain_pass, is_chain
from spcacw_flwr.silos.chain_hessian import ChainHessian
from spcacw_flwr.silos.layers import bytes_kept, can_pool, pooled_pass, steps_of
from spcacw_flwr.silos.losses import Loss, losses_and_gradient, losses_of, mean_by_silo
from spcacw_flwr.silos.models import Layout
from spcacw_flwr.silos.stateless import call

log = logging.getLogger(__name__)

ROOM_CPU, ROOM = 256 << 20, 2 << 30
"""Bytes that a pooled pass may keep for its backward pass, on a CPU and on another device.

Silos that need more go through the model in groups: that bounds the memory, and on a CPU it is
faster as well (of larger activations, each page is handed out anew by the system in each round).
"""


def _later(seed_of: Callable[[int], int], start: int, k: int) -> int:
    return seed_of(start + k)


class SiloGradients:
    """Computes g^{(i)} = ∇ℓ(w; ξ^{(i)}) for many silos at once.

    Parameters
    ----------
    model : nn.Module
        The architecture, in training mode; its own parameters are not used, its buffers (running
        statistics of BatchNorm) are read but never written.
    layout : Layout
        How its parameters lie in a vector.
    loss : callable
        Outputs and labels → the loss of each sample.

    Attributes
    ----------
    way : str
        "pooled", "vmap" or "loop"; "vmap" becomes "loop" when the model turns out not to allow it.
    """

    def __init__(self, model: nn.Module, layout: Layout, loss: Loss = losses_of) -> None:
        self.model, self.layout, self.loss = model, layout, loss
        self.way = "pooled" if can_pool(model) else "vmap"
        self._steps = steps_of(model) if self.way == "pooled" else []
        self._chain = self.way == "pooled" and is_chain(self._steps)
        self._kept: float | None = None

    @property
    def splits(self) -> bool:
        """Whether threads may each compute some of the silos (:mod:`spcacw_flwr.alpha.crew`)."""
        return self._chain

    def __call__(
        self, vector: Tensor, x: Tensor, y: Tensor, rows: Tensor, seed_of: Callable[[int], int]
    ) -> Tensor:
        """Write the gradients of k silos into ``rows`` and return their losses (k,).

        Parameters
        ----------
        vector : Tensor
            (d,) the shared model w, or (k, d): a model for each silo. Silos with models of their
            own come one by one, but for plain perceptrons (:mod:`spcacw_flwr.silos.chain`).
        x, y : Tensor
            (k, b, …) and (k, b): a mini-batch of b samples for each silo.
        rows : Tensor
            (k, d), overwritten.
        seed_of : callable
            The seed of the random numbers that silo 0…k−1 draws, for models with dropout.
        """
        if vector.ndim == 2 and not self._chain:
            return torch.cat([
                self(vector[k], x[k : k + 1], y[k : k + 1], rows[k : k + 1],
                     partial(_later, seed_of, k))
                for k in range(len(x))
            ])  # fmt: skip
        if self.way == "pooled":
            return self._pooled(vector, x, y, rows, seed_of)
        if self.way == "vmap":
            try:
                return self._vmap(vector, x, y, rows)
            except RuntimeError as error:
                reason = str(error).strip().splitlines()[0]
                name = type(self.model).__name__
                log.warning("%s cannot be batched over silos, so that they are computed one by "
                            "one, with the same result (%s)", name, reason)  # fmt: skip
                self.way = "loop"
        return self._loop(vector, x, y, rows, seed_of)

    @torch.no_grad()
    def losses(self, vector: Tensor, x: Tensor, y: Tensor, seed_of: Callable[[int], int]) -> Tensor:
        """Return the losses (k,) of k silos; parameters as in a call."""
        if vector.ndim == 2:
            return torch.cat([
                self.losses(vector[k], x[k : k + 1], y[k : k + 1], partial(_later, seed_of, k))
                for k in range(len(x))
            ])  # fmt: skip
        if self.way == "pooled":
            weights, losses = self.layout.unflatten(vector), []
            size = self._group_size(vector, x)
            for start in range(0, len(x), size):
                samples, seeds = x[start : start + size], partial(_later, seed_of, start)
                labels = y[start : start + size].flatten(0, 1)
                outputs = pooled_pass(
                    self._steps, weights, weights, samples.flatten(0, 1), len(samples), seeds
                )
                losses.append(mean_by_silo(self.loss(outputs, labels), len(samples)))
            return torch.cat(losses)
        return torch.stack([self._one_loss(vector, x[k], y[k], seed_of(k)) for k in range(len(x))])

    def hessian(self, vector: Tensor, x: Tensor, y: Tensor) -> ChainHessian | None:
        """Return v ↦ ∇²ℓ(w) v on samples (b, …), where it is written out; None elsewhere."""
        if self._chain and self.loss is losses_of and y.ndim == 1:
            return ChainHessian(self._steps, self.layout, vector, x, y)
        return None

    def _one_loss(self, vector: Tensor, x: Tensor, y: Tensor, seed: int) -> Tensor:
        """Return the loss of one silo, drawing from ``seed``, on copies of the buffers."""
        with torch.random.fork_rng(devices=[vector.device] if vector.is_cuda else []):
            torch.manual_seed(seed)
            buffers = {name: b.clone() for name, b in self.model.named_buffers()}
            return self._loss(self.layout.unflatten(vector), buffers, x, y)

    def _pooled(
        self, vector: Tensor, x: Tensor, y: Tensor, rows: Tensor, seed_of: Callable[[int], int]
    ) -> Tensor:
        parts = shares(len(x), self._group_size(vector, x))
        if len(parts) == 1:
            return self._pooled_group(vector, x, y, rows, seed_of)

        def group(part: slice) -> Tensor:
            here = vector[part] if vector.ndim == 2 else vector
            seeds = partial(_later, seed_of, part.start)
            return self._pooled_group(here, x[part], y[part], rows[part], seeds)

        return torch.cat(spread(group, parts) if self.splits else [*map(group, parts)])

    def _group_size(self, vector: Tensor, x: Tensor) -> int:
        if self._kept is None:  # of a sample; two, for BatchNorm may be among the layers
            few, model = x[0, :2], vector[0] if vector.ndim == 2 else vector
            self._kept = bytes_kept(self._steps, self.layout.unflatten(model), few) / len(few)
        room = ROOM_CPU if x.device.type == "cpu" else ROOM
        return max(1, int(room / max(1.0, self._kept * x.shape[1])))

    def _pooled_group(
        self, vector: Tensor, x: Tensor, y: Tensor, rows: Tensor, seed_of: Callable[[int], int]
    ) -> Tensor:
        weights, into = self.layout.unflatten(vector), self.layout.unflatten(rows)
        samples, labels, silos = x.flatten(0, 1), y.flatten(0, 1), len(x)
        if self._chain:
            loss_of = partial(losses_and_gradient, self.loss, y=labels, silos=silos)
            return chain_pass(self._steps, weights, into, samples, silos, loss_of)
        outputs = pooled_pass(self._steps, weights, into, samples, silos, seed_of)
        losses = mean_by_silo(self.loss(outputs, labels), silos)
        losses.sum().backward()
        return losses.detach()

    def _loss(
        self, weights: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor
    ) -> Tensor:
        return self.loss(call(self.model, weights | buffers, x), y).mean()

    def _vmap(self, vector: Tensor, x: Tensor, y: Tensor, rows: Tensor) -> Tensor:
        # Buffers that a model updates in place must be one per silo; the copies are thrown away.
        buffers = {n: b.expand(len(x), *b.shape).clone() for n, b in self.model.named_buffers()}
        batched = vmap(grad_and_value(self._loss), in_dims=(None, 0, 0, 0), randomness="error")
        gradients, losses = batched(self.layout.unflatten(vector), buffers, x, y)
        for name, into in self.layout.unflatten(rows).items():
            into.copy_(gradients[name])
        return losses

    def _loop(
        self, vector: Tensor, x: Tensor, y: Tensor, rows: Tensor, seed_of: Callable[[int], int]
    ) -> Tensor:
        leaf, losses = vector.detach().requires_grad_(), []
        for k in range(len(x)):
            loss = self._one_loss(leaf, x[k], y[k], seed_of(k))
            rows[k] = torch.autograd.grad(loss, leaf)[0]
            losses.append(loss.detach())
        return torch.stack(losses)
