"""The state of objects in a file, by ``torch.save`` and ``torch.load(weights_only=True)``.

Objects are saved whole, with shared references. Their inputs (configuration, federation) are saved
by name only: the caller of :func:`load` supplies them. Arrays are saved as tensors. Loading creates
only classes of this project, of the packages of the saved objects, and a few of Python's and
PyTorch's. Saving any other class raises :class:`SpcacwError`.
"""

import collections
import io
import pickle
import random
import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.keys import SECTIONS
from spcacw_flwr.config.registry import method_class, solver_class
from spcacw_flwr.silos.protocol import Federation

CONTAINERS = (
    set, frozenset, slice, range, complex, bytearray, random.Random, list, dict, int, float,
    collections.deque, collections.defaultdict,
)  # fmt: skip
OURS, MODULES = "spcacw_flwr", ("torch.nn.modules", "torch.optim")
_given: Mapping[str, Any] = {}
"""The inputs of the objects, by name, while a state is loaded."""


def inputs_of(config: Config, federation: Federation) -> dict[str, Any]:
    """Return, by name, the inputs of a method, and their parts that a method may keep."""
    named = {"config": config, "federation": federation, "layout": federation.layout}
    named |= {f"config.{name}": getattr(config, name) for name in (*SECTIONS, "method")}
    return {name: value for name, value in named.items() if value is not None}


def given(name: str) -> Any:
    """Return an input that was saved by name."""
    return _given[name]


def as_array(tensor: Tensor) -> NDArray[Any]:
    """Return an array that was saved as a tensor, with the same order of axes in memory."""
    return tensor.cpu().numpy()


def as_scalar(tensor: Tensor) -> Any:
    """Return a NumPy scalar that was saved as a tensor."""
    return tensor.cpu().numpy()[()]


def as_generator(kind: str, state: dict[str, Any]) -> np.random.Generator:
    """Return a generator in its saved state."""
    bits = getattr(np.random, kind)()
    bits.state = state
    return np.random.Generator(bits)


def _pickler(inputs: Mapping[str, Any]) -> types.ModuleType:
    """Return the module that ``torch.save`` uses as pickle."""
    names = {id(value): name for name, value in inputs.items()}

    class Pickler(pickle.Pickler):
        def reducer_override(self, value: Any) -> Any:
            if id(value) in names:
                return given, (names[id(value)],)
            if type(value) is np.ndarray:
                return as_array, (torch.from_numpy(np.require(value, requirements="W")),)
            if isinstance(value, np.generic):
                return as_scalar, (torch.from_numpy(np.array(value)),)
            if type(value) is collections.deque:
                return collections.deque, (list(value), value.maxlen)
            if type(value) is collections.defaultdict:
                return collections.defaultdict, (value.default_factory, dict(value))
            if type(value) is np.random.Generator:
                bits = value.bit_generator
                return as_generator, (type(bits).__name__, bits.state)
            return NotImplemented

    module = types.ModuleType("spcacw_pickle")
    vars(module).update(Pickler=Pickler)
    return module


def _allowed(objects: Mapping[str, Any], inputs: Mapping[str, Any]) -> list[Any]:
    """Return the classes and functions that a state of these objects may name."""
    kinds = [kind for value in objects.values() for kind in type(value).__mro__]
    tops = {OURS, *(kind.__module__.partition(".")[0] for kind in kinds)} - {"builtins"}
    if config := inputs.get("config"):  # a user's solver; a user's method, which a guard may hold
        users = solver_class(config.spcacw.solver), method_class(config.run.method)
        tops |= {kind.__module__.partition(".")[0] for kind in users}
    found: list[Any] = [given, as_array, as_scalar, as_generator, *CONTAINERS]
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in tops or name.startswith(MODULES):
            found += [
                one for one in vars(module or object).values()
                if isinstance(one, type) and one.__module__ == name
            ]  # fmt: skip
    return found


def save(objects: Mapping[str, Any], inputs: Mapping[str, Any]) -> bytes:
    """Return the state of named objects.

    Raises SpcacwError if a part cannot be saved; the message names the attribute.
    """
    content, what = _saved(dict(objects), objects, inputs)
    if what:
        where, kind = next(iter(objects)), what
        for name, value in objects.items():
            for attribute, part in vars(value).items() if hasattr(value, "__dict__") else ():
                if _saved(part, objects, inputs)[1]:
                    where, kind = f"{name}.{attribute}", type(part).__qualname__
        raise SpcacwError(
            f"{where} is a {kind} ({what}), which no checkpoint can hold: keep numbers, tensors, "
            "arrays, containers or plain objects of these, or set checkpoint-every = -1 to go "
            "without checkpoints."
        )
    return content


def _saved(value: Any, objects: Mapping[str, Any], inputs: Mapping[str, Any]) -> tuple[bytes, str]:
    """Return the state of a value, and the part that cannot be saved, "" if all can."""
    file = io.BytesIO()
    try:
        torch.save(value, file, pickle_module=_pickler(inputs))
    except (TypeError, AttributeError, ValueError, pickle.PicklingError) as error:
        return b"", str(error)
    file.seek(0)
    with safe_globals(_allowed(objects, inputs)):
        what = next(iter(get_unsafe_globals_in_checkpoint(file)), "")
    return file.getvalue(), what


@contextmanager
def giving(inputs: Mapping[str, Any]) -> Iterator[None]:
    """Supply, during a block, the inputs that are saved by name only."""
    global _given
    _given = inputs
    try:
        yield
    finally:
        _given = {}


def load(
    file: Path, fresh: Mapping[str, Any], inputs: Mapping[str, Any], devices: Mapping[str, str]
) -> dict[str, Any]:
    """Return named objects; those in ``fresh`` are changed in place.

    ``devices`` maps the old devices of tensors to the new ones.
    """
    with safe_globals(_allowed(fresh, inputs)), giving(inputs):
        found = torch.load(file, map_location=dict(devices), weights_only=True)
    for name, value in fresh.items():
        vars(value).clear()
        vars(value).update(vars(found[name]))
    return {**found, **fresh}
