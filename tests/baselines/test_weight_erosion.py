"""Weight erosion by hand."""

import numpy as np

from tests.baselines.by_hand import G, close, converse, heard, make, play, sending

SILOS = sending(G)


def built(p_d, p_s=0.0):
    own = {"distance-penalty": p_d, "size-penalty": p_s}
    return make("weight-erosion", (0.0, 0.0, 0.0), (64, 64, 32, 32), own, eta=1.0)


def test_known_answer():
    """δ = 0, .151186, 1.525029, 1.918829; p_d = .2, p_s = .1.

    Silos 0 and 1 have used all their data by round 3, 2 and 3 by rounds 2 and again 3:
    a_1 = 1 − .2 (1 + 1 + 1.1) .151186 = .906265; a_2 loses .2 (1 + 1.1 + 1.2) 1.525029 > 1.
    """
    method = built(0.2, 0.1)
    play(method, 1, SILOS)
    np.testing.assert_allclose(method.left, [1, 0.969763, 0.694994, 0.616234], atol=1e-6)
    converse(method, 2, SILOS)
    before = method.parameters.clone()
    converse(method, 3, SILOS)
    np.testing.assert_allclose(method.left, [1, 0.906265, 0, 0], atol=1e-6)
    direction = [0.952459, -0.452459, 0.297541]
    close(before - method.parameters, direction, atol=1e-6, rtol=0)
    np.testing.assert_allclose(method.alpha, method.left / method.left.sum())
    (request,) = converse(method, 4, SILOS)
    assert request.silos == (0, 1)


def test_who_does_not_answer_keeps_its_weight_and_a_target_at_rest_takes_none():
    method = built(0.2)
    converse(method, 1, lambda request: heard(SILOS(request), (0, 2)))
    np.testing.assert_allclose(method.left, [1, 1, 0.694994, 1], atol=1e-6)
    converse(method, 2, sending([[0.0, 0.0, 0.0], *G[1:]]))
    np.testing.assert_allclose(method.left, [1, 1, 0.694994, 1], atol=1e-6)
