"""FeSEM by hand: centres that start apart, assignments, means, and clusters without members."""

import numpy as np
import torch

from spcacw_flwr.baselines.fesem import far_apart
from tests.baselines.by_hand import close, converse, make, sending


def test_first_centres_lie_far_apart():
    """From 0: 9 is farthest; then 4, whose nearest of 0 and 9 is 4 away, where 1's is 1."""
    models = torch.tensor([[0.0], [1.0], [4.0], [9.0]])
    assert far_apart(models, 3, 0) == [0, 3, 2]
    assert far_apart(models, 2, 2) == [2, 3]
    assert far_apart(models, 1, 1) == [1]


def two_clusters():
    return make("fesem", (0.0,), own={"update-every": 1, "clusters": 2}, eta=1.0)


def test_meeting_by_hand():
    """Models −g = 1, 2, 9: centres 1 and 9; 2 is nearer 1, so the means are 1.5 and 9.

    All silos then step by −1, 0, 0 from their centres: .5, 1.5, 9, nearest 1.5, 1.5, 9: mean 1.
    """
    made = two_clusters()
    converse(made, 1, sending([[-1.0], [-2.0], [-9.0]]))
    np.testing.assert_array_equal(made.alpha, [0.5, 0.5, 0])
    close(made.models, [[1.5], [1.5], [9.0]])
    close(made.personal, [1.5])
    asked = converse(made, 2, sending([[1.0], [0.0], [0.0]]))
    close(asked[0].points, [[1.5], [1.5], [9.0]])
    close(made.centres, [[1.0], [9.0]])


def test_a_cluster_without_members_keeps_its_centre_and_may_win_some_later():
    made = two_clusters()
    made.centres = torch.tensor([[0.0], [100.0]])
    converse(made, 1, sending([[-1.0], [-2.0], [-3.0]]))
    close(made.centres, [[2.0], [100.0]])
    np.testing.assert_allclose(made.alpha, [1 / 3] * 3)
    converse(made, 2, sending([[0.0], [0.0], [-90.0]]))
    close(made.centres, [[2.0], [92.0]])
