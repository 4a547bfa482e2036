"""The gradients of all silos of a recurrent network in one pass, for GPUs.

The samples of all silos go through as one batch, with weights for each silo: equal weights, or the
silo's own model. A GPU takes as long for k·b sequences as for b, because an LSTM's steps wait for
each other, and each step is short. The recurrence is written out: a step is a product and PyTorch's
fused cell, and the gradients of the weights are one product over all steps. S. Hochreiter and
J. Schmidhuber, Long short-term memory, Neural Computation 9, 1997.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear

from spcacw_flwr.silos.chain import Step, affine, steps_of
from spcacw_flwr.silos.models import Loss, SequenceLSTM

LAYERS = nn.Embedding, SequenceLSTM, nn.Linear


def stack_of(model: nn.Module) -> list[Step]:
    """Return the layers of a sequence of LSTMs, embeddings and linear layers, all of them plain.

    Empty for any other model, without an LSTM, and where :func:`~.chain.steps_of` is empty.
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
    steps: Sequence[Step], weights: dict[str, Tensor], x: Tensor, y: Tensor, counts: Tensor,
    loss: Loss, alike: bool = False,
) -> Tensor:  # fmt: skip
    """Return the losses (k,) of k silos; ``weights`` are (k, …), ``x`` and ``y`` (k, b, T).

    Only the first ``counts`` (k,) samples of each silo count. ``alike`` says that all silos have
    the same weights. Intermediate tensors are (T, b, k, …): a product takes a step's numbers, or a
    silo's numbers, without a copy.
    """
    silos, h = len(x), x.transpose(0, 2)
    for step in steps:
        own = {name: weights[full] for name, full in step.names.items()}
        if isinstance(step.module, nn.Embedding):
            first = step.module.num_embeddings * torch.arange(silos, device=x.device)
            h = embedding(h + first, own["weight"].flatten(0, 1))
        elif isinstance(step.module, nn.LSTM):
            for layer in range(step.module.num_layers):
                *both, b_ih, b_hh = (own[f"{name}_l{layer}"] for name in PARTS)
                h = Layer.apply(h, *both, b_ih + b_hh, alike)
        else:
            found = affine(by_silo(h), own["weight"], own.get("bias"))
            h = found.view(silos, len(h), -1, found.shape[-1]).permute(1, 2, 0, 3)
    each = loss(h.transpose(0, 2).flatten(0, 1).float(), y.flatten(0, 1))
    each = each.view(silos, x.shape[1], -1).mean(dim=2)
    mine = torch.arange(x.shape[1], device=x.device) < counts.unsqueeze(1)
    return (each * mine).sum(dim=1) / counts


PARTS = "weight_ih", "weight_hh", "bias_ih", "bias_hh"


def by_silo(part: Tensor) -> Tensor:
    """Return a view of (…, k, n) as (k, …, n), with one dimension for the dots."""
    return part.flatten(0, -3).transpose(0, 1)


def times(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, onto: Tensor | None = None
) -> Tensor:
    """Return x W + c for x (…, k, n), or add x W to ``onto`` in place.

    W (k, n, m) and c (k, m) have an entry for each silo, or are (1, …) for all silos.
    """
    if len(weight) == 1:
        flat = _flat(x)
        if onto is not None:
            onto.view(len(flat), -1).addmm_(flat, weight[0])
            return onto
        found = linear(flat, weight[0].mT, None if bias is None else bias[0])
        return found.view(*x.shape[:-1], -1)
    found = x.new_empty(*x.shape[:-1], weight.shape[-1]) if onto is None else onto
    out = by_silo(found)
    added, beta = (out, int(onto is not None)) if bias is None else (bias.unsqueeze(1), 1)
    torch.baddbmm(added, by_silo(x), weight, beta=beta, out=out)
    return found


class Layer(torch.autograd.Function):
    """An LSTM layer: x (T, b, k, I), W_ih (k, 4H, I), W_hh (k, 4H, H), c (k, 4H) → (T, b, k, H).

    The output is h at all steps, with h_0 = c_0 = 0. With ``alike``, all silos have the same
    weights and share one product; weights' gradients are by silo. Only first derivatives exist.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, by_input: Tensor, by_output: Tensor, bias: Tensor, alike: bool
    ) -> Tensor:
        """Return h at all steps."""
        own = slice(1 if alike else None)
        x, by_input, by_output = x.contiguous(), by_input[own], by_output[own]
        outer = times(x, by_input.mT, bias[own])
        first = x.new_zeros(*outer.shape[1:-1], outer.shape[-1] // 4)
        told = [(first, first, first)]
        for part in outer:
            h, c, _ = told[-1]
            told.append(cell(part, times(h, by_output.mT), c))
        hs, cells, kept = zip(*told, strict=True)
        ctx.of_forward = x, by_input, by_output, cells, kept
        outputs = torch.stack(hs[1:])
        ctx.save_for_backward(outputs)
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, by_all: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x and the weights, given those of h at all steps."""
        (x, by_input, by_output, cells, kept), (outputs,) = ctx.of_forward, ctx.saved_tensors
        by_h, by_c, found = by_all.contiguous().clone(), torch.zeros_like(cells[0]), []
        for t in reversed(range(len(by_h))):
            by_gates, by_c = cell_back(by_h[t], by_c, cells[t], cells[t + 1], kept[t + 1])
            if t:
                times(by_gates, by_output, onto=by_h[t - 1])
            found.append(by_gates)
        gates = torch.stack(found[::-1])
        of_input = torch.bmm(by_silo(gates).mT, by_silo(x))
        of_output = torch.bmm(by_silo(gates[1:]).mT, by_silo(outputs[:-1]))  # h_0 = 0
        by_x = times(gates, by_input) if ctx.needs_input_grad[0] else None
        return by_x, of_input, of_output, gates.sum((0, 1)), None


def _flat(part: Tensor) -> Tensor:
    return part.flatten(0, -2)


def cell(outer: Tensor, inner: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return h, c and the activated gates after a step, given both parts of its gates (…, 4H)."""
    if outer.is_cuda:  # the fused cell takes only matrices
        fused = torch.ops.aten._thnn_fused_lstm_cell(*map(_flat, (outer, inner, c)))
        return tuple(part.view(*c.shape[:-1], -1) for part in fused)
    i, f, g, o = (outer + inner).chunk(4, -1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    c = f * c + i * g
    return o * c.tanh(), c, torch.cat((i, f, g, o), -1)


def cell_back(
    by_h: Tensor, by_c: Tensor, before: Tensor, c: Tensor, activated: Tensor
) -> tuple[Tensor, Tensor]:
    """Return derivatives by the gates (…, 4H) and the previous c, given those by h and c."""
    if by_h.is_cuda:
        fused = torch.ops.aten._thnn_fused_lstm_cell_backward_impl
        found = fused(*map(_flat, (by_h, by_c, before, c, activated)), False)[:2]
        return tuple(part.view(*c.shape[:-1], -1) for part in found)
    i, f, g, o = activated.chunk(4, -1)
    bent = c.tanh()
    by_c = by_c + by_h * o * (1 - bent.square())
    gates = by_c * g * i * (1 - i), by_c * before * f * (1 - f), by_c * i * (1 - g.square())
    return torch.cat((*gates, by_h * bent * o * (1 - o)), -1), by_c * f
