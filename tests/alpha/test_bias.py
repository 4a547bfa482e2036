"""The bias estimate, Eq. (alg_single_est): one step by hand, both schedules, missing silos."""

import numpy as np
import pytest
import torch

from spcacw_flwr.alpha import BiasTracker

ALL = (0, 1, 2)


def gradients(*rows):
    return torch.tensor(rows, dtype=torch.float32)


@pytest.mark.parametrize("target", [0, 1])
def test_two_steps_by_hand(target):
    tracker = BiasTracker(3, 2, target=target, beta=0.25)
    own, peer, other = [1.0, 2.0], [5.0, 2.0], [1.0, -6.0]
    rows = [own, peer, other]
    rows[0], rows[target] = rows[target], rows[0]
    tracker.update(gradients(*rows), ALL)
    # 0.75 * 0 + 0.25 * ([5, 2] - [1, 2]) = [1, 0]; 0.25 * ([1, -6] - [1, 2]) = [0, -2].
    first = {0: [[0, 0], [1, 0], [0, -2]], 1: [[1, 0], [0, 0], [0, -2]]}[target]
    assert tracker.estimate.tolist() == first
    tracker.update(gradients(*rows), ALL)
    # 0.75 * [1, 0] + 0.25 * [4, 0] = [1.75, 0]; 0.75 * [0, -2] + 0.25 * [0, -8] = [0, -3.5].
    second = {0: [[0, 0], [1.75, 0], [0, -3.5]], 1: [[1.75, 0], [0, 0], [0, -3.5]]}[target]
    assert tracker.estimate.tolist() == second
    assert tracker.reports.tolist() == [2, 2, 2]


def test_harmonic_is_the_mean_of_what_was_observed():
    generator = torch.Generator().manual_seed(0)
    tracker = BiasTracker(4, 50, schedule="harmonic")
    seen: list[list[torch.Tensor]] = [[] for _ in range(4)]
    for t in range(30):
        g = torch.randn(4, 50, generator=generator) + torch.arange(4.0)[:, None]
        reported = [0, 1] + [2] * (t % 3 == 0) + [3] * (t > 20)
        tracker.update(g[reported], reported)
        for silo in reported:
            seen[silo].append(g[silo] - g[0])
    means = torch.stack([torch.stack(rows).mean(0) for rows in seen])
    torch.testing.assert_close(tracker.estimate, means, atol=1e-5, rtol=1e-5)
    assert tracker.reports.tolist() == [30, 30, 10, 9]


@pytest.mark.parametrize("schedule", ["constant", "harmonic"])
def test_silent_silo_stays_put(schedule):
    tracker = BiasTracker(3, 2, beta=0.5, schedule=schedule)
    tracker.update(gradients([0, 0], [2, 2], [4, 4]), ALL)
    before = tracker.estimate.clone()
    tracker.update(gradients([1, 0], [9, 9]), (0, 2))
    assert torch.equal(tracker.estimate[1], before[1])
    assert tracker.reports.tolist() == [2, 1, 2]
    # Both schedules have β = 1/2 now, harmonic from 4, constant from 2: half-way to [8, 9].
    start = before[2]
    assert torch.equal(tracker.estimate[2], 0.5 * start + 0.5 * torch.tensor([8.0, 9.0]))


def test_partial_round_equals_full_round_on_the_rows_that_reported():
    g = torch.randn(5, 30, generator=torch.Generator().manual_seed(1))
    full, partial = BiasTracker(5, 30), BiasTracker(5, 30)
    full.update(g, range(5))
    partial.update(g[[0, 2, 3]], (0, 2, 3))
    torch.testing.assert_close(partial.estimate[[0, 2, 3]], full.estimate[[0, 2, 3]])
    assert not partial.estimate[[1, 4]].any()


@pytest.mark.parametrize("schedule", ["constant", "harmonic"])
@pytest.mark.parametrize("everyone", [True, False])
def test_target_row_is_exactly_zero_and_update_is_in_place(schedule, everyone):
    tracker = BiasTracker(3, 1000, target=2, beta=0.3, schedule=schedule)
    storage = tracker.estimate.data_ptr()
    for seed in range(5):
        silos = (0, 1, 2) if everyone else (0, 2)
        g = torch.randn(len(silos), 1000, generator=torch.Generator().manual_seed(seed))
        sent = g.clone()
        tracker.update(g, silos)
        assert torch.equal(g, sent)
        assert not tracker.estimate[2].any()
    assert tracker.estimate.data_ptr() == storage
    assert tracker.estimate.dtype == torch.float32


def test_estimates_of_what_has_become_nothing_do_not_end_as_subnormal_numbers():
    tracker = BiasTracker(2, 2, beta=0.1)
    gradients = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    for _ in range(1200):
        tracker.update(gradients, (0, 1))
        gradients[1, 0] = 0.0
    assert tracker.estimate[1, 0] == 0.0  # exactly 0.1 · 0.9^1199, which no float32 can hold
    assert tracker.estimate[1, 1] == pytest.approx(1.0, rel=1e-5)


def test_rejects():
    tracker = BiasTracker(3, 2)
    with pytest.raises(ValueError, match="target, silo 0, must report"):
        tracker.update(torch.zeros(2, 2), (1, 2))
    for shape, silos in (((3, 3), ALL), ((3, 2), (0, 1))):
        with pytest.raises(ValueError, match="Expected gradients"):
            tracker.update(torch.zeros(shape), silos)
    assert tracker.reports.tolist() == [0, 0, 0]
    for keys, message in (
        ({"target": 3}, "target must be one of"),
        ({"beta": 0.0}, "beta"),
        ({"schedule": "linear"}, "constant, harmonic"),
    ):
        with pytest.raises(ValueError, match=message):
            BiasTracker(3, 2, **keys)


def test_level_brings_estimates_of_few_reports_where_those_of_many_are():
    """β = ½ and a bias of 1: after 1 and 3 reports b̂ is ½ and 7/8; one never heard has no level."""
    tracker = BiasTracker(4, 1, beta=0.5)
    gradients = torch.tensor([[0.0], [1.0], [1.0], [1.0]])
    for silos in ((0, 1), (0, 1), (0, 1, 2)):
        tracker.update(gradients[list(silos)], silos)
    np.testing.assert_array_equal(tracker.level(), [1, 1, 7 / 4, 1])
    np.testing.assert_allclose(tracker.estimate[1:3, 0].numpy() * tracker.level()[1:3], 7 / 8)
    assert (BiasTracker(4, 1, schedule="harmonic").level() == 1).all()


@pytest.mark.parametrize("schedule", ["constant", "harmonic"])
def test_gradients_of_double_precision_are_accepted(schedule):
    rows = gradients([1, 2], [5, 2], [1, -6])
    single, double = BiasTracker(3, 2, schedule=schedule), BiasTracker(3, 2, schedule=schedule)
    single.update(rows, ALL)
    double.update(rows.double(), ALL)
    assert torch.equal(double.estimate, single.estimate)
    assert double.estimate.any()
