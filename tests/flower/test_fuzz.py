"""Replies of any shape through the real Strategy: as if the silo had stayed silent, bit for bit."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.registry import METHODS
from spcacw_flwr.flower import records
from spcacw_flwr.flower.strategy import GradientStrategy
from tests.flower.grid import LocalGrid
from tests.flower.test_strategy import initial_arrays, play

ROUNDS, BAD = 4, 4
"""Rounds of a run (an epoch), and the silo that answers badly in some of them."""
METHOD_KEYS: dict[str, dict[str, Any]] = {
    "spcacw": {"update_every": 2},
    "spcacw-reg": {"update_every": 2, "participation": 0.7},
    "fedavg": {},
    "meritfed": {"meritfed": {"inner-steps": 2}},
    "ditto": {},
}
Tamper = Callable[[Message, Message], list[Message]]
"""What arrives instead of a reply to a message."""


class TamperingGrid(LocalGrid):
    """The silo ``BAD``, alone on its node, tampers with its replies in ``rounds``."""

    def __init__(self, config: Config, tamper: Tamper, rounds: Iterable[int]) -> None:
        super().__init__(config, 7)
        self.tamper, self.rounds = tamper, set(rounds)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        sent = {message.metadata.message_id: message for message in self.sent}
        arrived: list[Message] = []
        for reply in super().pull_messages(message_ids):
            message = sent[reply.metadata.reply_to_message_id]
            asked = message.content.config_records.get("config", {})
            training = message.metadata.message_type == "train"
            mine = message.metadata.dst_node_id == self.node_of(BAD)
            if training and mine and asked["round"] in self.rounds:
                arrived += self.tamper(message, reply)
            else:
                arrived.append(reply)
        return arrived


def silence(message: Message, reply: Message) -> list[Message]:
    return []


def honest(message: Message, reply: Message) -> list[Message]:
    return [reply]


def config_of(method: str, **keys: Any) -> Config:
    small = {"samples_per_silo": 100, "compare_alone": False, "epochs": 1, "max_strikes": 0}
    return Config.from_keys(method=method, **(small | METHOD_KEYS.get(method, {}) | keys))


def run(config: Config, tamper: Tamper, rounds: Iterable[int]) -> GradientStrategy:
    return play(config, TamperingGrid(config, tamper, rounds), ROUNDS)


LEFT_OUT = ("config", "federation", "own", "keys", "_cost")
"""What a method was made of, and its count of floats."""


def leaves(thing: Any, path: str = "") -> dict[str, Any]:
    """Return everything that a method holds, but what is left out."""
    if isinstance(thing, torch.Tensor):
        thing = thing.numpy()
    if isinstance(thing, np.ndarray):
        return {path: thing.tobytes()}
    if isinstance(thing, list | tuple):
        thing = dict(enumerate(thing))
    elif type(thing).__module__.startswith(("spcacw_flwr", "baselines")):
        thing = vars(thing)
    if not isinstance(thing, dict):
        return {path: repr(thing)}  # of NaN, too
    found: dict[str, Any] = {}
    for name in thing.keys() - LEFT_OUT:
        found |= leaves(thing[name], f"{path}.{name}")
    return found


@cache
def silent(method: str, rounds: tuple[int, ...]) -> dict[str, Any]:
    return leaves(run(config_of(method), silence, rounds).method)


# What can be wrong with the content of a reply. Each spoils it in one way, whatever came before.


def forget(content: RecordDict, record: str) -> None:
    content.pop(record, None)


def say(content: RecordDict, name: str, value: Any) -> None:
    """Say another number; with None, no number."""
    said = {**content.metric_records.get(records.METRICS, MetricRecord()), name: value}
    content[records.METRICS] = MetricRecord({k: v for k, v in said.items() if v is not None})


def other_kind(content: RecordDict, record: str) -> None:
    content[record] = ConfigRecord({"gradients": "no", "silos": [BAD], "loss": "none"})


def rename(content: RecordDict, name: str) -> None:
    arrays = content.array_records.get(records.ARRAYS, ArrayRecord())
    for array in arrays.values():
        content[records.ARRAYS] = ArrayRecord({name: array})


def bytes_of_anything(content: RecordDict, data: bytes, dtype: str, stype: str) -> None:
    array = Array(dtype=dtype, shape=(1, 3), stype=stype, data=data)
    content[records.ARRAYS] = ArrayRecord({records.GRADIENTS: array})


def change(content: RecordDict, how: Callable[[np.ndarray], np.ndarray]) -> None:
    array = content.array_records.get(records.ARRAYS, ArrayRecord()).get(records.GRADIENTS)
    if array is not None and array.data.startswith(b"\x93NUMPY"):
        found = how(array.numpy().copy())
        content[records.ARRAYS] = ArrayRecord({records.GRADIENTS: Array(found)})


def entry(content: RecordDict, at: int, value: float) -> None:
    def put(array: np.ndarray) -> np.ndarray:
        if array.size and array.dtype.kind in "fc":
            array.reshape(-1)[at % array.size] = value
        return array

    change(content, put)


def lengthen(content: RecordDict, norm: float) -> None:
    def scale(array: np.ndarray) -> np.ndarray:
        if array.dtype != np.float32 or not array.any():
            return array
        return (array * (norm / np.linalg.norm(array.astype(float)))).astype(np.float32)

    change(content, scale)


def cast(content: RecordDict, dtype: str) -> None:
    change(content, lambda array: np.nan_to_num(array.real).astype(dtype))


def reshape(content: RecordDict, how: str) -> None:
    shapes: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "flat": np.ravel, "column": lambda a: a.reshape(-1, 1),
        "short": lambda a: a.reshape(1, -1)[:, :-1], "deep": lambda a: a[None],
        "twice": lambda a: np.concatenate((a.reshape(1, -1),) * 2),
        "empty": lambda a: a.reshape(1, -1)[:0], "bare": lambda a: a.reshape(1, -1)[:, :0],
        "scalar": lambda a: a.reshape(-1)[:1].sum(),
    }  # fmt: skip
    change(content, lambda array: np.asarray(shapes[how](array)))


def complain(content: RecordDict, words: str) -> None:
    content[records.CONFIG] = ConfigRecord({records.ERROR: words})


def build(spoil: Callable[..., None], **arguments: st.SearchStrategy[Any]) -> Any:
    """Return the ways to spoil a reply, each with a telling repr."""
    return st.builds(partial, st.just(spoil), **arguments)


ENDLESS = st.sampled_from([np.nan, np.inf, -np.inf, 1e30, -1e30])
BAD_LOSS = st.sampled_from([np.nan, np.inf, -np.inf, 1e300, [], [1.0, 2.0], [np.nan]])
OTHER_IDS = st.lists(st.integers(-3, 9), max_size=3).filter(lambda ids: ids.count(BAD) != 1)
WRONG_NUMBER = st.one_of(
    st.integers(ROUNDS + 1, 10**9), st.integers(-9, -1), st.floats(allow_nan=True),
    st.lists(st.integers(0, 9), min_size=2, max_size=4), st.just([]),
)  # fmt: skip
RECORDS = st.sampled_from(["arrays", "metrics"])
NAMES = st.sampled_from(["round", "draw", "silos", "loss"])
SHAPES = ["flat", "column", "short", "deep", "twice", "empty", "bare", "scalar"]
DTYPES = ["float64", "float16", "int32", "int8", "bool", "complex64", ">f4", "S3"]
SPOILS = {
    "no record": build(forget, record=RECORDS),
    "no number": build(say, name=NAMES, value=st.none()),
    "wrong round": build(say, name=st.sampled_from(["round", "draw"]), value=WRONG_NUMBER),
    "wrong silos": build(say, name=st.just("silos"), value=OTHER_IDS),
    "bad loss": build(say, name=st.just("loss"), value=BAD_LOSS),
    "record of another kind": build(other_kind, record=RECORDS),
    "array of another name": build(rename, name=st.sampled_from(["gradient", "", "model", "0"])),
    "any bytes": build(
        bytes_of_anything, data=st.binary(max_size=40),
        dtype=st.sampled_from(["float32", "object", ""]),
        stype=st.sampled_from(["numpy.ndarray", "pickle", ""]),
    ),
    "endless number": build(entry, at=st.integers(0, 10**6), value=ENDLESS),
    "too long": build(lengthen, norm=st.floats(1.001, 1e38)),
    "wrong type": build(cast, dtype=st.sampled_from(DTYPES)),
    "wrong shape": build(reshape, how=st.sampled_from(SHAPES)),
    "nothing": build(RecordDict.clear),
    "complaint": build(complain, words=st.text(max_size=30)),
}  # fmt: skip


@dataclass
class Content:
    """Sends the reply with its content spoiled."""

    spoils: Sequence[Callable[[RecordDict], None]]

    def __call__(self, message: Message, reply: Message) -> list[Message]:
        for spoil in self.spoils:
            spoil(reply.content)
        return [reply]


# What can be wrong with a message.


def failed(message: Message, reply: Message) -> list[Message]:
    return [Message(Error(code=2, reason="Traceback\n\x1b[31m" + "x" * 999), reply_to=message)]


def lost(message: Message, reply: Message) -> list[Message]:
    """As the SuperLink says of a node that is gone: from itself, in the node's place."""
    (error,) = failed(message, reply)
    error.metadata.__dict__["_src_node_id"] = 1
    return [error]


def twice(message: Message, reply: Message) -> list[Message]:
    return [reply, reply]


def by_a_stranger(message: Message, reply: Message) -> list[Message]:
    reply.metadata.__dict__["_src_node_id"] = 999
    return [reply]


def to_another_message(message: Message, reply: Message) -> list[Message]:
    reply.metadata.__dict__["_reply_to_message_id"] = "no such message"
    return [reply]


TAMPERS: dict[str, st.SearchStrategy[Tamper]] = {
    **{name: st.builds(Content, st.tuples(one)) for name, one in SPOILS.items()},
    "all sorts": st.builds(Content, st.lists(st.one_of(*SPOILS.values()), min_size=2, max_size=4)),
    "failed": st.just(failed), "lost": st.just(lost), "twice": st.just(twice),
    "by a stranger": st.just(by_a_stranger), "to nothing": st.just(to_another_message),
}  # fmt: skip
UNBLAMED = (by_a_stranger, to_another_message)
"""What is nobody's answer: the silo is silent, and has done nothing wrong."""


@pytest.mark.parametrize("kind", TAMPERS)
@settings(max_examples=6, deadline=None, derandomize=True)
@given(data=st.data(), method=st.sampled_from(list(METHOD_KEYS)),
       rounds=st.sets(st.integers(1, ROUNDS), min_size=1))  # fmt: skip
def test_a_malformed_reply_is_as_silence(kind, data, method, rounds):
    tamper = data.draw(TAMPERS[kind])
    strategy = run(config_of(method), tamper, rounds)
    assert leaves(strategy.method) == silent(method, tuple(sorted(rounds)))
    asked = sum(BAD in strategy.method.sampled(t) for t in rounds)
    counts = strategy.history.gate.counts
    assert counts[BAD].sum() == counts.sum() == asked * (tamper not in UNBLAMED)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_bears_a_reply_of_1e30(method):
    config = config_of(method, participation=1.0)
    spoil = Content([partial(entry, at=7, value=1e30)])
    found = run(config, spoil, [2, 3])
    asked = found.history.gate.counts.sum()
    assert asked == (0 if method in ("local", "oracle", "oracle-averaged") else 2)
    expected = run(config, silence, [2, 3])
    assert leaves(found.method) == leaves(expected.method)
    assert found.method.personal.isfinite().all()


def test_the_comparison_sees_what_a_reply_does():
    """The other tests can fail: silence, honesty and one changed number are three states."""
    for method in METHOD_KEYS:
        config = config_of(method, participation=1.0)
        shorten = Content([partial(lengthen, norm=0.5)])  # no longer than it may be
        states = [leaves(run(config, tamper, [2]).method) for tamper in (honest, shorten, silence)]
        for k in range(3):
            assert states[k].keys() == states[0].keys()
            assert states[k] != states[k - 1]


def test_without_a_bound_a_long_reply_moves_the_model():
    """What is kept out by the norm alone: nothing else tells 1e6 times a gradient from it."""
    for bound, moves in [(0.0, True), (20.0, False)]:
        config = config_of("fedavg", max_norm=0.0, norm_bound=bound)
        expected = run(config, silence, [ROUNDS]).method.parameters
        found = run(config, Content([partial(lengthen, norm=1e6)]), [ROUNDS]).method.parameters
        assert (float((found - expected).norm()) > 1e3) == moves
        assert torch.equal(found, expected) != moves


@pytest.mark.parametrize("how", ["float32", "float16"])
@pytest.mark.parametrize(
    "more", [Array("float32", (3,), "numpy.ndarray", b"no array"), Array(np.array(["a text"]))],
    ids=["garbage", "text"],
)  # fmt: skip
def test_what_a_node_sends_beside_its_gradients_costs_it_nothing(how, more):
    def adds(content):
        if records.ARRAYS in content:
            content[records.ARRAYS]["more"] = more

    config = config_of("spcacw", wire=how)
    plain, added = (run(config, tamper, [2]).method for tamper in (honest, Content([adds])))
    assert leaves(added) == leaves(plain)


def test_of_a_node_with_several_silos_only_the_bad_one_is_lost():
    """Silos 3 and 4 share a node: a bad row, and a row that is not there, cost silo 4 alone."""
    config = config_of("spcacw")
    initial_size = records.arrays_to_model(initial_arrays(config))[0].size

    def with_nan(content):
        entry(content, initial_size + 5, np.nan)

    def without(content):
        change(content, lambda array: array[:1].copy())
        say(content, "silos", [3])
        say(content, "loss", content[records.METRICS]["loss"][:1])

    def swapped(content):
        say(content, "silos", [4, 3])

    methods, counts = [], []
    for spoil in (with_nan, without, swapped):

        def spoiled(message, content, spoil=spoil):
            if message.metadata.message_type == "train":
                spoil(content)
            return content

        grid = LocalGrid(config, 3)
        grid.spoil[102] = spoiled
        strategy = play(config, grid, ROUNDS)
        methods.append(leaves(strategy.method))
        counts.append(strategy.history.gate.rejections())
    assert counts == [
        {"4": {"not-finite": ROUNDS}}, {"4": {"silo": ROUNDS}},
        {"3": {"silo": ROUNDS}, "4": {"silo": ROUNDS}},
    ]  # fmt: skip
    assert methods[0] == methods[1] != methods[2]


def test_a_late_reply_is_not_taken_for_this_rounds():
    kept: list[RecordDict] = []

    def late(message: Message, reply: Message) -> list[Message]:
        kept.append(reply.content)
        return [Message(kept[-2], reply_to=message)] if len(kept) > 1 else []

    strategy = run(config_of("spcacw"), late, range(1, ROUNDS + 1))
    assert strategy.history.gate.rejections() == {str(BAD): {"round": ROUNDS - 1}}
    assert leaves(strategy.method) == silent("spcacw", tuple(range(1, ROUNDS + 1)))


def test_a_bad_reply_of_the_target_ends_the_run_and_is_named():
    config = config_of("spcacw", target=BAD)
    spoil = Content([partial(entry, at=0, value=np.nan)])
    with pytest.raises(SpcacwError, match=r"did not answer round 3 \(its gradient is not finite\)"):
        run(config, spoil, [3])
    for value in ([np.nan], [1.0, 2.0]):
        spoil = Content([partial(say, name=records.SMOOTHNESS, value=value)])
        with pytest.raises(SpcacwError, match="did not answer round 1"):
            run(config, spoil, [1])
