"""Silo functions against plain PyTorch, one silo at a time."""

from dataclasses import replace

import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.silos import pool as silo
from spcacw_flwr.silos.batches import batch_indices
from spcacw_flwr.silos.layout import parameters_of
from spcacw_flwr.silos.models import make_model
from spcacw_flwr.silos.pool import NOISE_DRAWS
from spcacw_flwr.silos.protocol import Request
from spcacw_flwr.silos.setting import SiloData
from tests.conftest import make_pool
from tests.silos.test_gradients import plain


@pytest.mark.parametrize("max_norm", [0.0, 0.3])
@pytest.mark.parametrize(
    ("round_", "lengths"), [(1, (32, 32, 32)), (2, (32, 8, 32)), (7, (8, 32, 32))]
)
def test_rows_are_the_silos_own_clipped_gradients(max_norm, round_, lengths, monkeypatch):
    """Of 200, 40 and 70 samples: the last batch of a pass is short, and nothing is padded."""
    pool = make_pool(Config.from_keys(max_norm=max_norm))
    whole, sizes = pool.setting.train, {4: 200, 0: 40, 6: 70}
    cut = {i: SiloData(whole(i).x[:n], whole(i).y[:n]) for i, n in sizes.items()}
    monkeypatch.setattr(pool.setting, "train", lambda i: cut.get(i) or whole(i))
    vector = torch.randn(pool.layout.size, generator=torch.Generator().manual_seed(0)) / 4
    found = pool.gradients(Request(round_, (4, 0, 6), vector))
    for k, i in enumerate(sizes):
        at = torch.from_numpy(batch_indices(0, i, round_, sizes[i], 32))
        assert len(at) == lengths[k]
        (expected,), loss = plain(pool.model, vector, cut[i].x[at][None], cut[i].y[at][None])
        if max_norm:
            expected *= min(1.0, max_norm / float(expected.norm()))
        torch.testing.assert_close(found.rows[k], expected, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(found.losses[k : k + 1], loss)


def test_clipping_by_hand():
    """Norms 5 and 0.5 with max-norm 1: (3, 4) becomes (.6, .8), (.3, .4) stays, 0 stays."""
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    expected = torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]])
    silo.clip_rows(rows, rows.norm(dim=1), 1.0)
    torch.testing.assert_close(rows, expected)


@pytest.mark.parametrize("curvature", ["largest", "noise"])
def test_smoothness_of_a_network_is_that_of_its_hessian(curvature, monkeypatch):
    """The largest eigenvalue, or along the difference of gradients on two other mini-batches."""
    pool = make_pool(Config.from_keys(hidden=2, smoothness_iterations=500, curvature=curvature))
    vector = pool.initial_parameters()
    data, at = pool.setting.train(0), torch.from_numpy(batch_indices(0, 0, 3, 200, 32))

    def loss(w):
        weights = pool.layout.unflatten(w)
        return cross_entropy(functional_call(pool.model, weights, (data.x[at],)), data.y[at])

    hessian = torch.func.hessian(loss)(vector)
    largest = torch.linalg.eigvalsh(hessian).abs().max().item()
    asked = [Request(3, (0,), vector, draw=draw) for draw in NOISE_DRAWS]
    first, second = (pool.gradients(one).rows[0].clone() for one in asked)
    noise = first - second
    along = float(noise @ hessian @ noise / (noise @ noise))
    assert 0 < along < 0.9 * largest
    expected = {"largest": pytest.approx(largest, rel=0.02), "noise": pytest.approx(along, 1e-3)}
    assert pool.smoothness(vector, 3, 0) == expected[curvature]
    monkeypatch.setattr(silo, "DRAWN", 100)  # of the start's 1,600 numbers
    assert pool.smoothness(vector, 3, 0) == expected[curvature]


@pytest.mark.parametrize("samples", [20, 32])
def test_the_noise_of_a_silo_that_is_one_batch_is_that_of_its_halves(samples):
    """Two batches would be the same, but for rounding: tr(HΣ)/tr(Σ) over its samples, not 0."""
    pool = make_pool(Config.from_keys(curvature="noise", hidden=2, samples_per_silo=samples))
    vector, data = pool.initial_parameters(), pool.setting.train(0)
    rows = torch.empty(samples, pool.layout.size)
    pool.compute(vector, data.x[:, None], data.y[:, None], rows, int)
    off = rows - rows.mean(0)

    def loss(w):
        weights = pool.layout.unflatten(w)
        return cross_entropy(functional_call(pool.model, weights, (data.x,)), data.y)

    along = (off @ torch.func.hessian(loss)(vector) * off).sum() / off.square().sum()
    found = [pool.smoothness(vector, round_, 0) for round_ in range(1, 101)]
    assert sum(found) / 100 == pytest.approx(float(along), rel=0.1)
    few = make_pool(Config.from_keys(curvature="noise", hidden=2, samples_per_silo=3))
    assert few.smoothness(vector, 1, 0) == 0.0


@pytest.mark.parametrize(("clip", "scales"), [("silo", True), ("aggregate", False)])
def test_clipping_scales_the_curvature_that_noise_meets(clip, scales):
    """By the mean factor of the two gradients: of norms n and n', C = n/2 is ½ and ½ n/n'."""
    free = make_pool(Config.from_keys(curvature="noise", hidden=2, max_norm=0.0))
    vector = free.initial_parameters()
    asked = [Request(3, (0,), vector, draw=draw) for draw in NOISE_DRAWS]
    first, second = (float(free.gradients(one).norms[0]) for one in asked)
    keys = {"curvature": "noise", "hidden": 2, "max_norm": min(first, second) / 2, "clip": clip}
    clipped = make_pool(Config.from_keys(**keys)).smoothness(vector, 3, 0)
    factor = (0.5 + 0.5 * min(first, second) / max(first, second)) / 2 if scales else 1.0
    assert clipped == pytest.approx(factor * free.smoothness(vector, 3, 0))


@pytest.mark.parametrize("curvature", ["largest", "noise"])
def test_measuring_smoothness_leaves_the_replies_as_they_are(curvature):
    pool = make_pool(Config.from_keys(curvature=curvature))
    vector = pool.initial_parameters()
    asked = Request(3, (0, 1, 2), vector)
    rows = pool.replies(asked)[0].gradients.clone()
    replies, _ = pool.replies(replace(asked, smoothness=True))
    assert replies.smoothness > 0
    assert torch.equal(replies.gradients, rows)


@pytest.mark.parametrize("curvature", ["largest", "noise"])
def test_a_model_that_diverged_is_one_sentence(curvature):
    keys = {"eta": 1e18, "smoothness_interval": 1, "epochs": 1, "compare_alone": False}
    with pytest.raises(SpcacwError, match=r"silo 0 has probably diverged by round 3: choose"):
        simulate(Config.from_keys(curvature=curvature, **keys))


def test_accuracy_counts_the_targets_test_set():
    """A model that always answers 4 is right exactly as often as label 4 occurs."""
    pool = make_pool(Config.from_keys())
    vector = torch.zeros(pool.layout.size)
    pool.layout.unflatten(vector)["3.bias"][4] = 1.0
    labels = pool.setting.test(3).y
    figures, buffers = pool.evaluate(vector, 3)
    assert figures["accuracy"] == pytest.approx(100 * (labels == 4).float().mean().item())
    assert figures["log-loss"] > 0
    assert buffers == {}


def test_the_initial_model_depends_on_the_seed_alone():
    torch.manual_seed(1)
    one = parameters_of(make_model((8,), 10, 4, seed=0))
    torch.manual_seed(2)
    state = torch.get_rng_state()
    two, other = (parameters_of(make_model((8,), 10, 4, seed=seed)) for seed in (0, 1))
    assert torch.equal(state, torch.get_rng_state())
    for name in one:
        assert torch.equal(one[name], two[name])
        assert not torch.equal(one[name], other[name])
