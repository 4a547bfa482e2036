"""The gradients of all silos at one shared model, by the fastest way that the model allows.

Three ways, one result (up to the order of float32 sums):

*chain*
    all silos' samples go through a plain perceptron in one pass (``chain.py``);
*vmap*
    ``torch.func.vmap`` over the silos' batches, for small models that vmap can trace;
*loop*
    one silo at a time, for all other models. With convolutions and recurrent layers the loop is as
    fast on a CPU as one pass that keeps a gradient per silo (benchmarks/models.csv: VGG16 8.2
    against 8.3 s, CharLSTM 1.0 against 1.0 s), and it bounds the memory.

On a GPU, all silos go through a recurrent network in one pass (``stacked.py``), and passes are
recorded (``graphs.py``).

A silo's random numbers come from its own seed, its BatchNorm statistics from its own batch.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from spcacw_flwr.alpha.crew import shares, spread
from spcacw_flwr.alpha.products import low_precision
from spcacw_flwr.silos.chain import bytes_kept, chain_pass, forward, mean_by_silo, steps_of
from spcacw_flwr.silos.curvature import SHORT, ChainHessian, difference
from spcacw_flwr.silos.graphs import Graphs, Recorded, Replay
from spcacw_flwr.silos.layout import Layout, call
from spcacw_flwr.silos.models import Loss, losses_of
from spcacw_flwr.silos.stacked import stack_of, stacked_losses
from spcacw_flwr.silos.streams import drawing

log = logging.getLogger(__name__)

ROOM = 256 << 20
"""Bytes that a pass of a chain may keep for its reverse pass; silos that need more go in groups.

Groups are also faster: for larger activations the system allocates every page again each round.
"""
ONE_BY_ONE = (nn.modules.conv._ConvNd, nn.RNNBase, nn.modules.dropout._DropoutNd)
"""Layers that vmap cannot batch, or batches slowly."""
TOGETHER = 64
"""The most silos in one pass through a recurrent network: these fill a GPU."""


def _each(seed_of: Callable[[int], int], silos: int) -> list[Callable[[int], int]]:
    """Return, for each silo, the ``seed_of`` to use when the silo is computed alone."""
    return [lambda _, k=k: seed_of(k) for k in range(silos)]  # type: ignore[misc]


class SiloGradients:
    """Computes g^{(i)} = ∇ℓ(w; ξ^{(i)}) for many silos at once.

    The model is in training mode. Its own parameters are not used; its buffers (running statistics
    of BatchNorm) are read but never written. ``way`` is "chain", "vmap" or "loop"; "vmap" becomes
    "loop" if the model does not allow it. With ``low``, the network multiplies in bfloat16; the
    loss and the gradients are float32.
    """

    def __init__(
        self, model: nn.Module, layout: Layout, loss: Loss = losses_of, low: bool = False
    ) -> None:
        self.model, self.layout, self.loss, self.low = model, layout, loss, low
        self._steps = steps_of(model)
        alone = any(isinstance(module, ONE_BY_ONE) for module in model.modules())
        self.way = "chain" if self._steps else "loop" if alone else "vmap"
        self._stack, self._longest = stack_of(model), 0
        self.graphs = Graphs(model)

    def __call__(
        self, vector: Tensor, x: Tensor, y: Tensor, rows: Tensor, seed_of: Callable[[int], int]
    ) -> Tensor:
        """Write the gradients of k silos into ``rows`` and return their losses (k,).

        ``vector`` is the shared model w (d,), or (k, d), a model for each silo. Such silos are
        computed one by one, except with plain perceptrons and with recurrent networks on a GPU.
        ``x`` (k, b, …) and ``y`` (k, b) hold a mini-batch for each; ``rows`` is (k, d). Silo j in
        0…k−1 draws its random numbers (dropout) from the seed ``seed_of(j)``.
        """
        if self._stack and vector.is_cuda:
            one = self._low_pass if self.low else self._stack_pass
            return self._together(one, vector, x, y, rows)
        if vector.ndim == 2 and self.way != "chain":
            alone = x.split(1), y.split(1), rows.split(1), _each(seed_of, len(x))
            return torch.cat([*map(self, vector, *alone)])
        if self.way == "chain":
            return self._in_groups(vector, x, y, rows)
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
        """Return the losses (k,) of k silos; parameters as in ``__call__``."""
        if vector.ndim == 2:
            alone = x.split(1), y.split(1), _each(seed_of, len(x))
            return torch.cat([*map(self.losses, vector, *alone)])
        if self.way == "chain":
            with low_precision(self.low):
                outputs = forward(self._steps, self.layout.unflatten(vector), x.flatten(0, 1))[-1]
            return mean_by_silo(self.loss(outputs, y.flatten(0, 1)), len(x))
        return torch.stack([*self._in_turn(self._one_loss, vector, x, y, seed_of)])

    def hessian(self, vector: Tensor, x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor] | None:
        """Return v ↦ ∇²ℓ(w) v on samples (b, …), or None where this class has none."""
        if self._steps and self.loss is losses_of and y.ndim == 1:
            return ChainHessian(self._steps, self.layout, vector, x, y)
        if self._stack and vector.is_cuda:
            both = partial(self._at_both, torch.stack((x, x)), torch.stack((y, y)))
            return partial(difference, both, vector, relative=SHORT)
        return None

    def _at_both(self, x: Tensor, y: Tensor, points: Tensor) -> Tensor:
        """Return a recurrent network's gradients (2, d) at two models; x, y hold a batch twice."""
        rows = torch.empty_like(points)
        self._together(self._stack_pass, points, x, y, rows)
        return rows

    def _in_turn(
        self, one: Callable[..., Any], vector: Tensor, x: Tensor, y: Tensor,
        seed_of: Callable[[int], int],
    ) -> Iterator[Any]:  # fmt: skip
        """Yield ``one`` (w, x, y) of each silo, with its seed; other random state is unchanged."""
        for k in range(len(x)):
            with drawing(seed_of(k), vector.device):
                found = one(vector, x[k], y[k])
            yield found

    def _one_loss(self, vector: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of one silo, on copies of the buffers."""
        buffers = {name: b.clone() for name, b in self.model.named_buffers()}
        return self._loss(self.layout.unflatten(vector), buffers, x, y)

    def _one_gradient(self, vector: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient (d,) and the loss of one silo."""
        leaf = vector.detach().requires_grad_()
        loss = self._one_loss(leaf, x, y)
        return torch.autograd.grad(loss, leaf)[0], loss.detach()

    def _stack_pass(
        self, vector: Tensor, x: Tensor, y: Tensor, counts: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return gradients (k, d) and losses (k,) on the first ``counts`` samples of k silos."""
        leaf = vector.detach().expand(len(x), -1).contiguous().requires_grad_()
        weights, alike = self.layout.unflatten(leaf), vector.ndim == 1
        losses = stacked_losses(self._stack, weights, x, y, counts, self.loss, alike)
        return torch.autograd.grad(losses.sum(), leaf)[0], losses.detach()

    def _low_pass(
        self, vector: Tensor, x: Tensor, y: Tensor, counts: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Do the same as :meth:`_stack_pass`, with all except the loss in bfloat16."""
        return self._stack_pass(vector.bfloat16(), x, y, counts)

    def _together(
        self, one: Callable[..., Any], vector: Tensor, x: Tensor, y: Tensor, rows: Tensor
    ) -> Tensor:
        """Write the gradients of a recurrent network, which draws no random numbers.

        A short last batch is filled up to the full length, so that a recorded pass fits it. Single
        samples are not filled up: they are the per-sample batches of private silos.
        """
        size = x.shape[1]
        counts, losses = torch.full((len(x),), float(size), device=x.device), []
        self._longest = max(self._longest, size)
        if 1 < size < self._longest:
            filled = [*range(size), *[0] * (self._longest - size)]
            x, y = x[:, filled], y[:, filled]
        for first in range(0, len(x), TOGETHER):
            part = slice(first, first + TOGETHER)
            batch = vector[part] if vector.ndim == 2 else vector, x[part], y[part], counts[part]
            graph = self.graphs.of(Replay, one, *batch)
            found, some = (graph or one)(*batch)
            count = len(batch[1])  # a graph may hold more silos; its next call overwrites
            rows[part].copy_(found[:count])
            losses.append(some[:count].clone())
        return torch.cat(losses)

    def _in_groups(self, vector: Tensor, x: Tensor, y: Tensor, rows: Tensor) -> Tensor:
        """Write the gradients of a chain, with the silos in groups that fit the memory."""
        parts = shares(len(x), max(1, ROOM // max(1, bytes_kept(self._steps) * x.shape[1])))

        def group(part: slice) -> Tensor:
            here = vector[part] if vector.ndim == 2 else vector
            weights, into = self.layout.unflatten(here), self.layout.unflatten(rows[part])
            return chain_pass(self._steps, weights, into, x[part], y[part], self.loss)

        with low_precision(self.low):
            return torch.cat(spread(group, parts)) if len(parts) > 1 else group(parts[0])

    def _loss(
        self, weights: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor
    ) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16) if self.low else nullcontext():
            outputs = call(self.model, weights | buffers, x)
        return self.loss(outputs.float(), y).mean()

    def _vmap(self, vector: Tensor, x: Tensor, y: Tensor, rows: Tensor) -> Tensor:
        # A model may update buffers in place, so each silo has a copy, which is thrown away.
        buffers = {n: b.expand(len(x), *b.shape).clone() for n, b in self.model.named_buffers()}
        batched = vmap(grad_and_value(self._loss), in_dims=(None, 0, 0, 0), randomness="error")
        gradients, losses = batched(self.layout.unflatten(vector), buffers, x, y)
        for name, into in self.layout.unflatten(rows).items():
            into.copy_(gradients[name])
        return losses

    def _loop(
        self, vector: Tensor, x: Tensor, y: Tensor, rows: Tensor, seed_of: Callable[[int], int]
    ) -> Tensor:
        if graph := self.graphs.of(Recorded, self._one_gradient, vector, x, y):
            return graph(vector, x, y, rows, seed_of)
        losses = []
        each = self._in_turn(self._one_gradient, vector, x, y, seed_of)
        for row, (gradient, loss) in zip(rows, each, strict=True):
            row.copy_(gradient)
            losses.append(loss)
        return torch.stack(losses)
