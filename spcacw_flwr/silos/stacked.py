"""The gradients of all silos of a recurrent network in one pass, for GPUs.

The samples of all silos go through as one batch, with weights for each silo: equal ones, or a model
of its own. A GPU is as long over k·b sequences as over b, since an LSTM's steps wait for each
other, and each is short. What is written out is the recurrence: a product and PyTorch's fused cell
a step, and the gradients of its weights as one product over all steps. S. Hochreiter and
J. Schmidhuber, Long short-term memory, Neural Computation 9, 1997.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from spcacw_flwr.silos.chain import Step, affine, mean_by_silo, steps_of
from spcacw_flwr.silos.models import Loss, SequenceLSTM

LAYERS = nn.Embedding, SequenceLSTM, nn.Linear


def stack_of(model: nn.Module) -> list[Step]:
    """Return the layers of a sequence of LSTMs, embeddings and linear layers, all of them plain.

    Empty for any other model, one without an LSTM, and as :func:`~.chain.steps_of`.
    """
    steps = steps_of(model, LAYERS)
    layers = [step.module for step in steps]
    recurrent = any(isinstance(layer, nn.LSTM) for layer in layers)
    return steps if recurrent and all(map(_plain, layers)) else []


def _plain(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Embedding):
        return (layer.padding_idx, layer.max_norm, layer.scale_grad_by_freq) == (None, None, False)
    if isinstance(layer, nn.LSTM):
        odd = layer.bidirectional, layer.proj_size, layer.dropout, not layer.batch_first
        return layer.bias and not any(odd)
    return True


def stacked_losses(
    steps: Sequence[Step], weights: dict[str, Tensor], x: Tensor, y: Tensor, loss: Loss,
    alike: bool = False,
) -> Tensor:  # fmt: skip
    """Return the losses (k,) of k silos; ``weights`` are (k, …), ``x`` and ``y`` (k, b, T).

    ``alike`` says that all silos have the same.
    """
    silos, h = len(x), x.flatten(0, 1)
    for step in steps:
        own = {name: weights[full] for name, full in step.names.items()}
        if isinstance(step.module, nn.Embedding):
            table, rows = own["weight"], step.module.num_embeddings
            first = rows * torch.arange(silos, device=x.device).view(-1, 1, 1)
            h = embedding((h.view(x.shape) + first).flatten(0, 1), table.flatten(0, 1))
        elif isinstance(step.module, nn.LSTM):
            for layer in range(step.module.num_layers):
                h = _layer({name: own[f"{name}_l{layer}"] for name in PARTS}, h, alike)
        else:
            h = affine(h, own["weight"], own.get("bias"))
    return mean_by_silo(loss(h, y.flatten(0, 1)), silos)


PARTS = "weight_ih", "weight_hh", "bias_ih", "bias_hh"


def _layer(own: dict[str, Tensor], h: Tensor, alike: bool) -> Tensor:
    """Return the outputs (k·b, T, H) of an LSTM's layer, on inputs (k·b, T, …)."""
    silos, (_, steps, _) = len(own["weight_ih"]), h.shape
    gates = affine(h, own["weight_ih"], own["bias_ih"] + own["bias_hh"])
    gates = gates.view(silos, -1, steps, gates.shape[-1]).permute(2, 0, 1, 3).contiguous()
    outputs: Tensor = Recurrence.apply(gates, own["weight_hh"], alike)
    return outputs.permute(1, 2, 0, 3).flatten(0, 1)


class Recurrence(torch.autograd.Function):
    """Gates of the inputs (T, k, b, 4H), W_hh (k, 4H, H) → h at all steps (T, k, b, H).

    h_0 = c_0 = 0. Where ``alike``, all silos have the same W_hh, and a step is one product; its
    gradient is by silo. It has first derivatives.
    """

    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, alike: bool) -> Tensor:
        """Return h."""
        _, silos, batch, wide = gates.shape
        own, gates = weight[:1] if alike else weight, gates.flatten(1, 2)
        first = gates.new_zeros(silos * batch, wide // 4)
        hs, cells, across = [first], [first], own.transpose(1, 2)
        kept: list[Tensor] = []
        for outer in gates:
            inner = torch.bmm(hs[-1].view(len(own), -1, wide // 4), across).flatten(0, 1)
            for one, found in zip((hs, cells, kept), cell(outer, inner, cells[-1]), strict=True):
                one.append(found)
        ctx.of_forward = hs, cells, kept, own
        return torch.stack(hs[1:]).view(-1, silos, batch, wide // 4)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, by_all: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the gradients of gates and weights, from those of h at all steps."""
        hs, cells, kept, own = ctx.of_forward
        by_h, by_c, by_gates = by_all.flatten(1, 2).clone(), torch.zeros_like(hs[0]), []
        models, wide, units = own.shape
        for t in reversed(range(len(by_h))):
            found, by_c = cell_back(by_h[t], by_c, cells[t], cells[t + 1], kept[t])
            if t:
                before = by_h[t - 1].view(models, -1, units)
                before.baddbmm_(found.view(models, -1, wide), own)
            by_gates.append(found)
        gates = torch.stack(by_gates[::-1]).view(*by_all.shape[:-1], -1)
        both = gates, torch.stack(hs[:-1]).view_as(by_all)
        found, before = (part.transpose(0, 1).flatten(1, 2) for part in both)  # by silo
        return gates, torch.bmm(found.transpose(1, 2), before), None


def cell(outer: Tensor, inner: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return h, c and the activated gates after a step, from both parts of its gates (n, 4H)."""
    if outer.is_cuda:
        return torch.ops.aten._thnn_fused_lstm_cell(outer, inner, c)
    i, f, g, o = (outer + inner).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    c = f * c + i * g
    return o * c.tanh(), c, torch.cat((i, f, g, o), 1)


def cell_back(
    by_h: Tensor, by_c: Tensor, before: Tensor, c: Tensor, activated: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the derivatives by the gates (n, 4H) and by c of before, from those by h and by c."""
    if by_h.is_cuda:
        fused = torch.ops.aten._thnn_fused_lstm_cell_backward_impl
        return fused(by_h, by_c, before, c, activated, False)[:2]
    i, f, g, o = activated.chunk(4, 1)
    bent = c.tanh()
    by_c = by_c + by_h * o * (1 - bent.square())
    gates = by_c * g * i * (1 - i), by_c * before * f * (1 - f), by_c * i * (1 - g.square())
    return torch.cat((*gates, by_h * bent * o * (1 - o)), 1), by_c * f
