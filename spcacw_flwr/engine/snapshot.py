"""The state of objects as named tensors and JSON, so that it can be kept without pickle.

:func:`state_of` walks over the attributes of objects: tensors and arrays go into a flat table named
by their path (``method.bias.estimate``), everything else into JSON. What is reachable twice is
noted once, so that :func:`restore` can share it again. Inputs, such as the
configuration, are noted by name only: whoever restores brings them.

Nothing is left out silently: what the walk does not understand is an :class:`SpcacwError` that
names the attribute. Arrays keep dtype, bits and the order of their axes in memory, by which a sum
may be made in another order; a view into a larger array is kept as an array of its own.
"""

from __future__ import annotations

import collections
import itertools
import logging
import math
import random
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from spcacw_flwr.config.config import SECTIONS, Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.silos.models import Layout
from spcacw_flwr.silos.protocol import Federation

KEPT = (
    Config, Federation, Layout, torch.device, torch.dtype, type, partial, logging.Logger,
    types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType,
)  # fmt: skip
"""What never changes while a run goes on: a fresh object has its own."""
STATE_DICTS = (nn.Module, torch.optim.Optimizer)
FACTORIES = {"list": list, "dict": dict, "set": set, "int": int, "float": float}
"""Of defaultdict, by name."""
ARRAYS = "?bBhHiIlLqQefd"
"""NumPy's dtypes, by their letters, that tensors have as well."""
PACKAGES = ("spcacw_flwr", "baselines")
"""Whose objects may be made anew, beside those of the package that an object is from."""


@dataclass
class Snapshot:
    """The state of some objects."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    """Contiguous, on the device where they are computed with; not copied unless need be."""
    plain: dict[str, Any] = field(default_factory=dict)
    """JSON: a tree for each object."""
    needed: set[str] = field(default_factory=set)
    """Paths of which a fresh object must have a value of its own, for none is noted."""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def inputs_of(config: Config, federation: Federation) -> dict[str, Any]:
    """Return what a method is made from, and may keep parts of, by name."""
    tables = (*SECTIONS, "method")
    named = {"config": config, "federation": federation, "layout": federation.layout}
    named |= {f"config.{name}": getattr(config, name) for name in tables}
    return {name: value for name, value in named.items() if value is not None}


def state_of(
    objects: Mapping[str, Any], inputs: Mapping[str, Any], device: torch.device | None = None
) -> Snapshot:
    """Return the state of named objects, which compute on ``device`` (default: the CPU).

    Raises
    ------
    SpcacwError
        If an attribute cannot be kept, or two attributes share memory without being the same.
    """
    walk = _Walk(inputs, device or torch.device("cpu"), packages_of(objects))
    for name, value in objects.items():
        walk.found.plain[name] = walk.node(value, name)
    walk.check_memory()
    return walk.found


def plain_class(kind: type) -> bool:
    """Say whether all that an instance knows is in its ``__dict__``."""
    slots = any(base.__dict__.get("__slots__") for base in kind.__mro__)
    return kind.__new__ is object.__new__ and kind.__dictoffset__ != 0 and not slots


def packages_of(objects: Mapping[str, Any]) -> set[str]:
    """Return the top-level packages whose objects can be made anew beside these."""
    kinds = (kind for value in objects.values() for kind in type(value).__mro__)
    return {*PACKAGES, *map(package_of, kinds)} - {"builtins"}


def package_of(kind: type) -> str:
    """Return the name of the top-level package of a class."""
    return kind.__module__.partition(".")[0]


def class_name(kind: type) -> str:
    """Return ``module:qualname``."""
    return f"{kind.__module__}:{kind.__qualname__}"


class _Walk:
    """One walk over objects; each is visited once."""

    def __init__(self, inputs: Mapping[str, Any], device: torch.device, packages: set[str]) -> None:
        self.found, self.device, self.packages = Snapshot(), device, packages
        self.inputs = {id(value): name for name, value in inputs.items()}
        self.paths: dict[int, str] = {}
        self.alive: list[Any] = []
        """What ``paths`` knows by its id, which another object could have after its end."""
        self.memory: list[tuple[str, int, int, str]] = []
        """Device, first and last byte, path of each array."""

    def node(self, value: Any, path: str) -> Any:
        """Return JSON for a value; its tensors go into the table."""
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if isinstance(value, np.generic):
            self.found.tensors[path] = torch.from_numpy(self._known(np.array(value), path))
            return {"scalar": path}
        if (name := self.inputs.get(id(value))) is not None:
            return {"input": name}
        if isinstance(value, KEPT):
            self.found.needed.add(path)
            return {"kept": described(value)}
        if (before := self.paths.get(id(value))) is not None:
            return {"same": before}
        self.paths[id(value)] = path
        self.alive.append(value)
        return self._shared(value, path)

    def _shared(self, value: Any, path: str) -> Any:
        kind = type(value)
        if kind is Tensor:
            return self._tensor(value, path)
        if kind is np.ndarray:
            return self._array(value, path)
        if kind in (list, tuple, torch.Size):
            return {kind.__name__.lower(): self._items(value, path)}
        if kind in (set, frozenset):
            return {kind.__name__: [self._key(item, path) for item in sorted(value, key=repr)]}
        if kind in (slice, range):
            bounds = [value.start, value.stop, value.step]
            return {kind.__name__: self._items(bounds, path)}
        if kind is collections.deque:
            return {"deque": self._items(value, path), "maxlen": value.maxlen}
        if kind in (dict, collections.OrderedDict):
            return {kind.__name__: self._pairs(value, path)}
        if kind is collections.defaultdict and value.default_factory in FACTORIES.values():
            return {kind.__name__: self._pairs(value, path),
                    "factory": value.default_factory.__name__}  # fmt: skip
        if kind is np.random.Generator:
            bits = value.bit_generator
            return {"generator": type(bits).__name__, "state": self.node(bits.state, path)}
        if kind is random.Random:
            return {"random": self.node(value.getstate(), path)}
        if kind is torch.Generator:
            self.found.tensors[path] = value.get_state()
            return {"torch_generator": path, "device": str(value.device)}
        if isinstance(value, STATE_DICTS):
            self.found.needed.add(path)
            return {"state_dict": self.node(dict(value.state_dict()), path)}
        if plain_class(kind):
            if package_of(kind) not in self.packages:
                self.found.needed.add(path)
            attributes = {n: self.node(v, f"{path}.{n}") for n, v in vars(value).items()}
            return {"object": class_name(kind), "attributes": attributes}
        raise self._unknown(value, path)

    def _unknown(self, value: Any, path: str) -> SpcacwError:
        kind = type(value)
        return SpcacwError(
            f"{path} is a {kind.__module__}.{kind.__qualname__}, which no checkpoint can hold: "
            "keep numbers, tensors, arrays, containers or plain objects of these, or set "
            "checkpoint-every = -1 to go without checkpoints."
        )

    def _items(self, values: Any, path: str) -> list[Any]:
        return [self.node(value, f"{path}[{k}]") for k, value in enumerate(values)]

    def _pairs(self, table: Mapping[Any, Any], path: str) -> list[list[Any]]:
        return [
            [self._key(name, path), self.node(value, f"{path}[{name!r}]")]
            for name, value in table.items()
        ]

    def _key(self, key: Any, path: str) -> Any:
        """Return JSON for a key of a dict or a member of a set."""
        if key is None or type(key) in (bool, int, str):
            return key
        if type(key) is float:
            return self.node(key, path)
        if type(key) is tuple:
            return {"tuple": [self._key(part, path) for part in key]}
        raise self._unknown(key, f"A key of {path}")

    def _known(self, array: NDArray[Any], path: str) -> NDArray[Any]:
        if array.dtype.char not in ARRAYS or not array.dtype.isnative:
            raise SpcacwError(f"{path} has the dtype {array.dtype}, which no checkpoint can hold.")
        return array

    def _tensor(self, value: Tensor, path: str) -> Any:
        if value.layout != torch.strided or value.is_quantized or value.is_complex():
            raise self._unknown(value, path)
        value = value.detach()
        order = axes(value.stride())
        first, size = value.data_ptr(), value.element_size()
        span = sum((n - 1) * step for n, step in zip(value.shape, value.stride(), strict=True))
        if value.numel():
            self.memory.append((str(value.device), first, first + (span + 1) * size, path))
        dense = value.permute(order).contiguous()
        if dense.untyped_storage().nbytes() != dense.nbytes:  # a part of a larger one
            dense = dense.clone()
        self.found.tensors[path] = dense
        away = "" if value.device == self.device else value.device.type
        return {"tensor": path, "order": order, "away": away}

    def _array(self, value: NDArray[Any], path: str) -> Any:
        self._known(value, path)
        order = axes(value.strides)
        if value.size:
            self.memory.append(("cpu", *np.lib.array_utils.byte_bounds(value), path))
        dense = np.require(value.transpose(order), requirements=["C", "W"])
        self.found.tensors[path] = torch.from_numpy(dense)
        return {"array": path, "order": order}

    def check_memory(self) -> None:
        """See that no two arrays overlap: restored, they would go separate ways."""
        ordered = sorted(self.memory)
        for (device, _, end, path), (other, first, _, path2) in itertools.pairwise(ordered):
            if device == other and first < end:
                raise SpcacwError(
                    f"{path} and {path2} share memory, which no checkpoint can hold: keep one, "
                    "make the other of it where it is used (or copy it), or set "
                    "checkpoint-every = -1 to go without checkpoints."
                )


def axes(strides: tuple[int, ...]) -> list[int]:
    """Return the axes of an array in the order of its memory, the slowest first."""
    return sorted(range(len(strides)), key=lambda axis: (-strides[axis], axis))


def described(value: Any) -> str:
    """Return what tells a function or class from another; of other values their class."""
    named = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if named is not None:
        return f"{getattr(value, '__module__', '')}:{named}"
    return class_name(type(value))
