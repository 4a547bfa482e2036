"""Puts a state that :mod:`spcacw_flwr.engine.snapshot` found back into fresh objects.

Fresh objects are made as at the beginning of a run, from configuration and federation; then their
attributes are set. Where a fresh object has a value of the same kind, it is overwritten in place,
so that whoever holds it sees the change; each is used once, for one value of the state. No code is
named in a state, but classes: one that a fresh object does not have is made without its
constructor, and only if it is this project's or from the package of the object itself.
"""

from __future__ import annotations

import collections
import random
import sys
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.snapshot import (
    FACTORIES,
    STATE_DICTS,
    class_name,
    described,
    packages_of,
    plain_class,
)

BITS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
SPANS: dict[str, Any] = {"slice": slice, "range": range}
SEQUENCES = {"list": list, "tuple": tuple, "size": torch.Size, "set": set, "frozenset": frozenset}


def restore(
    fresh: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    plain: Mapping[str, Any],
    inputs: Mapping[str, Any],
    device: torch.device,
) -> dict[str, Any]:
    """Return the named objects with their state; those of ``fresh`` are changed in place.

    ``device`` is where the objects compute; tensors of which nobody knows better go there.

    Raises
    ------
    SpcacwError
        If the state does not fit the fresh objects.
    """
    work = _Work(tensors, inputs, device, packages_of(fresh))
    return {name: work.value(plain[name], fresh.get(name), name) for name in plain}


class _Work:
    """One restoration."""

    def __init__(
        self, tensors: Mapping[str, Tensor], inputs: Mapping[str, Any], device: torch.device,
        packages: set[str],
    ) -> None:  # fmt: skip
        self.tensors, self.inputs, self.device = tensors, inputs, device
        self.packages = packages
        self.made: dict[str, Any] = {}
        """What stands at each path, for those who share it."""
        self.used: dict[int, Any] = {}
        """Fresh values that were overwritten, by their id."""

    def value(self, node: Any, fresh: Any, path: str) -> Any:
        """Return the value that a node of the state describes."""
        if not isinstance(node, dict):
            return node
        kind = next(iter(node))
        content = node[kind]
        if kind == "float":
            return float(content)
        if kind == "scalar":
            return self.tensors[content].numpy()[()]
        if kind == "input":
            return self.inputs[content]
        if kind == "same":
            return self.made[content]
        if kind == "kept":
            if fresh is None or described(fresh) != content:
                raise self._misfit(path, content)
            return fresh
        if id(fresh) in self.used:  # stands for another value already
            fresh = None
        found = self._make(kind, node, fresh, path)
        if found is fresh:
            self.used[id(fresh)] = fresh
        self.made[path] = found
        return found

    def _misfit(self, path: str, what: str) -> SpcacwError:
        return SpcacwError(
            f"The checkpoint cannot be used: a {what} is wanted at {path}, and the method that "
            "this configuration makes has none there."
        )

    def _make(self, kind: str, node: Mapping[str, Any], fresh: Any, path: str) -> Any:
        content = node[kind]
        if kind == "tensor":
            return self._tensor(node, fresh)
        if kind == "array":
            return self._array(node, fresh)
        if kind in SEQUENCES:
            return self._sequence(SEQUENCES[kind], content, fresh, path)
        if kind in SPANS:
            return SPANS[kind](*self._items(content, None, path))
        if kind == "deque":
            return collections.deque(self._items(content, fresh, path), node["maxlen"])
        if kind in ("dict", "OrderedDict", "defaultdict"):
            return self._table(kind, node, fresh, path)
        if kind == "generator":
            return self._generator(node, path)
        if kind == "random":
            found = random.Random()
            found.setstate(self.value(content, None, path))
            return found
        if kind == "torch_generator":
            generator = torch.Generator(node["device"])
            generator.set_state(self.tensors[content].clone())
            return generator
        if kind == "state_dict":
            if not isinstance(fresh, STATE_DICTS):
                raise self._misfit(path, "module or optimiser")
            fresh.load_state_dict(self.value(content, None, path))
            return fresh
        if kind == "object":
            return self._object(content, node["attributes"], fresh, path)
        raise SpcacwError(f"The checkpoint cannot be used: {path} is of an unknown kind, {kind}.")

    def _tensor(self, node: Mapping[str, Any], fresh: Any) -> Tensor:
        saved, order = self.tensors[node["tensor"]], node["order"]
        dense = saved.permute([order.index(axis) for axis in range(saved.ndim)])
        fits = type(fresh) is Tensor and fresh.shape == dense.shape
        if fits and fresh.dtype == dense.dtype and fresh.stride() == dense.stride():
            with torch.no_grad():
                fresh.copy_(dense)
            return fresh
        # Of a tensor that was not where the method computed, or where that was the CPU, the fresh
        # object knows best.
        home = torch.device("cpu") if node["away"] == "cpu" else self.device
        return dense.clone().to(fresh.device if fits else home)

    def _array(self, node: Mapping[str, Any], fresh: Any) -> NDArray[Any]:
        saved, order = self.tensors[node["array"]].numpy(), node["order"]
        dense: NDArray[Any] = saved.transpose([order.index(axis) for axis in range(saved.ndim)])
        same = type(fresh) is np.ndarray and fresh.flags.writeable and fresh.shape == dense.shape
        if same and fresh.dtype == dense.dtype and fresh.strides == dense.strides:
            fresh[...] = dense
            return fresh
        return dense.copy(order="K")

    def _items(self, nodes: list[Any], fresh: Any, path: str) -> list[Any]:
        old = list(fresh) if isinstance(fresh, list | tuple | collections.deque) else []
        old += [None] * (len(nodes) - len(old))
        return [self.value(node, old[k], f"{path}[{k}]") for k, node in enumerate(nodes)]

    def _sequence(self, kind: type, nodes: list[Any], fresh: Any, path: str) -> Any:
        if kind is not list:
            return kind(self._items(nodes, fresh, path))
        old, found = fresh if type(fresh) is list else None, fresh if type(fresh) is list else []
        self.made[path] = found
        found[:] = self._items(nodes, list(old or ()), path)
        return found

    def _table(self, kind: str, node: Mapping[str, Any], fresh: Any, path: str) -> Any:
        empty: Any
        if kind == "defaultdict":
            empty = collections.defaultdict(FACTORIES[node["factory"]])
        else:
            empty = {} if kind == "dict" else collections.OrderedDict()
        found = fresh if type(fresh) is type(empty) else empty
        old = dict(found)
        self.made[path] = found
        found.clear()
        for key, value in node[kind]:
            name = self.value(key, None, path)
            found[name] = self.value(value, old.get(name), f"{path}[{name!r}]")
        return found

    def _generator(self, node: Mapping[str, Any], path: str) -> np.random.Generator:
        if node["generator"] not in BITS:
            raise self._misfit(path, node["generator"])
        bits = getattr(np.random, node["generator"])()
        bits.state = self.value(node["state"], None, path)
        return np.random.Generator(bits)

    def _object(self, name: str, attributes: Mapping[str, Any], fresh: Any, path: str) -> Any:
        there = fresh is not None and class_name(type(fresh)) == name
        kind = type(fresh) if there else self._class(name, path)
        frozen = is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
        found = fresh if there and not frozen else object.__new__(kind)
        self.made[path], old = found, dict(vars(fresh)) if there else {}
        values = {n: self.value(v, old.get(n), f"{path}.{n}") for n, v in attributes.items()}
        vars(found).clear()
        vars(found).update(values)
        return found

    def _class(self, name: str, path: str) -> type:
        module, _, qualified = name.partition(":")
        found: Any = sys.modules.get(module) if module.partition(".")[0] in self.packages else None
        for part in qualified.split("."):
            found = getattr(found, part, None)
        if not (isinstance(found, type) and plain_class(found)):
            raise self._misfit(path, name.replace(":", "."))
        return found
