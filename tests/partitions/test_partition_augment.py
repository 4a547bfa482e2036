"""Crops and mirror images: pure, batched, and what a loop over the images would do."""

import numpy as np
import torch

from spcacw_flwr.partitions.clusters import crop_and_flip


def one_by_one(x, rng, pad, edge):
    """The same as a plain loop: pad, cut out, mirror."""
    n, _, height, width = x.shape
    down, right = rng.integers(0, 2 * pad + 1, size=n), rng.integers(0, 2 * pad + 1, size=n)
    mirror = rng.integers(0, 2, size=n)
    out = []
    for i in range(n):
        planes = [
            torch.nn.functional.pad(plane, (pad,) * 4, value=float(colour))
            for plane, colour in zip(x[i], edge, strict=True)
        ]
        cut = torch.stack(planes)[:, down[i] : down[i] + height, right[i] : right[i] + width]
        out.append(cut.flip(-1) if mirror[i] else cut)
    return torch.stack(out)


def test_agrees_with_a_loop():
    x = torch.randn(40, 3, 6, 5, generator=torch.Generator().manual_seed(0))
    edge = torch.tensor([-1.0, 0.5, 2.0])
    got = crop_and_flip(x, np.random.default_rng(3), pad=2, edge=edge)
    assert torch.equal(got, one_by_one(x, np.random.default_rng(3), 2, edge))
    assert got.is_contiguous()


def test_is_a_pure_function_of_batch_and_generator():
    x = torch.rand(8, 3, 32, 32)
    before = x.clone()
    first, again, other = (crop_and_flip(x, np.random.default_rng(s)) for s in (1, 1, 2))
    assert torch.equal(x, before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.shape == x.shape


def test_every_offset_and_both_mirrors_are_drawn():
    x = torch.zeros(4000, 1, 3, 3)
    x[:, 0, 1, 1] = 1.0  # the middle, which a crop of pad 1 always keeps
    x[:, 0, 1, 2] = 2.0  # to its right: to its left after a mirror, where it is not cut off
    seen = crop_and_flip(x, np.random.default_rng(0), pad=1)[:, 0]
    places = {tuple(p) for p in (seen == 1).nonzero()[:, 1:].tolist()}
    assert places == {(i, j) for i in range(3) for j in range(3)}
    left = ((seen[:, :, :-1] == 2) & (seen[:, :, 1:] == 1)).any(-1).any(-1).float().mean()
    right = ((seen[:, :, :-1] == 1) & (seen[:, :, 1:] == 2)).any(-1).any(-1).float().mean()
    assert abs(left - right) < 0.05
    assert 0.25 < left < 0.45


def test_without_padding_only_mirrors():
    x = torch.rand(50, 2, 4, 4)
    seen = crop_and_flip(x, np.random.default_rng(0), pad=0)
    same = (seen == x).flatten(1).all(1)
    turned = (seen == x.flip(-1)).flatten(1).all(1)
    assert (same ^ turned).all()
    assert 10 < same.sum() < 40
