"""Passes recorded for a GPU: which models may be, and that the rows are those of the loop."""

import pytest
import torch
from torch import nn

from spcacw_flwr.silos import graphs
from spcacw_flwr.silos.curvature import FrozenLoss, hessian, twice_differentiable
from spcacw_flwr.silos.evaluation import evaluating
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
    assert graphs.Graphs(model).on == may


def test_on_a_cpu_nothing_is_recorded():
    compute, vector, x, y = small()
    for _ in range(graphs.OFTEN + 1):
        compute(vector, x, y, torch.empty(SILOS, len(vector)), int)
    assert not compute.graphs.seen
    assert not compute.graphs.made


class OnAGpu:
    """Stands for a batch there, for what is decided before anything is computed."""

    is_cuda, ndim = True, 1

    def __init__(self, *shape):
        self.shape = shape

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, _):
        return OnAGpu(*self.shape[1:])


class Noted:
    """In the place of a recorded pass."""

    def __init__(self, one, vector, x, y):
        self.shape = x.shape


def one(*_):
    """Stands for what is recorded."""


def test_a_graph_is_recorded_for_a_shape_that_comes_often_and_serves_fewer_silos():
    some = graphs.Graphs(nn.Linear(2, 2))

    def of(silos, length):
        return some.of(Noted, one, OnAGpu(5), OnAGpu(silos, length, 2), OnAGpu(silos, length))

    assert [of(20, 32) is not None for _ in range(graphs.OFTEN)] == [False, False, True]
    assert of(20 - graphs.SPARE, 32) is of(20, 32)
    assert of(1, 7) is None, "the short last batch of a pass"
    assert [graph.shape for graph in some.made.values()] == [(20, 32, 2)]
    assert of(19 - graphs.SPARE, 32) is not of(20, 32)
    shapes = [graph.shape for graph in some.made.values()]
    assert shapes == [(20, 32, 2), (19 - graphs.SPARE, 32, 2)]


def test_what_cannot_be_recorded_is_said_once_and_loops_on(caplog):
    def refuse(*_):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    some = graphs.Graphs(nn.Linear(2, 2))
    where = OnAGpu(5), OnAGpu(2, 4, 2), OnAGpu(2, 4)
    for _ in range(2 * graphs.OFTEN):
        assert some.of(refuse, one, *where) is None
    (said,) = (record.message for record in caplog.records)
    assert said.endswith("(operation not permitted when stream is capturing)")
    assert some.of(Noted, small, *where), "what else there is may still be recorded"


def assert_near(found, expected):
    """Up to tf32, in which PyTorch 2.11 convolves and recurs whatever it is told."""
    assert (found - expected).norm() < 2e-3 * expected.norm()


@on_a_gpu
def test_recorded_rows_are_those_of_the_loop():
    compute, vector, x, y = small("cuda")
    for step in range(2 * graphs.OFTEN):  # recorded at the third
        loop, rows = torch.empty(2, SILOS, len(vector), device="cuda")
        point = vector + 0.01 * step
        compute.graphs.on = False
        expected = compute(point, x + step, y, loop, lambda k, step=step: 100 * step + k)
        compute.graphs.on = True
        losses = compute(point, x + step, y, rows, lambda k, step=step: 100 * step + k)
        assert_near(rows, loop)
        assert_near(losses, expected)
    assert len(compute.graphs.made) == 1


@on_a_gpu
def test_recorded_products_with_the_hessian_are_those_of_autograd():
    compute, vector, x, y = small("cuda")
    model, layout = compute.model, compute.layout
    for step in range(2 * graphs.OFTEN):
        point, v = vector + 0.01 * step, torch.randn_like(vector)
        loss = FrozenLoss(model, layout, compute.loss, point, x[0] + step, y[0])
        with evaluating(model), twice_differentiable(model):
            expected = hessian(model, loss, point)(v)
            found = hessian(model, loss, point, compute.graphs)(v)
        assert_near(found, expected)
    assert len(compute.graphs.made) == 1


@on_a_gpu
def test_a_recurrent_network_is_recorded_as_one_pass_of_all_silos():
    model = make_model((50,), 80, 64, 0, "char-lstm", 0.25).cuda()
    layout = Layout.of(parameters_of(model))
    vector, compute = layout.flatten(parameters_of(model)), SiloGradients(model, layout)
    for step in range(2 * graphs.OFTEN):
        x, y = torch.randint(80, (2, SILOS, 8 if step % 3 else 5, 50), device="cuda")
        loop, rows = torch.empty(2, SILOS, len(vector), device="cuda")
        compute._stack, stack = [], compute._stack
        expected = compute(vector + 0.01 * step, x, y, loop, int)
        compute._stack = stack
        losses = compute(vector + 0.01 * step, x, y, rows, int)
        assert_near(losses, expected)
        assert_near(rows, loop)
    assert {key[0] for key in compute.graphs.made} >= {"_stack_pass"}


def test_second_derivatives_are_of_float32_whatever_the_run_multiplies(monkeypatch):
    monkeypatch.setattr(torch.backends, "fp32_precision", "tf32")
    with twice_differentiable(nn.Linear(2, 2)):
        assert torch.backends.fp32_precision == "ieee"
    assert torch.backends.fp32_precision == "tf32"
