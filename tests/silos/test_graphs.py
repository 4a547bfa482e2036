"""Passes recorded for a GPU: which models may be, and that the rows are those of the loop."""

import pytest
import torch
from torch import nn

from spcacw_flwr.silos import graphs
from spcacw_flwr.silos.gradients import SiloGradients
from spcacw_flwr.silos.layout import Layout, parameters_of
from spcacw_flwr.silos.models import make_model

SILOS = 3
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Own(nn.Sequential):
    """What it does in Python is not known."""


def small(device="cpu"):
    model = make_model((3, 32, 32), 10, 64, 0, "vgg16", 0.125).to(device)
    layout = Layout.of(parameters_of(model))
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(SILOS, 8, 3, 32, 32, generator=rng).to(device)
    y = torch.randint(10, (SILOS, 8), generator=rng).to(device)
    return SiloGradients(model, layout), layout.flatten(parameters_of(model)), x, y


@pytest.mark.parametrize(("model", "may"), [
    (make_model((3, 32, 32), 10, 64, 0, "vgg16", 0.125), True),
    (make_model((50,), 80, 64, 0, "char-lstm", 0.1), True),
    (nn.Sequential(nn.Conv2d(3, 4, 3), Own(nn.ReLU())), False),
])  # fmt: skip
def test_a_model_with_a_layer_of_ones_own_is_not_recorded(model, may):
    assert graphs.Graphs(model, lambda *_: None).on == may


def test_on_a_cpu_nothing_is_recorded():
    compute, vector, x, y = small()
    for _ in range(graphs.OFTEN + 1):
        assert compute._graphs.of(vector, x, y) is None
    assert not compute._graphs.seen


class OnAGpu:
    """A vector that says so, for what is decided before anything is computed."""

    is_cuda = True


def test_a_graph_is_recorded_for_a_shape_that_comes_often_and_serves_fewer_silos(monkeypatch):
    made = []

    class Noted:
        def __init__(self, one, vector, x, y):
            self.x = x
            made.append(tuple(x.shape))

    monkeypatch.setattr(graphs, "Recorded", Noted)
    some = graphs.Graphs(nn.Linear(2, 2), lambda *_: None)

    def of(silos, length):
        return some.of(OnAGpu(), torch.empty(silos, length, 2), torch.empty(silos, length))

    assert [of(20, 32) is not None for _ in range(graphs.OFTEN)] == [False, False, True]
    assert of(20 - graphs.SPARE, 32) is of(20, 32)
    assert of(1, 7) is None, "the short last batch of a pass"
    assert made == [(20, 32, 2)]
    assert of(19 - graphs.SPARE, 32) is not of(20, 32)
    assert made == [(20, 32, 2), (19 - graphs.SPARE, 32, 2)]


def test_what_cannot_be_recorded_is_said_once_and_loops_on(monkeypatch, caplog):
    def refuse(*_):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(graphs, "Recorded", refuse)
    some = graphs.Graphs(nn.Linear(2, 2), lambda *_: None)
    for _ in range(2 * graphs.OFTEN):
        assert some.of(OnAGpu(), torch.empty(2, 4, 2), torch.empty(2, 4)) is None
    (said,) = (record.message for record in caplog.records)
    assert said.endswith("(operation not permitted when stream is capturing)")


@on_a_gpu
def test_recorded_rows_are_those_of_the_loop_bit_for_bit():
    compute, vector, x, y = small("cuda")
    for step in range(2 * graphs.OFTEN):  # recorded at the third
        loop, rows = torch.empty(2, SILOS, len(vector), device="cuda")
        point = vector + 0.01 * step
        compute._graphs.on = False
        expected = compute(point, x + step, y, loop, lambda k, step=step: 100 * step + k)
        compute._graphs.on = True
        losses = compute(point, x + step, y, rows, lambda k, step=step: 100 * step + k)
        assert torch.equal(rows, loop)
        assert torch.equal(losses, expected)
    assert len(compute._graphs.made) == 1
