"""A model as a function of its weights and buffers, whatever names they share."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.func import functional_call


def slots(model: nn.Module) -> dict[str, str]:
    """Map each place of a tensor in a model to the name that ``named_parameters`` gives it.

    A layer that stands at two places of a model counts once; two layers that share a tensor are two
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
    """Return the model's outputs with the tensors of ``state`` in the place of its own.

    ``torch.func.functional_call`` can tie names too, but then leaves tensors of the call behind in
    a layer that stands at two places.
    """
    own = {place: state[name] for place, name in slots(model).items() if name in state}
    outputs: Tensor = functional_call(model, own, (x,), tie_weights=False)
    return outputs
