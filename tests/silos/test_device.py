"""The key ``precision``: what it changes, how far, and what it says of hardware that has it not."""

import logging
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from spcacw_flwr.config.config import Config
from spcacw_flwr.engine.gate import Gate
from spcacw_flwr.engine.loop import play
from spcacw_flwr.silos import device, gradients
from spcacw_flwr.silos.curvature import twice_differentiable
from spcacw_flwr.silos.device import find_device
from spcacw_flwr.silos.gradients import SiloGradients
from spcacw_flwr.silos.models import make_model
from tests.conftest import make_method, make_pool, one_sentence
from tests.silos.test_gradients import SILOS, Custom, batch, layout_of, rng

NEAR = 0.03
"""Of a gradient's length: bfloat16 has 8 bits, and a network rounds at each layer."""

WIDE = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))


@pytest.mark.parametrize("way", ["chain", "vmap", "loop", "sequence"])
def test_bfloat16_is_near_float32_and_what_comes_out_is_float32(way, monkeypatch):
    asked, real = [], gradients.low_precision
    monkeypatch.setattr(gradients, "low_precision", lambda on: asked.append(on) or real(on))
    model = {"chain": WIDE, "vmap": Custom(), "loop": Custom(dropout=0.5)}.get(way)
    x, y = batch(6)
    if way == "sequence":
        model = make_model((6,), 3, 0, 0, "char-lstm", 0.1)
        x, y = x.abs().long() % 3, torch.randint(3, x.shape, generator=rng(2))
    layout, found = layout_of(model), {}
    vector = torch.randn(layout.size, generator=rng(1)) / 3
    for precision in ("float32", "bf16"):
        seen = []
        hook = nn.modules.module.register_module_forward_hook(
            lambda module, _, out, seen=seen: seen.append(out.dtype)
        )
        compute = SiloGradients(model, layout, low=precision == "bf16")
        rows = torch.empty(SILOS, layout.size)
        losses = compute(vector, x, y, rows, lambda k: k)
        again = compute.losses(vector, x, y, lambda k: k)
        hook.remove()
        if way == "chain":
            assert asked == [precision == "bf16"] * 2
            asked.clear()
        assert (losses.dtype, again.dtype) == (torch.float32, torch.float32)
        torch.testing.assert_close(losses, again)
        assert way == "chain" or (torch.bfloat16 in seen) == (precision == "bf16")
        found[precision] = rows
    gap = torch.linalg.vector_norm(found["bf16"] - found["float32"], dim=1)
    # A perceptron goes on in float32 where no matrix unit (AMX) multiplies bfloat16.
    assert way == "chain" or (gap > 0).all()
    assert (gap < NEAR * torch.linalg.vector_norm(found["float32"], dim=1)).all()


def test_tf32_is_for_every_product_on_a_gpu_and_off_without_it(monkeypatch):
    kinds = torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn
    with monkeypatch.context() as patch:
        a_gpu = SimpleNamespace(device=torch.device("cuda"))
        patch.setattr(torch, "empty", lambda *_, device: a_gpu)
        find_device("cuda", "tf32")
        assert [kind.fp32_precision for kind in kinds] == ["tf32"] * 3
        find_device("cuda")
        assert [kind.fp32_precision for kind in kinds] == ["ieee"] * 3
    with twice_differentiable(nn.LSTM(2, 2)):
        assert not torch.backends.cudnn.enabled
        assert [kind.fp32_precision for kind in kinds] == ["ieee"] * 3
    assert torch.backends.cudnn.enabled


def test_hardware_without_bfloat16_works_and_says_so_once(monkeypatch, caplog):
    device._say_slow.cache_clear()
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, "amx_bf16": False})
    with caplog.at_level(logging.WARNING):
        find_device("cpu", "bf16")
        find_device("cpu", "bf16")
    (said,) = (record.message for record in caplog.records)
    assert said.startswith("precision = 'bf16': device 'cpu' has no bfloat16 instructions")
    device._say_slow.cache_clear()
    caplog.clear()
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    find_device("cpu", "bf16")
    assert not caplog.records


@pytest.mark.parametrize(("keys", "vectors"), [
    ({}, 2), ({"participation": 0.5}, 3), ({"sketch": 481}, 1.1),
    ({"sketch": 481, "probe": 0.5}, 1.2),
])  # fmt: skip
def test_what_does_not_fit_the_memory_is_one_sentence_before_training(keys, vectors, monkeypatch):
    """Seven silos of d = 4,810: each vector of every silo is 134,680 bytes."""
    config = Config.from_keys(method="spcacw", **keys)
    pool, needed = make_pool(config), 134_680 * vectors
    monkeypatch.setattr(device, "free_bytes", lambda _: needed + 1)
    make_method(config, pool)
    monkeypatch.setattr(device, "free_bytes", lambda _: needed - 1)
    with one_sentence("The gradients and biases of 7 silos, of 4,810 numbers each, need 0.0 GiB"):
        make_method(config, pool)


def test_free_memory_is_no_more_than_there_is():
    assert 2**20 < device.free_bytes(torch.device("cpu")) < 2**50


def dropping(shape, classes):
    """A network that goes silo by silo."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.5), nn.Linear(8, classes))


PRODUCTS = [(7, 7), (7, 7)]


@pytest.mark.parametrize(("keys", "more"), [
    ({"method": "fedavg"}, []), ({}, PRODUCTS), ({"method": "spcacw-plus"}, [(9,), *PRODUCTS]),
    ({"precision": "bf16"}, PRODUCTS), ({"model": f"{__name__}:dropping"}, PRODUCTS),
])  # fmt: skip
def test_a_round_waits_for_its_device_no_more_often_than_it_must(keys, more, monkeypatch):
    """Once for losses and norms, once for the M × M products, which are two; once for g₀ along b̂.

    The device "meta" has shapes and no numbers: any other look at one fails, as ``if`` or float().
    """
    meta = torch.device("meta")  # which users are refused
    monkeypatch.setattr("spcacw_flwr.silos.pool.find_device", lambda *_: meta)
    asked = {"method": "spcacw", "smoothness": 1.0, "update_every": 99}
    config = Config.from_keys(**asked | keys)
    pool = make_pool(config)
    pool._tried = True  # a trial looks at its outputs
    method, reads = make_method(config, pool), []

    def cpu(tensor):
        reads.append(tensor.shape)
        return torch.full(tensor.shape, 0.5)

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "cpu", lambda t: cpu(t) if t.is_meta else t)
        for round_ in (1, 2):
            play(pool, method, round_, Gate(config, 7))
    assert reads == [(2, 7), *more] * 2
