"""States of objects: what goes in comes out, bit for bit, shared where it was shared."""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import random
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.torch import load, save
from torch import nn

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.restore import restore
from spcacw_flwr.engine.snapshot import state_of

CPU = torch.device("cpu")


class Box:
    """An object with any attributes."""

    def __init__(self, **attributes):
        vars(self).update(attributes)


@dataclasses.dataclass(frozen=True)
class Frozen:
    """A value that must be replaced, not changed, for others may hold it."""

    values: np.ndarray


class Ranked(nn.Linear):
    """A module as a user's own method may have one."""


def through_disk(found):
    """Return tensors and JSON as they are after a checkpoint."""
    return load(save(found.tensors)), json.loads(json.dumps(found.plain))


def back(value, fresh=None):
    """Return a value after it was kept and restored; ``fresh`` is what there is at first."""
    tensors, plain = through_disk(state_of({"box": Box(value=value)}, {}))
    box = Box() if fresh is None else Box(value=fresh)
    return restore({"box": box}, tensors, plain, {}, CPU)["box"].value


def assert_same(one, other):
    """Equal in type, structure and every bit."""
    assert type(one) is type(other)
    if isinstance(one, np.ndarray | np.generic):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert one.tobytes() == other.tobytes()
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert_same(one.numpy(), other.numpy())
    elif isinstance(one, dict):
        assert_same(list(one), list(other))
        assert_same(list(one.values()), list(other.values()))
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    elif isinstance(one, float):
        assert math.isnan(one) == math.isnan(other)
        assert math.isnan(one) or (
            one == other and math.copysign(1, one) == math.copysign(1, other)
        )
    else:
        assert one == other


arrays = hnp.arrays(
    st.sampled_from([np.float64, np.float32, np.int64, np.int32, np.uint8, np.bool_]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
leaves = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
    | arrays | arrays.map(torch.from_numpy)
    | st.floats(width=32).map(np.float32) | st.floats().map(np.float64)
)  # fmt: skip
keys = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=3)
    | st.tuples(st.integers(), st.text(max_size=2))
)  # fmt: skip
states = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(value=states, fresh=states)
def test_whatever_is_kept_comes_back(value, fresh):
    """Whatever the fresh object has in its place."""
    assert_same(value, back(value, fresh))


@settings(max_examples=50, deadline=None)
@given(
    array=hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=3, min_side=2)),
    flip=st.booleans(),
)
def test_axes_keep_their_order_in_memory(array, flip):
    """A sum along rows is made in another order than along columns."""
    value = np.asfortranarray(array) if flip else array
    for found in (back(value), back(value, array.copy())):
        assert found.flags.f_contiguous == value.flags.f_contiguous
        assert found.flags.c_contiguous == value.flags.c_contiguous
        assert_same(found.copy(order="C"), np.ascontiguousarray(value))
    tensor = torch.from_numpy(value)
    assert back(tensor).stride() == tensor.stride()


def test_what_is_shared_stays_shared_and_what_is_not_does_not():
    one, rows = torch.ones(3), np.arange(4.0)
    value = {"a": one, "b": [one, rows], "c": rows, "d": torch.ones(3)}
    twice = torch.zeros(3)
    for fresh in (None, {"a": twice, "b": [], "d": twice}):
        found = back(value, fresh)
        assert found["a"] is found["b"][0]
        assert found["c"] is found["b"][1]
        assert found["d"] is not found["a"]
        assert_same(found, value)


def test_a_cycle_comes_back():
    value = Box(name="a", inner=Box())
    value.inner.outer, value.me = value, [value]
    found = back(value)
    assert found.inner.outer is found
    assert found.me[0] is found


def test_what_fits_is_overwritten_in_place():
    """Somebody else may hold it."""
    fresh = Box(weights=torch.zeros(2), rates=np.zeros(2), table={"x": torch.zeros(1)}, items=[1])
    held = dict(vars(fresh))
    value = Box(weights=torch.ones(2), rates=np.ones(2), table={"x": torch.ones(1)}, items=[2, 3])
    found = back(value, fresh)
    assert found is fresh
    for name, old in held.items():
        assert getattr(found, name) is old
        assert_same(old, getattr(value, name))


def test_a_frozen_value_is_replaced():
    fresh = Box(it=Frozen(np.zeros(2)))
    shared = fresh.it
    found = back(Box(it=Frozen(np.ones(3))), fresh)
    assert found.it.values.sum() == 3
    assert shared.values.sum() == 0


def test_inputs_and_functions_are_the_fresh_ones():
    config, law = Box(eta=1), math.sqrt
    value = Box(config=config, law=law, kind=Box)
    tensors, plain = through_disk(state_of({"box": value}, {"config": config}))
    other = Box(eta=2)
    found = restore({"box": Box(law=law, kind=Box)}, tensors, plain, {"config": other}, CPU)["box"]
    assert found.config is other
    assert found.law is law
    with pytest.raises(SpcacwError, match=r"a math:sqrt is wanted at box\.law"):
        restore({"box": Box(law=math.cbrt, kind=Box)}, tensors, plain, {"config": other}, CPU)


def test_random_generators_go_on():
    for maker in (np.random.default_rng, lambda s: np.random.Generator(np.random.MT19937(s))):
        one = maker(3)
        one.random(5)
        found = back(one)
        assert found.random() == one.random()
    one, drawn = random.Random(3), torch.Generator()
    drawn.manual_seed(5)
    torch.rand(3, generator=drawn)
    found, twin = back(one), back(drawn)
    assert found.random() == one.random()
    assert torch.equal(torch.rand(4, generator=twin), torch.rand(4, generator=drawn))


def test_modules_and_their_optimisers():
    def fresh():
        torch.manual_seed(0)
        net = Ranked(3, 2)
        return Box(net=net, optimiser=torch.optim.Adam(net.parameters(), lr=0.1))

    def steps(box, count):
        for k in range(count):
            box.optimiser.zero_grad()
            box.net(torch.full((1, 3), float(k))).square().sum().backward()
            box.optimiser.step()
        return box

    stopped, whole = steps(fresh(), 3), steps(fresh(), 3)
    found = back(stopped, fresh())
    assert torch.equal(steps(found, 2).net.weight, steps(whole, 2).net.weight)


def test_other_containers():
    value = {
        "window": collections.deque([1, 2.5], maxlen=2), "seen": {3, 1}, "names": frozenset("ab"),
        "order": collections.OrderedDict(b=1, a=2), "shape": torch.Size((2, 3)),
        "part": slice(3, None), "range": range(1, 9, 2),
        "lists": collections.defaultdict(list, {0: [1]}), "half": torch.ones(2).bfloat16(),
    }  # fmt: skip
    found = back(value)
    assert list(found["order"]) == ["b", "a"]
    assert found["window"].maxlen == 2
    assert found["lists"]["new"] == []
    assert found.pop("half").dtype == value.pop("half").dtype
    assert found | {"lists": 0} == value | {"lists": 0}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (threading.Lock(), "_thread.lock"),
        ((x for x in ()), "builtins.generator"),
        (nn.Parameter(torch.ones(1)), "Parameter"),
        (np.array(["a"]), "dtype <U1"),
        (np.array([None]), "dtype object"),
        (1j, "builtins.complex"),
        (b"", "builtins.bytes"),
        (collections.defaultdict(lambda: 1), "defaultdict"),
        ({Box(): 1}, "A key of box.value"),
    ],
)
def test_what_cannot_be_kept_is_named(value, words):
    with pytest.raises(SpcacwError, match=r"box\.value.*no checkpoint can hold") as error:
        state_of({"box": Box(value=value)}, {})
    assert words in str(error.value)


def test_arrays_that_overlap_are_refused_and_neighbours_are_not():
    base = torch.zeros(6)
    with pytest.raises(SpcacwError, match=r"box\.\w+ and box\.\w+ share memory"):
        state_of({"box": Box(all=base, head=base[4:])}, {})
    table = np.zeros((2, 3))
    with pytest.raises(SpcacwError, match="share memory"):
        state_of({"box": Box(a=table, b=torch.from_numpy(table))}, {})
    one, other = np.zeros((2, 3))
    assert len(state_of({"box": Box(one=one, other=other)}, {}).tensors) == 2


def test_a_part_of_a_large_tensor_costs_no_more_than_itself():
    found = state_of({"box": Box(row=torch.zeros(1000, 8)[3])}, {})
    assert found.nbytes == 32
    assert len(save(found.tensors)) < 400


def test_a_class_of_nowhere_is_not_made():
    tensors, plain = through_disk(state_of({"box": Box(inner=Box())}, {}))
    plain["box"]["attributes"]["inner"]["object"] = "subprocess:Popen"
    with pytest.raises(SpcacwError, match=r"a subprocess\.Popen is wanted at box\.inner"):
        restore({"box": Box()}, tensors, plain, {}, CPU)


def test_objects_of_others_must_be_there_from_the_start():
    assert "box.theirs" in state_of({"box": Box(theirs=json.JSONEncoder())}, {}).needed
    assert not state_of({"box": Box(ours=Box())}, {}).needed
