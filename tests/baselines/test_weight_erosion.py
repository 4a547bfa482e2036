"""Weight erosion by hand, at the ends of its keys, and on digits."""

import numpy as np
import pytest
import torch

from tests.baselines.by_hand import PLAIN, converse, heard, make, replies_of
from tests.baselines.on_digits import distance, trained
from tests.baselines.toy import G


def built(p_d, p_s=0.0, sizes=(64, 64, 32, 32), **keys):
    own = {"distance-penalty": p_d, "size-penalty": p_s}
    start = (0.0, 0.0, 0.0)
    return make("weight-erosion", start, sizes, eta=1.0, **PLAIN, **{"weight-erosion": own}, **keys)


def test_known_answer():
    """δ = 0, .151186, 1.525029, 1.918829; p_d = .2, p_s = .1.

    Silos 0 and 1 have used all their data by round 3, 2 and 3 by rounds 2 and again 3:
    a_1 = 1 − .2 (1 + 1 + 1.1) .151186 = .906265; a_2 loses .2 (1 + 1.1 + 1.2) 1.525029 > 1.
    """
    method, left = built(0.2, 0.1), []
    for t in (1, 2, 3):
        before = method.parameters.clone()
        converse(method, t, lambda request: replies_of(request, [G[i] for i in request.silos]))
        left.append(method.left.copy())
    np.testing.assert_allclose(left[0], [1, 0.969763, 0.694994, 0.616234], atol=1e-6)
    np.testing.assert_allclose(left[2], [1, 0.906265, 0, 0], atol=1e-6)
    direction = torch.tensor([0.952459, -0.452459, 0.297541])
    torch.testing.assert_close(before - method.parameters, direction, atol=1e-6, rtol=0)
    np.testing.assert_allclose(method.alpha, left[2] / left[2].sum())
    (request,) = converse(method, 4, lambda r: replies_of(r, [G[i] for i in r.silos]))
    assert request.silos == (0, 1)


def test_who_does_not_answer_keeps_its_weight_and_a_target_at_rest_takes_none():
    method = built(0.2)
    converse(method, 1, lambda request: heard(replies_of(request, G), (0, 2)))
    np.testing.assert_allclose(method.left, [1, 1, 0.694994, 1], atol=1e-6)
    rest = [[0.0, 0.0, 0.0], *G[1:]]
    converse(method, 2, lambda request: replies_of(request, rest))
    np.testing.assert_allclose(method.left, [1, 1, 0.694994, 1], atol=1e-6)


@pytest.mark.parametrize(("p_d", "twin"), [(0.0, "fedavg"), (1e3, "local")])
def test_at_the_ends_of_its_keys(p_d, twin):
    """Silos are of one size. Without erosion all weigh alike; with much, the target alone."""
    run = trained("weight-erosion", **{"weight-erosion": {"distance-penalty": p_d}})
    assert distance(run, trained(twin)) < 1e-4
    np.testing.assert_allclose(run.alpha, trained(twin).alpha, atol=1e-6)


def test_on_digits_strangers_erode_first():
    alpha = trained("weight-erosion", 30).alpha
    assert alpha[1:3].min() > 2 * alpha[3:].max()
    assert alpha[0] < 0.8
