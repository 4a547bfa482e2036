"""Hessian-vector products of the target's loss, for the power iteration that finds L.

The paper's appendix, Practical Algorithmic Details, item 1; B. A. Pearlmutter, Fast exact
multiplication by the Hessian, Neural Computation 6, 1994. The loss is that of one mini-batch, with
the model in evaluation mode (READING.md 5), because dropout would make the operator random.
BatchNorm's statistics are those of the mini-batch at w, held fixed. So the loss whose Hessian is
taken is a mean of functions of single samples.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, jvp
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear

from spcacw_flwr.silos.chain import Step, back, first_trained, forward
from spcacw_flwr.silos.evaluation import buffers_at
from spcacw_flwr.silos.graphs import Graphs
from spcacw_flwr.silos.layout import Layout, call
from spcacw_flwr.silos.models import Loss

log = logging.getLogger(__name__)


class FrozenLoss:
    """The mean loss of samples as a function of w, with the statistics of x at ``vector``.

    Call it while the model is in evaluation mode.
    """

    def __init__(
        self, model: nn.Module, layout: Layout, loss: Loss, vector: Tensor, x: Tensor, y: Tensor
    ) -> None:
        self.model, self.layout, self.loss = model, layout, loss
        buffers = buffers_at(model, layout.unflatten(vector), [x])
        self.names, self.inputs = [*buffers], (x, y, vector, *buffers.values())

    def __call__(self, w: Tensor) -> Tensor:
        """Return the loss at w (d,)."""
        x, y, _, *values = self.inputs
        return self._at(w, x, y, values)

    def product(self, x: Tensor, y: Tensor, vector: Tensor, *more: Tensor) -> Tensor:
        """Return Hv at w = ``vector``; ``more`` holds the values of buffers, then v."""
        *values, v = more
        gradient = grad(lambda w: self._at(w, x, y, values))
        return jvp(gradient, (vector,), (v,))[1]

    def _at(self, w: Tensor, x: Tensor, y: Tensor, values: Sequence[Tensor]) -> Tensor:
        state = self.layout.unflatten(w) | dict(zip(self.names, values, strict=True))
        return self.loss(call(self.model, state, x), y).mean()


@contextmanager
def twice_differentiable(model: nn.Module) -> Iterator[None]:
    """Replace operators without second derivatives: cuDNN's recurrent layers and fast attention.

    Attention is then computed by its formula, with the same result. Products are in float32,
    because in tf32 two points a short step apart are the same.
    """
    recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    backends: Any = torch.backends
    before = backends.cudnn.enabled, backends.fp32_precision
    backends.cudnn.enabled = before[0] and not recurrent  # cudnn.flags() would change tf32, too
    backends.fp32_precision = "ieee"
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        backends.cudnn.enabled, backends.fp32_precision = before


SMOOTH = (nn.LSTM, nn.GRU, nn.Linear, nn.Embedding, nn.Dropout, nn.Flatten, nn.Sequential)
"""Layers without a kink: differences are near the second derivative even for short steps."""


def by_differences(model: nn.Module) -> bool:
    """Say whether differences are as good as second derivatives, and faster: recurrent models.

    PyTorch derives these twice step by step, in three times the time (benchmarks/precision.csv).
    """
    modules = [*model.modules()]
    recurrent = any(isinstance(module, nn.RNNBase) for module in modules)
    return recurrent and all(isinstance(module, SMOOTH) for module in modules)


def hessian(
    model: nn.Module, loss: Callable[[Tensor], Tensor], vector: Tensor, graphs: Graphs | None = None
) -> Callable[[Tensor], Tensor]:
    """Return v ↦ Hv, with the Hessian H of a model's ``loss`` at w.

    The gradient's graph is built once; each product is one pass back through it. On a GPU the whole
    product is one of the recorded ``graphs``. For recurrent models, and where PyTorch has no second
    derivative of an operator, products are differences of gradients.
    """
    if by_differences(model):
        return partial(difference, gradients_of(loss), vector, relative=SHORT)
    if graphs and isinstance(loss, FrozenLoss):
        inputs, replay = loss.inputs, graphs.replay(loss.product, *loss.inputs, vector)
        if replay:
            return lambda v: replay(*inputs, v).clone()
    leaf = vector.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(leaf), leaf, create_graph=True)

    def product(v: Tensor) -> Tensor:
        try:
            return torch.autograd.grad(gradient, leaf, grad_outputs=v, retain_graph=True)[0]
        except RuntimeError as error:  # PyTorch has no narrower error for a missing derivative
            reason = str(error).strip().splitlines()[0]
            if not any(word in reason for word in ("derivative", "differentiate")):
                raise
            _say_once(reason)
            return difference(gradients_of(loss), vector, v)

    return product


@cache
def _say_once(reason: str) -> None:
    log.warning("L is measured by differences of gradients: PyTorch cannot derive the model twice "
                "(%s)", reason)  # fmt: skip


STEP, SHORT = 1e-3, 3e-5
"""Lengths of a difference's step, relative to 1 + ‖w‖.

The short one may measure a ReLU's kink; with the long one a trained CharLSTM's L is far too low.
"""


def gradients_of(loss: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return the function W ↦ ∇ℓ(w) at each row w of W, (k, d)."""

    def gradient(w: Tensor) -> Tensor:
        leaf = w.detach().requires_grad_()
        return torch.autograd.grad(loss(leaf), leaf)[0]

    return lambda points: torch.stack([*map(gradient, points)])


def difference(
    gradients: Callable[[Tensor], Tensor], vector: Tensor, v: Tensor, relative: float = STEP
) -> Tensor:
    """Return (∇ℓ(w + εv) − ∇ℓ(w − εv)) / 2ε, which is Hv up to terms in ε²; one call gives both."""
    step = relative * (1 + float(vector.norm())) / max(float(v.norm()), 1e-30)
    ahead, behind = gradients(torch.stack((vector + step * v, vector - step * v)))
    return (ahead - behind) / (2 * step)


class ChainHessian:
    """v ↦ ∇²ℓ(w) v at w = ``vector``, for the mean cross-entropy ℓ of samples, written out.

    It is the derivative of the gradient's two passes (:mod:`~spcacw_flwr.silos.chain`) in the
    direction v. L takes ten products in every tenth round, and for a model as small as that of the
    paper's MNIST columns autograd takes more than twice as long per product. What does not depend
    on v is computed once. The chain's outputs are (b, classes), ``y`` is (b,).
    """

    @torch.no_grad()
    def __init__(
        self, steps: Sequence[Step], layout: Layout, vector: Tensor, x: Tensor, y: Tensor
    ) -> None:
        self.steps, self.layout, self.first = steps, layout, first_trained(steps)
        self.weights = layout.unflatten(vector)
        self.ends = forward(steps, self.weights, x)
        """The inputs of all steps, and the output of the last step."""
        self.probabilities = torch.softmax(self.ends[-1], 1)
        delta, last = self.probabilities.clone(), len(steps) - 1
        delta[torch.arange(len(y), device=y.device), y] -= 1
        self.deltas = {last: delta / len(y)}
        """∂ℓ/∂ output of each step, from the first trained step on."""
        for k in range(last, self.first, -1):
            self.deltas[k - 1] = self._back(k, self.deltas[k])

    def _back(self, k: int, delta: Tensor) -> Tensor:
        return back(self.steps[k], self.weights, delta, *self.ends[k : k + 2])

    @torch.no_grad()
    def __call__(self, v: Tensor) -> Tensor:
        """Return the product (d,) with ``v`` (d,)."""
        product = torch.empty_like(v)
        along, into = self.layout.unflatten(v), self.layout.unflatten(product)
        last = len(self.steps)
        moves: dict[int, Tensor] = {}  # derivatives of ``ends`` along v, where not zero
        for k in range(self.first, last):
            moves[k + 1] = self._forward_move(k, along, moves.get(k))
        move = self.probabilities * moves[last]
        move = move - self.probabilities * move.sum(1, keepdim=True)
        move = move / len(move)  # the derivative of the last delta
        for k in range(last - 1, self.first - 1, -1):
            self._write(k, move, moves.get(k), into)
            if k > self.first:
                below = self._back(k, move)
                if names := self.steps[k].names:
                    below += self.deltas[k] @ along[names["weight"]]
                move = below
        return product

    def _forward_move(self, k: int, along: dict[str, Tensor], move: Tensor | None) -> Tensor:
        """Return the derivative of step k's output; ``move`` is the input's, None for 0."""
        step = self.steps[k]
        if step.names:
            own = {name: along[full] for name, full in step.names.items()}
            found = linear(self.ends[k], own["weight"], own.get("bias"))
            if move is not None:
                found += linear(move, self.weights[step.names["weight"]])
            return found
        assert move is not None  # not None after the first step with weights
        if isinstance(step.module, nn.ReLU):  # its second derivative is 0
            return self._back(k, move)
        return step.module(move)

    def _write(self, k: int, move: Tensor, below: Tensor | None, into: dict[str, Tensor]) -> None:
        """Write step k's part of the product; ``move`` is the derivative of its delta."""
        names = self.steps[k].names
        if not names:
            return
        move = move.flatten(0, -2)
        torch.mm(move.T, self.ends[k].flatten(0, -2), out=into[names["weight"]])
        if below is not None:
            into[names["weight"]].addmm_(self.deltas[k].flatten(0, -2).T, below.flatten(0, -2))
        if "bias" in names:
            torch.sum(move, 0, out=into[names["bias"]])
