"""The flat vector w ∈ R^d that methods use for a model, and the model as a function of w.

Methods are linear algebra on vectors; models are modules with named parameters. Only
:class:`Layout` knows how the two correspond.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call


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
        return sum(self.sizes)

    @cached_property
    def sizes(self) -> list[int]:
        """How many numbers each tensor has."""
        return [shape.numel() for _, shape in self.shapes]

    def flatten(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Concatenate parameters to a vector (d,)."""
        return torch.cat([parameters[name].reshape(-1) for name, _ in self.shapes])

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """Return named views into the vector (d,), or into the rows of a tensor (k, d)."""
        parts, rows = torch.split_with_sizes(vector, self.sizes, dim=-1), vector.shape[:-1]
        return {
            name: part.view(rows + shape)
            for (name, shape), part in zip(self.shapes, parts, strict=True)
        }


def difference(one: Layout, other: Layout) -> str:
    """Return a phrase for the first difference of ``one`` model from the other."""
    mine, theirs = dict(one.shapes), dict(other.shapes)
    for name in (*theirs, *mine):
        if name not in mine:
            return f"there is no '{name}'"
        if name not in theirs:
            return f"'{name}' is one more"
        if mine[name] != theirs[name]:
            return f"'{name}' has shape {tuple(mine[name])}, not {tuple(theirs[name])}"
    return "the order of parameters is another"


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the named parameters that are trained, detached; without frozen parameters."""
    named = model.named_parameters()
    return {name: weight.detach() for name, weight in named if weight.requires_grad}


def others_of(
    model: nn.Module, weights: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return what the model's ``state_dict`` holds besides the trained ``weights``, as copies.

    These are ``buffers`` (the saved ones), frozen parameters, and the second names of tensors that
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


def slots(model: nn.Module) -> dict[str, str]:
    """Map each place of a tensor in a model to the name that ``named_parameters`` gives it.

    A layer used at two places of a model counts once. Two layers that share a tensor are two
    places.
    """
    first: dict[int, str] = {}
    found = {}
    for prefix, module in model.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                place = f"{prefix}.{name}" if prefix else name
                found[place] = first.setdefault(id(tensor), place)
    return found


def call(model: nn.Module, state: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return the model's outputs with the tensors of ``state`` in place of its own.

    If the model returns an output object, as Hugging Face's do, return its ``logits``.
    ``torch.func.functional_call`` can also tie names itself, but then a layer used at two places
    keeps tensors of the call.
    """
    own = {place: state[name] for place, name in slots(model).items() if name in state}
    outputs = functional_call(model, own, (x,), tie_weights=False)
    return getattr(outputs, "logits", outputs)
