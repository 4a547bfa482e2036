"""L, the smoothness of the target's loss, by power iteration on Hessian-vector products.

The paper's appendix (Practical Algorithmic Details, item 1; B. Pearlmutter, Fast exact
multiplication by the Hessian, 1994). The loss is that of one mini-batch, by a model in evaluation
mode (READING.md 5): dropout would make the operator random, and BatchNorm's statistics are those of
the mini-batch at w, held fixed, so that the Hessian is that of a function of single samples.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from spcacw_flwr.silos.losses import Loss
from spcacw_flwr.silos.models import Layout
from spcacw_flwr.silos.stateless import call
from spcacw_flwr.silos.statistics import buffers_at


def frozen_loss(
    model: nn.Module, layout: Layout, loss: Loss, vector: Tensor, x: Tensor, y: Tensor
) -> Callable[[Tensor], Tensor]:
    """Return the mean loss of samples as a function of w, with the statistics of x at ``vector``.

    The function is to be called while the model is in evaluation mode.
    """
    buffers = buffers_at(model, layout.unflatten(vector), [x])

    def mean_loss(w: Tensor) -> Tensor:
        return loss(call(model, layout.unflatten(w) | buffers, x), y).mean()

    return mean_loss


def twice_differentiable(model: nn.Module) -> AbstractContextManager[None]:
    """Let a model's operators have second derivatives: cuDNN's recurrent layers have none."""
    recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    flags: AbstractContextManager[None] = torch.backends.cudnn.flags(enabled=not recurrent)
    return flags


def hessian(loss: Callable[[Tensor], Tensor], vector: Tensor) -> Callable[[Tensor], Tensor]:
    """Return v ↦ Hv, with the Hessian H of ``loss`` at w.

    The gradient's graph is built once; each product is one pass back through it.
    """
    leaf = vector.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(leaf), leaf, create_graph=True)

    def product(v: Tensor) -> Tensor:
        return torch.autograd.grad(gradient, leaf, grad_outputs=v, retain_graph=True)[0]

    return product
