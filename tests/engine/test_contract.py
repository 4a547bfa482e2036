"""One sentence for each thing that a user's own method must give an engine, and gives wrong."""

import numpy as np
import pytest
import torch

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.registry import method_class
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.methods.base import Method, WeightedGradients
from tests.conftest import one_sentence

QUESTIONS = "FedAvg.round must be a generator of Requests (spcacw_flwr.silos.protocol)"


def run(monkeypatch, guard=0, **parts):
    """Run a method with some parts of one's own."""
    for name, part in parts.items():
        monkeypatch.setattr(method_class("fedavg"), name, part)
    keys = {"method": "fedavg", "epochs": 2, "compare_alone": False, "guard": guard}
    simulate(Config.from_keys(**keys))


@pytest.mark.parametrize(("name", "part", "words"), [
    ("round", lambda self, round_: None, f"{QUESTIONS}: TypeError: 'NoneType' object "),
    ("round", lambda self, round_: (one for one in "ab"), QUESTIONS),
    ("personal", property(lambda self: self.parameters[:-1]),
     "FedAvg.personal must be a tensor of shape (4810,), and is Tensor of shape (4809,)"),
    ("silo_figures", lambda self: {"trust": np.zeros(9)}, "FedAvg.silo_figures['trust'] must be an "
     "array of shape (7,), and is ndarray of shape (9,)"),
    ("silo_figures", lambda self: {"trust": [0.0] * 10}, "and is list"),
    ("epoch_report", lambda self: Method.epoch_report(self) | {"u": torch.ones(1)},
     "FedAvg.epoch_report['u'] must be a number, and is Tensor of shape (1,)"),
    ("epoch_report", lambda self: {}, "FedAvg.epoch_report['loss'] must be a number, and is None"),
])  # fmt: skip
def test_a_methods_part_that_no_engine_can_use(name, part, words, monkeypatch):
    for guard in (0, 20) if "'loss'" not in words else (0,):  # the guard has a loss of its own
        with one_sentence(words):
            run(monkeypatch, guard, **{name: part})


def test_an_error_in_the_code_of_a_method_stays_what_it_is(monkeypatch):
    def learn(self, request, replies):
        len(replies)

    for parts in ({"learn": learn}, {"round": lambda self, t: WeightedGradients.round(self, None)}):
        with pytest.raises(TypeError, match=r"has no len|NoneType"):
            run(monkeypatch, **parts)
