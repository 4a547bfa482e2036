"""CFL by hand: when a cluster parts, where, and what its parts go on with."""

import numpy as np
import pytest
import torch

from spcacw_flwr.baselines.cfl import halves
from tests.baselines.by_hand import close, converse, heard, make, play, sending

ROWS = torch.tensor([[1.0, 0.0], [0.8, 0.6], [-1.0, 0.0], [-0.8, -0.6]])
"""cos(g_0, ·) = 1, .8, −1, −.8; cos(g_1, ·) = .8, 1, −.8, −1. The mean is 0."""


def built(eps_1=0.1, gamma=0.6, **keys):
    own = {"update-every": 2, "eps-1": eps_1, "eps-2": 0.9, "gamma": gamma}
    return make("cfl", sizes=(64,) * 4, own=own, eta=1.0, **keys)


def test_the_best_bipartition_has_the_least_cosine_across():
    """Angles 0°, 40°, 80°, 120°, 165°, 185°: it is at the widest gap, 120° to 165°.

    0° and 120° stay together; complete linkage, the authors', would part between 40° and 80°.
    """
    angles = torch.deg2rad(torch.tensor([0.0, 40, 80, 120, 165, 185]))
    second, across = halves(torch.stack([angles.cos(), angles.sin()], dim=1))
    assert second.tolist() in ([False] * 4 + [True] * 2, [True] * 4 + [False] * 2)
    assert across == pytest.approx(np.cos(np.deg2rad(45)), abs=1e-6)


def test_a_cluster_at_rest_parts_and_each_part_goes_its_way():
    """All means are of length 1 > .9, their mean 0 < .1; a = −.8, √(1.8/2) = .949 > .94 (> 1.8/2).

    Round 3: the target's part steps along (g_0 + g_1)/2 = (.9, .3), the other along its opposite.
    """
    method = built(gamma=0.94)
    (asked,) = converse(method, 1, sending(ROWS))
    assert asked.points.shape == (2,)
    assert len(method.models) == 1  # the period is not over
    converse(method, 2, sending(ROWS))
    assert method.cluster[0] == method.cluster[1] != method.cluster[2] == method.cluster[3]
    close(method.models, torch.zeros(2, 2), atol=1e-6, rtol=0)
    (asked,) = converse(method, 3, sending(ROWS))
    close(asked.points, torch.zeros(4, 2), atol=1e-6, rtol=0)
    close(method.personal, [-0.9, -0.3])
    close(method.points((2,)), [0.9, 0.3])
    converse(method, 4, sending(ROWS))
    assert len(method.models) == 2  # neither is at rest: ‖(.9, .3)‖ > .1
    np.testing.assert_array_equal(method.alpha, [0.5, 0.5, 0, 0])
    assert method.epoch_report()["clusters"] == 2


@pytest.mark.parametrize(
    ("keys", "rows"),
    [
        ({"eps_1": 0.0}, ROWS),
        ({"gamma": 0.96}, ROWS),  # √(1.8/2) = .9487
        ({}, 0.8 * ROWS),  # nobody is above ε_2 = .9
        ({}, ROWS + torch.tensor([0.2, 0.0])),  # the mean, .2, is above ε_1 = .1
    ],
)
def test_it_parts_only_if_all_is_so(keys, rows):
    method = built(**keys)
    play(method, 2, sending(rows))
    assert len(method.models) == 1


def test_each_period_counts_for_itself():
    """The mean of the first, (5, 0), is above ε_1 = .1; that of the second is 0."""
    method = built()
    play(method, 2, sending(ROWS + torch.tensor([5.0, 0.0])))
    for t in (3, 4):
        converse(method, t, sending(ROWS))
    assert len(method.models) == 2


def test_the_momentum_goes_with_both_parts():
    """μ = .5; gradients sum to 0 in rounds 1 and 2, so the buffer (4, 0) is halved twice.

    In round 3 the target's part goes along .5 (1, 0) + (.9, .3), the other .5 (1, 0) − (.9, .3).
    """
    method = built(momentum=0.5)
    method.optimiser.momentum[0] = torch.tensor([4.0, 0.0])
    play(method, 2, sending(ROWS))
    close(method.optimiser.momentum[1], [1.0, 0.0])
    before = method.models[0].clone()
    converse(method, 3, sending(ROWS))
    close(method.personal, before - torch.tensor([0.5 + 0.9, 0.3]))
    close(method.points((2,)), before - torch.tensor([0.5 - 0.9, -0.3]))


def test_who_is_silent_for_a_period_stays_in_its_cluster():
    """Silos 0 and 2 are heard, their means opposed; 1 and 3 keep the cluster of the first."""
    method = built()
    play(method, 2, lambda request: heard(sending(ROWS)(request), (0, 2)))
    assert sorted(method.cluster.tolist()) == [0, 0, 0, 1]
    assert method.cluster[0] != method.cluster[2]
