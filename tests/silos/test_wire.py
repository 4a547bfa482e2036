"""What gradients travel as: exact where it should be, unbiased and bounded where it is not."""

import numpy as np
import pytest
import torch

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.keys import WIRES
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.silos import wire
from spcacw_flwr.silos.protocol import LOSSES, Request
from spcacw_flwr.silos.streams import WIRE, stream
from tests.conftest import answer, make_pool

ROWS = torch.randn(3, 700, generator=torch.Generator().manual_seed(0)) * 0.01
"""Not a multiple of a block of 256."""


def rngs(draw: int = 0) -> list[np.random.Generator]:
    return [stream(0, WIRE, silo, 1, draw) for silo in range(3)]


def through(rows: torch.Tensor, how: str, draw: int = 0) -> torch.Tensor:
    return wire.unpack(wire.pack(rows, how, rngs(draw)), how, tuple(rows.shape))


def test_float32_is_the_gradient_itself():
    assert through(ROWS, "float32") is ROWS


@pytest.mark.parametrize(("how", "bits"), [("float16", 11), ("bfloat16", 8)])
def test_halves_round_to_nearest(how, bits):
    found = through(ROWS, how)
    normal = ROWS.abs() > 1e-4  # where float16 has all of its digits
    assert bool(((found - ROWS).abs() <= ROWS.abs() * 2.0**-bits)[normal].all())
    torch.testing.assert_close(found, ROWS.to(getattr(torch, how)).float(), rtol=0, atol=0)
    torch.testing.assert_close(through(found, how), found, rtol=0, atol=0)


def test_int8_by_hand():
    """Largest entry 12.7: s = .1; 1.23 is 12 steps and three tenths of one."""
    row = torch.zeros(1, 300)
    row[0, :3] = torch.tensor([12.7, 1.23, -1.23])

    class Always:
        def __init__(self, u):
            self.u = u

        def random(self, size, dtype):
            return np.full(size, self.u, dtype)

    for u, (up, down) in {0.0: (12, -13), 0.5: (12, -12), 0.75: (13, -12)}.items():
        parts = wire.pack(row, "int8", [Always(u)])
        assert parts["gradients"][0, :3].tolist() == [127, up, down]
        assert parts["gradients"].shape == (1, 300)
        assert parts["scales"].tolist() == [pytest.approx([0.1, 0.0])]


def test_int8_is_unbiased_and_off_by_less_than_a_step():
    draws = 400
    found = torch.stack([through(ROWS, "int8", draw) for draw in range(draws)])
    steps = wire.pack(ROWS, "int8", rngs())["scales"].repeat_interleave(256, dim=1)[:, :700]
    assert bool(((found - ROWS).abs() < steps * 1.0001).all())
    # A rounding's variance is at most s²/4: five standard deviations of the mean, of 2,100 entries.
    off = (found.mean(dim=0) - ROWS).abs() / (steps * 0.5 / draws**0.5)
    assert float(off.max()) < 5
    most = 5 * float(steps.mean()) / (2 * (draws * ROWS.numel()) ** 0.5)
    assert float((found.mean(dim=0) - ROWS).mean().abs()) < most


def test_int8_of_zeros_and_of_what_is_not_finite():
    rows = torch.zeros(3, 600)
    rows[1, 300], rows[2, 5] = torch.nan, torch.inf
    found = through(rows, "int8")
    assert bool((found[0] == 0).all())
    assert found.isfinite().all(dim=1).tolist() == [True, False, False]


def test_rounding_is_a_function_of_seed_silo_round_and_draw():
    pool = make_pool(Config.from_keys(wire="int8"))
    point = pool.initial_parameters()

    def row(silos, draw=0):
        replies = answer(pool, Request(3, silos, point, draw=draw))
        return replies.gradients[silos.index(4)].clone()

    alone = row((4,))
    assert torch.equal(alone, row((4,)))
    torch.testing.assert_close(alone, row((1, 4, 6)), rtol=0, atol=0.02)
    assert not torch.equal(alone, row((4,), draw=1))


def test_losses_travel_as_they_are():
    pool = make_pool(Config.from_keys(wire="int8"))
    request = Request(1, (0, 1), pool.initial_parameters().expand(2, -1), want=LOSSES)
    replies = answer(pool, request)
    assert replies.losses.shape == (2, 2)
    assert pool.packed(request, replies)["gradients"].shape == (2, 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda parts: parts.pop("scales"), "no array 'scales'"),
        (lambda parts: parts.update(scales=parts["scales"][:, :1]), "scales of shape"),
        (lambda parts: parts.update(gradients=parts["gradients"].float()), "float32 gradients"),
    ],
)
def test_parts_that_cannot_be_used_are_refused(change, words):
    parts = wire.pack(ROWS, "int8", rngs())
    change(parts)
    with pytest.raises(SpcacwError, match=words):
        wire.unpack(parts, "int8", (3, 700))


@pytest.mark.parametrize(
    ("how", "size"), [("float32", 2800), ("float16", 1400), ("bfloat16", 1400), ("int8", 712)]
)
def test_sizes_are_those_of_the_parts(how, size):
    parts = wire.pack(ROWS, how, rngs())
    assert sum(p[0].numel() * p.element_size() for p in parts.values()) == size
    assert wire.size_of(700, how) == size


@pytest.mark.parametrize("how", WIRES)
def test_the_log_counts_bytes(how):
    result = simulate(Config.from_keys(wire=how, epochs=1, compare_alone=False))
    (line,), d = result.epochs, 4810
    assert line["floats"] == 7 * 6 * 2 * d
    assert line["bytes"] == 7 * 6 * (4 * d + wire.size_of(d, how))


def test_local_batches_average_independent_batches_and_shorten_epochs():
    pool = make_pool(Config.from_keys(local_batches=3, max_norm=0.0))
    single = make_pool(Config.from_keys(max_norm=0.0))
    point = pool.initial_parameters()
    found = answer(pool, Request(2, (1, 5), point, draw=1))
    gradients, losses = 0, 0
    for draw in (3, 4, 5):
        part = answer(single, Request(2, (1, 5), point, draw=draw))
        gradients, losses = gradients + part.gradients / 3, losses + part.losses / 3
    torch.testing.assert_close(found.gradients, gradients)
    torch.testing.assert_close(found.losses, losses)
    result = simulate(Config.from_keys(local_batches=3, epochs=1, compare_alone=False))
    assert result.epochs[0]["round"] == 3  # ⌈200 / 96⌉ where ⌈200 / 32⌉ = 7
