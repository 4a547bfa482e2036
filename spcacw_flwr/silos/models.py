"""Models, and the flat vector w ∈ R^d in which methods see their parameters.

Methods are linear algebra on vectors; models are modules with named parameters. :class:`Layout` is
the one place that knows how the two correspond.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from spcacw_flwr.config.declare import SpcacwError, did_you_mean
from spcacw_flwr.silos.architectures import MLP, VGG16, VGG16_SIDE, CharLSTM, scaled
from spcacw_flwr.silos.own_model import own_model
from spcacw_flwr.silos.streams import MODEL, stream

Shape = tuple[int, ...]


def _mlp(shape: Shape, classes: int, hidden: int, width: float) -> nn.Module:
    return MLP(math.prod(shape), scaled(hidden, width), classes)


def _vgg16(shape: Shape, classes: int, hidden: int, width: float) -> nn.Module:
    if len(shape) != 3 or shape[1:] != (VGG16_SIDE, VGG16_SIDE):
        raise SpcacwError(
            f"model = 'vgg16' is for images of {VGG16_SIDE} × {VGG16_SIDE} pixels, and the inputs "
            f"of this setting have shape {shape}: choose another model, as model = 'mlp'."
        )
    return VGG16(shape[0], classes, width)


def _char_lstm(shape: Shape, classes: int, hidden: int, width: float) -> nn.Module:
    if len(shape) != 1:
        raise SpcacwError(
            "model = 'char-lstm' is for sequences of symbols, and the inputs of this setting have "
            f"shape {shape}: choose another model, as model = 'mlp'."
        )
    return CharLSTM(classes, width)


MODELS: dict[str, Callable[[Shape, int, int, float], nn.Module]] = {
    "mlp": _mlp,
    "vgg16": _vgg16,
    "char-lstm": _char_lstm,
}


def make_model(
    input_shape: Shape, classes: int, hidden: int, seed: int, name: str = "mlp", width: float = 1.0
) -> nn.Module:
    """Return a model in training mode with its initial parameters, a pure function of ``seed``.

    Parameters
    ----------
    input_shape, classes : tuple of int and int
        The shape of one input, and the number of labels.
    hidden, width : int and float
        The keys of the same name; a user's own model sees neither.
    seed : int
        The run's seed.
    name : str
        One of :data:`MODELS`, or ``package.module:function`` for a user's own: a function of input
        shape and number of classes that returns any ``nn.Module``.

    Raises
    ------
    SpcacwError
        If there is no such model, it is not for such inputs, or a user's own cannot be used.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(stream(seed, MODEL).integers(2**62)))
        if name in MODELS:
            return MODELS[name](input_shape, classes, hidden, width)
        if ":" in name:
            return own_model(name, input_shape, classes).train()
    raise SpcacwError(
        f"model = {name!r} is unknown{did_you_mean(name, MODELS)}: it must be one of "
        f"{', '.join(MODELS)}, or 'package.module:function' of your own."
    )


@dataclass(frozen=True)
class Layout:
    """Names and shapes of a model's parameters, in the order of its flat vector."""

    shapes: tuple[tuple[str, torch.Size], ...]

    @classmethod
    def of(cls, parameters: Mapping[str, Tensor]) -> Layout:
        """Return the layout of named parameters, in their order."""
        return cls(tuple((name, tensor.shape) for name, tensor in parameters.items()))

    @property
    def size(self) -> int:
        """d, the number of parameters."""
        return sum(self._sizes)

    @cached_property
    def _sizes(self) -> list[int]:
        return [shape.numel() for _, shape in self.shapes]

    def flatten(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Concatenate parameters to a vector (d,)."""
        return torch.cat([parameters[name].reshape(-1) for name, _ in self.shapes])

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """Return named views into the vector (d,), or into rows (k, d) of vectors."""
        parts, rows = torch.split_with_sizes(vector, self._sizes, dim=-1), vector.shape[:-1]
        return {
            name: part.view(rows + shape)
            for (name, shape), part in zip(self.shapes, parts, strict=True)
        }


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the named parameters that are trained, detached; frozen ones are left out."""
    named = model.named_parameters()
    return {name: weight.detach() for name, weight in named if weight.requires_grad}


def others_of(
    model: nn.Module, weights: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return what the model's ``state_dict`` holds beside the trained ``weights``, as copies.

    That is ``buffers`` (those that are saved), frozen parameters, and second names of tensors that
    two layers share.
    """
    named = [(weights, model.named_parameters()), (buffers, model.named_buffers())]
    values = {id(t): given[n] for given, tensors in named for n, t in tensors if n in given}
    state = model.state_dict(keep_vars=True)  # the tensors themselves, not detached from their ids
    return {
        name: values.get(id(tensor), tensor).detach().clone()
        for name, tensor in state.items()
        if name not in weights and isinstance(tensor, Tensor)
    }
