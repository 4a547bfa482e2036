"""Cross-fitting: folds of the target's data, biases with a reference of their own, and α."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from spcacw_flwr.alpha import BiasTracker
from spcacw_flwr.config.config import Config
from spcacw_flwr.engine.loop import play
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.methods.base import Optimiser
from spcacw_flwr.methods.cross_fit import make_folds
from spcacw_flwr.silos.batches import Fold, batch_indices
from spcacw_flwr.silos.protocol import Request
from tests.conftest import answer, make_method, make_pool


def digits(**keys) -> Config:
    return Config.from_keys(**{"epochs": 10, "compare_alone": False, "eta": 0.05, **keys})


@pytest.mark.parametrize(("samples", "count"), [(200, 5), (7, 3)])
def test_folds_partition_the_samples_and_the_rest_is_the_complement(samples, count):
    folds = [Fold(k, count, within=True).rows(1, 0, samples) for k in range(count)]
    assert sorted(np.concatenate(folds)) == list(range(samples))
    assert max(map(len, folds)) - min(map(len, folds)) <= 1
    for k, fold in enumerate(folds):
        rest = Fold(k, count).rows(1, 0, samples)
        assert sorted([*rest, *fold]) == list(range(samples))
    assert not np.array_equal(folds[0], Fold(0, count, within=True).rows(2, 0, samples))


@pytest.mark.parametrize("within", [False, True])
def test_a_fold_is_the_targets_alone(within):
    """The target's gradient is that of its part; a peer's is as ever; nothing else is touched."""
    pool = make_pool(digits(target=3))
    points, fold = pool.initial_parameters(), Fold(1, 4, within)
    request = Request(2, (1, 3), points)
    whole = answer(pool, request).gradients.clone()
    part = answer(pool, dataclasses.replace(request, fold=fold)).gradients.clone()
    assert torch.equal(whole[0], part[0])
    assert not torch.equal(whole[1], part[1])
    rows = fold.rows(0, 3, 200)
    at = rows[batch_indices(0, 3, 2, len(rows), 32)]
    data = pool.setting.train(3)
    expected = torch.empty(1, pool.layout.size)
    pool.compute(points, data.x[at][None], data.y[at][None], expected, lambda _: 0)
    expected /= max(1.0, float(expected.norm()))  # max-norm = 1
    torch.testing.assert_close(part[1], expected[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("schedule", ["constant", "harmonic"])
def test_with_a_reference_the_targets_own_row_moves(schedule):
    rows = torch.tensor([[3.0, 0.0], [1.0, 1.0]])
    reference = torch.tensor([1.0, -1.0])
    tracker = BiasTracker(2, 2, beta=0.5, schedule=schedule)
    tracker.update(rows, [0, 1], reference)
    share = 0.5 if schedule == "constant" else 1.0
    torch.testing.assert_close(tracker.estimate, share * (rows - reference))


def test_a_round_is_the_equations():
    """H is the mean over folds of B̂B̂ᵀ + ηL GGᵀ at models that step without their fold."""
    config = digits(cross_fit=2, smoothness=2.0, beta=0.5)
    pool = make_pool(config)
    method, start = make_method(config, pool), pool.initial_parameters()
    play(pool, method, 1)
    expected = np.zeros((7, 7))
    for k in range(2):
        unseen = Request(1, (0,), start, fold=Fold(k, 2, within=True))
        reference = answer(pool, unseen).gradients.clone()
        g = answer(pool, Request(1, tuple(range(7)), start, fold=Fold(k, 2))).gradients
        b = 0.5 * (g - reference)
        expected += (b @ b.T + 0.05 * 2.0 * g @ g.T).numpy() / 2
        stepped = start.clone()
        Optimiser(config.training).step(stepped, g[0].clone())  # α_0 = e_0
        torch.testing.assert_close(method.folds[k].parameters, stepped)
    np.testing.assert_allclose(method.learner.total, expected, rtol=1e-4, atol=1e-6)
    report = method.epoch_report()
    assert report["floats"] == 3 * 6 * 2 * pool.layout.size  # w and two folds, six peers
    assert report["target_gradients"] == 1 + 2 * 2


def test_it_changes_alpha_and_off_is_as_before():
    """200 images that are fitted at once: the target keeps less for itself."""
    plain, fitted = (
        np.mean([simulate(digits(cross_fit=folds, seed=seed)).alpha[0] for seed in range(3)])
        for folds in (0, 2)
    )
    assert plain > 0.7
    assert fitted < plain - 0.2


def test_a_silent_peer_is_what_its_bias_and_the_reference_predict():
    config = digits(cross_fit=2, smoothness=2.0, beta=0.5)
    pool = make_pool(config)
    method = make_method(config, pool)
    (fold, _), rows = method.folds, torch.randn(7, pool.layout.size)
    reference = torch.randn(pool.layout.size)
    fold.bias.beta = 1.0
    fold.bias.update(rows, range(7), reference)
    request = Request(1, tuple(range(7)), method.parameters)
    replies = answer(pool, dataclasses.replace(request, silos=tuple(range(6))))
    heard = method.heard(request, replies, rows[:6])
    _, products = fold.book._products(heard)
    assert products[6, 6] == pytest.approx(float(rows[6] @ rows[6]), rel=1e-4)


@pytest.mark.parametrize("keys", [
    {"method": "spcacw-reg"}, {"solver": "ftal", "half_life": 2.0}, {"sketch": 50},
    {"participation": 0.5, "probe": 0.5},
])  # fmt: skip
def test_it_goes_with_the_other_options(keys):
    plain, fitted = (simulate(digits(cross_fit=n, epochs=4, **keys)).alpha for n in (0, 2))
    assert fitted.sum() == pytest.approx(1)
    assert (fitted >= 0).all()
    assert not np.allclose(plain, fitted, atol=1e-3)


def test_make_folds_starts_every_model_at_w0():
    config = digits(cross_fit=3)
    pool = make_pool(config)
    method = make_method(config, pool)
    folds = make_folds(config, method.federation, method.parameters, method.bias)
    assert [fold.part for fold in folds] == [Fold(0, 3), Fold(1, 3), Fold(2, 3)]
    for fold in folds:
        assert torch.equal(fold.parameters, method.parameters)
        assert fold.parameters.data_ptr() != method.parameters.data_ptr()
        assert fold.bias is not method.bias
