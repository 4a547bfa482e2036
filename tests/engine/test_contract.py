"""One sentence for each thing that a user's own method must give an engine, and gives wrong."""

import numpy as np
import pytest
import torch

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.registry import method_class
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.methods.base import Method
from spcacw_flwr.silos.protocol import Request
from tests.conftest import one_sentence

OWN = f"method = '{__name__}:Own'"
ROUND = f"{OWN}: round, which must yield Requests (spcacw_flwr.silos.protocol), raises "


def learn(self, request, replies):
    len(replies)


def breaks(self):
    return 1 / 0


def full(self, request, replies):
    raise torch.OutOfMemoryError("CUDA out of memory.")


def refused(monkeypatch, name, part, *words, guard=0):
    """A run of a method with a part of one's own ends with one sentence."""
    own = type("Own", (method_class("fedavg"),), {"name": "own", name: part})
    monkeypatch.setattr(f"{__name__}.Own", own, raising=False)
    keys = {"method": f"{__name__}:Own", "epochs": 2, "compare_alone": False, "guard": guard}
    with one_sentence(*words):
        simulate(Config.from_keys(**keys))


SHORT = property(lambda self: self.parameters[:-1])


@pytest.mark.parametrize(("name", "part", "words"), [
    ("round", lambda self, round_: None, f"{ROUND}TypeError: 'NoneType' object is not"),
    ("round", lambda self, round_: (one for one in "ab"), ROUND),
    ("round", lambda self, round_: iter([Request(round_, (0,), self.parameters[:-1])]),
     f"{OWN} asks at models of shape (4809,): each must have the 4810 numbers of its param"),
    ("learn", learn, f"{ROUND}TypeError: object of type 'Replies' has no len() (test_contract.py"),
    ("learn", full, "Training stopped, because no memory was left (CUDA out of memory): use"),
    ("personal", SHORT,
     "gives a Tensor of shape (4809,) as its personal: it must be a Tensor of shape (4810,)"),
    ("silo_figures", lambda self: {"trust": np.zeros(9)}, "gives a ndarray of shape (9,) as its "
     "silo_figures['trust']: it must be a ndarray of shape (7,)."),
    ("silo_figures", lambda self: {"trust": [0.0] * 7}, "gives a list of shape ()"),
    ("epoch_report", lambda self: Method.epoch_report(self) | {"u": torch.ones(1)},
     "gives a Tensor of shape (1,) as its epoch_report['u']: it must be a Python number."),
    ("epoch_report", lambda self: {}, "gives a NoneType of shape () as its epoch_report['loss']"),
    *((part, breaks, f"{OWN}: what it gives at an epoch's end raises ZeroDivisionError: division "
       "by zero (test_contract.py line ") for part in ("epoch_report", "silo_figures")),
    ("personal", property(breaks), f"{OWN}: what it gives at an epoch's end raises Zero"),
    ("initial_weights", breaks,
     f"{OWN}: making it of (config, federation, parameters) raises Zero"),
    ("__init__", lambda self, *_: None, "raises AttributeError: 'Own' object has no attribute"),
])  # fmt: skip
def test_a_methods_part_that_no_engine_can_use(name, part, words, monkeypatch):
    refused(monkeypatch, name, part, words)


def test_a_part_that_the_guard_cannot_use(monkeypatch):
    for name, part in {"round": lambda self, round_: None, "personal": SHORT}.items():
        refused(monkeypatch, name, part, ROUND, guard=20)
    refused(monkeypatch, "initial_weights", breaks, f"{OWN}: making it of", guard=20)
    refused(monkeypatch, "silo_figures", breaks, f"{OWN}: what it gives", guard=20)
