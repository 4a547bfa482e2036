"""LSTM layers: on a GPU, all silos' sequences run through the cell together, step by step.

(On a CPU PyTorch's own kernel for one silo after another is twice as fast, see :func:`_lstm`.)
The recurrence is that of ``torch.nn.LSTM`` (S. Hochreiter and J. Schmidhuber, Long Short-Term
Memory, 1997, with the forget gate of Gers et al., 2000)::

    i, f, g, o = σ, σ, tanh, σ of  x_t W_ihᵀ + b_ih + h_{t−1} W_hhᵀ + b_hh
    c_t = f c_{t−1} + i g
    h_t = o tanh c_t

with h_0 = c_0 = 0 for every batch (paper, CharLSTM). A silo's weight gradients are products of the
pre-activations' gradients, at all its samples and steps, with what entered the gates there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from spcacw_flwr.silos.rules.base import Rule, Shared
from spcacw_flwr.silos.rules.by_silo import by_silo

sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
tanh_backward = torch.ops.aten.tanh_backward.grad_input


class _Layer(torch.autograd.Function):
    """One layer: x (T, N, inputs) → h (T, N, H), steps first and the silos' samples side by side.

    ``suffix`` (as ``_l0``) names its parameters among those of the module.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, suffix: str, layer: Shared) -> Tensor:
        inner, outer = layer.weights["weight_hh" + suffix], layer.weights["weight_ih" + suffix]
        steps, samples, hidden = *x.shape[:2], inner.shape[1]
        if "bias_ih" + suffix in layer.weights:
            bias = layer.weights["bias_ih" + suffix] + layer.weights["bias_hh" + suffix]
        else:
            bias = x.new_zeros(4 * hidden)
        gates = torch.addmm(bias, x.flatten(0, 1), outer.t()).view(steps, samples, 4 * hidden)
        cells = x.new_empty(steps, samples, hidden)
        states = torch.empty_like(cells)
        for t in range(steps):
            if t > 0:
                gates[t].addmm_(states[t - 1], inner.t())
            gates[t, :, : 2 * hidden].sigmoid_()
            gates[t, :, 2 * hidden : 3 * hidden].tanh_()
            gates[t, :, 3 * hidden :].sigmoid_()
            i, f, g, o = gates[t].chunk(4, dim=1)
            torch.mul(i, g, out=cells[t])
            if t > 0:
                cells[t].addcmul_(f, cells[t - 1])
            torch.tanh(cells[t], out=states[t]).mul_(o)
        ctx.save_for_backward(x, gates, cells, states)
        ctx.suffix, ctx.layer = suffix, layer
        return states

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, None, None, None]:
        (x, gates, cells, states), (delta,), layer = ctx.saved_tensors, upstream, ctx.layer
        # The gates make room for their gradients.
        _through_time(gates, cells, delta, layer.weights["weight_hh" + ctx.suffix])
        _weight_gradients(gates, x, states, ctx.suffix, layer)
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        below = gates.flatten(0, 1) @ layer.weights["weight_ih" + ctx.suffix]
        return below.view(x.shape), None, None, None


def _through_time(gates: Tensor, cells: Tensor, delta: Tensor, inner: Tensor) -> None:
    """Put ∂/∂(pre-activations) in the place of the gates, from the last step to the first."""
    above, cell = torch.empty_like(cells[0]), torch.zeros_like(cells[0])
    for t in reversed(range(len(gates))):
        later = gates[t + 1] if t + 1 < len(gates) else None
        if later is None:
            above.copy_(delta[t])
        else:
            torch.addmm(delta[t], later, inner, out=above)  # ∂/∂h_t
        i, f, g, o = gates[t].chunk(4, dim=1)
        squashed = cells[t].tanh()
        into_cell = above * o
        cell += tanh_backward(into_cell, squashed, grad_input=into_cell)  # ∂/∂c_t
        sigmoid_backward(above.mul_(squashed), o, grad_input=o)
        into_i, into_g = cell * g, cell * i
        into_f = cell * cells[t - 1] if t > 0 else torch.zeros_like(cell)
        cell *= f  # ∂/∂c_{t−1}, so far
        sigmoid_backward(into_i, i, grad_input=i)
        sigmoid_backward(into_f, f, grad_input=f)
        tanh_backward(into_g, g, grad_input=g)


def _weight_gradients(
    deltas: Tensor, x: Tensor, states: Tensor, suffix: str, layer: Shared
) -> None:
    """Write the silos' rows from the pre-activations' gradients (T, N, 4H)."""
    rows, batch = layer.rows, deltas.shape[1] // layer.silos
    for k in range(layer.silos):
        own = slice(k * batch, (k + 1) * batch)
        delta = deltas[:, own].flatten(0, 1).t()
        torch.mm(delta, x[:, own].flatten(0, 1), out=rows["weight_ih" + suffix][k])
        earlier = states[:-1, own].flatten(0, 1)  # h_0 = 0 adds nothing
        torch.mm(delta[:, batch:], earlier, out=rows["weight_hh" + suffix][k])
        if "bias_ih" + suffix in rows:
            torch.sum(delta, dim=1, out=rows["bias_ih" + suffix][k])
            rows["bias_hh" + suffix][k] = rows["bias_ih" + suffix][k]


def by_steps(module: nn.LSTM, x: Tensor, layer: Shared) -> Tensor:
    """Apply the layers to all silos together."""
    x = x.transpose(0, 1).contiguous()
    for number in range(module.num_layers):
        x = _Layer.apply(x, layer.anchor, f"_l{number}", layer)
    return x.transpose(0, 1)


def _lstm(module: nn.LSTM, x: Tensor, layer: Shared) -> Tensor:
    """Choose the fastest way.

    A GPU waits for each of cuDNN's steps, so that k silos by themselves cost k times as long; a CPU
    does not, and its kernel (oneDNN) keeps a small batch in the cache.
    """
    return (by_silo if x.device.type == "cpu" else by_steps)(module, x, layer)


def _plain(module: nn.LSTM) -> bool:
    return module.batch_first and not (
        module.bidirectional or module.proj_size or (module.dropout and module.training)
    )


LSTM = Rule(_lstm, _plain)
