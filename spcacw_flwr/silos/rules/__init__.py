"""How each kind of layer takes part in a pooled pass, see :mod:`spcacw_flwr.silos.layers`."""

from __future__ import annotations

from torch import nn

from spcacw_flwr.silos.architectures import SequenceLSTM
from spcacw_flwr.silos.rules.base import Rule, Shared
from spcacw_flwr.silos.rules.conv import CONVOLUTION
from spcacw_flwr.silos.rules.dropout import DROPOUT, SPATIAL_DROPOUT
from spcacw_flwr.silos.rules.linear import EMBEDDING, LINEAR
from spcacw_flwr.silos.rules.lstm import LSTM
from spcacw_flwr.silos.rules.norm import BATCH_NORM

__all__ = ["Rule", "Shared", "rule_of"]

RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: LINEAR,
    nn.Embedding: EMBEDDING,
    nn.Conv1d: CONVOLUTION, nn.Conv2d: CONVOLUTION,
    nn.BatchNorm1d: BATCH_NORM, nn.BatchNorm2d: BATCH_NORM,
    nn.Dropout: DROPOUT, nn.Dropout1d: SPATIAL_DROPOUT, nn.Dropout2d: SPATIAL_DROPOUT,
    SequenceLSTM: LSTM,
}  # fmt: skip
"""Layers with weights, batch statistics or chance that can be taken apart by silo."""

SAMPLEWISE: tuple[type[nn.Module], ...] = (
    nn.Identity, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid,
    nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d,
)  # fmt: skip
"""Layers without weights or chance that treat each sample for itself."""

_AS_IT_IS = Rule(lambda module, x, layer: module(x))


def rule_of(module: nn.Module) -> Rule | None:
    """Return the rule that covers a layer; None if there is none."""
    kind = type(module)  # of a subclass nothing is known
    if kind in SAMPLEWISE or (kind is nn.Flatten and int(module.start_dim) >= 1):  # type: ignore[arg-type]
        return _AS_IT_IS
    rule = RULES.get(kind)
    return rule if rule is not None and rule.allows(module) else None
