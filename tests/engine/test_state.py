"""States of objects: what goes in comes out, bit for bit, shared where it was shared."""

import collections
import io
import math
import random
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.state import load, save
from tests.engine.test_checkpoint import assert_same_state


class Box:
    """An object with any attributes."""

    def __init__(self, **attributes):
        vars(self).update(attributes)


def back(inputs=None, **attributes):
    """Return a box with these attributes after it was kept and loaded."""
    fresh, content = Box(old=1), save({"box": Box(**attributes)}, inputs or {})
    assert load(io.BytesIO(content), {"box": fresh}, inputs or {}, {})["box"] is fresh
    return fresh


arrays = hnp.arrays(
    st.sampled_from([np.float64, np.float32, np.int64, np.int32, np.uint8, np.bool_]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
leaves = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
    | arrays | arrays.map(torch.from_numpy)
    | st.floats(width=32).map(np.float32) | st.floats().map(np.float64)
)  # fmt: skip
states = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(value=states)
def test_whatever_is_kept_comes_back(value):
    assert_same_state(Box(value=value), back(value=value))


def test_containers_generators_and_the_order_of_axes_come_back():
    rng, other = np.random.default_rng(3), random.Random(4)
    rng.normal(), other.random()
    value = {
        "deque": collections.deque([1, torch.ones(2)], maxlen=3),
        "default": collections.defaultdict(list, {1: [2.0]}),
        "set": {1, 2}, "slice": slice(1, None), "range": range(3), "nan": math.nan,
        "rng": rng, "columns": np.asfortranarray(np.ones((2, 3))), "half": torch.ones(2).half(),
        "turned": torch.ones(2, 3).t(), "layer": torch.nn.Linear(2, 2),
    }  # fmt: skip
    found = back(value=value, other=other)
    assert_same_state(Box(value=value, other=other), found)
    assert found.value["columns"].flags.f_contiguous
    assert (found.value["rng"].normal(), found.other.random()) == (rng.normal(), other.random())
    assert found.value["deque"].maxlen == 3


def test_what_is_shared_stays_shared():
    """Also a view into a larger array, and an object in two places."""
    whole, inner = torch.zeros(4), Box(n=1)
    found = back(whole=whole, part=whole[1:3], one=inner, two=inner)
    found.part += 1
    assert found.whole.tolist() == [0, 1, 1, 0]
    assert found.one is found.two


def test_inputs_are_kept_by_name_only():
    """A run may go on elsewhere: its configuration is then another one."""
    before, now = Config.from_keys(output="/before"), Config.from_keys(output="/now")
    fresh = Box()
    content = save({"box": Box(config=before, seed=Box(config=before))}, {"config": before})
    assert b"/before" not in content
    load(io.BytesIO(content), {"box": fresh}, {"config": now}, {})
    assert fresh.config is fresh.seed.config is now


@pytest.mark.parametrize(
    "value",
    [threading.Lock(), lambda: 1, eval, [io.StringIO()]],
    ids=["lock", "lambda", "function", "file"],
)
def test_what_cannot_be_kept_is_named(value):
    with pytest.raises(SpcacwError, match=r"box\.value is a .* which no checkpoint can hold: keep"):
        save({"box": Box(value=value)}, {})
