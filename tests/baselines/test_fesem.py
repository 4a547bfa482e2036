"""FeSEM by hand: centres that start apart, assignments, means, and clusters without members."""

import numpy as np
import pytest
import torch

from spcacw_flwr.baselines.fesem import far_apart
from spcacw_flwr.config.declare import SpcacwError
from tests.baselines.by_hand import PLAIN, converse, make, replies_of
from tests.baselines.on_digits import trained


def test_first_centres_lie_far_apart():
    """From 0: 9 is farthest; then 4, whose nearest of 0 and 9 is 4 away, where 1's is 1."""
    models = torch.tensor([[0.0], [1.0], [4.0], [9.0]])
    assert far_apart(models, 3, 0) == [0, 3, 2]
    assert far_apart(models, 2, 2) == [2, 3]
    assert far_apart(models, 1, 1) == [1]


def two_clusters(**keys):
    own = {"update-every": 1, "clusters": 2} | keys
    return make("fesem", start=(0.0,), eta=1.0, fesem=own, **PLAIN)


def test_meeting_by_hand():
    """Models −g = 1, 2, 9: centres 1 and 9; 2 is nearer 1, so the means are 1.5 and 9.

    All silos then step by −1, 0, 0 from their centres: .5, 1.5, 9, nearest 1.5, 1.5, 9: mean 1.
    """
    made = two_clusters()
    converse(made, 1, lambda r: replies_of(r, [[-1.0], [-2.0], [-9.0]]))
    np.testing.assert_array_equal(made.alpha, [0.5, 0.5, 0])
    torch.testing.assert_close(made.models, torch.tensor([[1.5], [1.5], [9.0]]))
    torch.testing.assert_close(made.personal, torch.tensor([1.5]))
    asked = converse(made, 2, lambda r: replies_of(r, [[1.0], [0.0], [0.0]]))
    torch.testing.assert_close(asked[0].points, torch.tensor([[1.5], [1.5], [9.0]]))
    torch.testing.assert_close(made.centres, torch.tensor([[1.0], [9.0]]))


def test_a_cluster_without_members_keeps_its_centre_and_may_win_some_later():
    made = two_clusters()
    made.centres = torch.tensor([[0.0], [100.0]])
    converse(made, 1, lambda r: replies_of(r, [[-1.0], [-2.0], [-3.0]]))
    torch.testing.assert_close(made.centres, torch.tensor([[2.0], [100.0]]))
    np.testing.assert_allclose(made.alpha, [1 / 3] * 3)
    converse(made, 2, lambda r: replies_of(r, [[0.0], [0.0], [-90.0]]))
    torch.testing.assert_close(made.centres, torch.tensor([[2.0], [92.0]]))


def test_equal_starts_do_not_tie_for_ever_and_the_true_cluster_is_found():
    run = trained("fesem", 8)
    np.testing.assert_allclose(run.alpha, [1 / 3, 1 / 3, 1 / 3, 0, 0, 0, 0])


def test_more_clusters_than_silos_are_refused():
    with pytest.raises(SpcacwError, match=r"fesem.clusters = 4 is more than the 3 silos"):
        make("fesem", fesem={"clusters": 4})
