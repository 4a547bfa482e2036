"""Models, and the flat vector w ∈ R^d in which methods see their parameters.

Methods are linear algebra on vectors; models are modules with named parameters. :class:`Layout` is
the one place that knows how the two correspond.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spcacw_flwr.core.batches import MODEL, stream


class MLP(nn.Sequential):
    """The paper's network for MNIST: flattened input, one hidden ReLU layer (784-64-10)."""

    def __init__(self, inputs: int, hidden: int, classes: int) -> None:
        super().__init__(
            nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes)
        )


def make_model(input_shape: tuple[int, ...], classes: int, hidden: int, seed: int) -> nn.Module:
    """Return the model with its initial parameters, a pure function of ``seed``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(stream(MODEL, seed).integers(2**62)))
        return MLP(math.prod(input_shape), hidden, classes)


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
        return sum(shape.numel() for _, shape in self.shapes)

    def flatten(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Concatenate parameters to a vector (d,)."""
        return torch.cat([parameters[name].reshape(-1) for name, _ in self.shapes])

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """Return named views into the vector (d,), or into rows (k, d) of vectors."""
        parts = vector.split([shape.numel() for _, shape in self.shapes], dim=-1)
        return {
            name: part.view(*vector.shape[:-1], *shape)
            for (name, shape), part in zip(self.shapes, parts, strict=True)
        }


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the model's named parameters, detached."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}
