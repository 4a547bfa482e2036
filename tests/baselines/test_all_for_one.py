"""All-for-One by hand, and on digits."""

import numpy as np
import pytest
import torch

from tests.baselines.by_hand import G, close, converse, heard, make, play, replies_of, sending
from tests.baselines.on_digits import trained


def built(c, memory=0, count=4, start=(0.0, 0.0, 0.0), **keys):
    own = {"c": c, "memory": memory}
    return make("all-for-one", start, [64] * count, own, eta=1.0, **keys)


@pytest.mark.parametrize(
    ("c", "alpha"),
    [(0.0, [1, 0, 0, 0]), (0.02, [1, 0, 0, 0]), (0.5, [0.5, 0.5, 0, 0]), (2.33, [1 / 3] * 3 + [0]),
     (3.7, [0.25] * 4)],
)  # fmt: skip
def test_known_answer(c, alpha):
    """‖g_i − g_0‖²/‖g_0‖² = 0, .03/1.3125 = .022857, 2.325714, 3.681905."""
    method = built(c)
    play(method, 2, sending(G))
    close(method.parameters, -2 * torch.tensor(alpha).float() @ torch.tensor(G))
    np.testing.assert_allclose(method.alpha, alpha)


def test_it_is_averages_that_are_compared_and_gradients_of_the_round_that_step():
    """Silo 1 sends 3, −1, 3, … and the target 1: apart by 4 times ‖g_0‖² each time.

    Its average over two rounds is the target's; the steps are (1 + 3 alone = 1), (1 − 1)/2 = 0.
    Over memory = 2 the third average is −1 + (3 + 1)/2 = 1 + … = 2: (2 − 1)² = 1 > .5.
    """
    method = built(0.5, memory=2, count=2, start=(0.0,))
    points, alphas = [], []
    for t, peer in ((1, 3.0), (2, -1.0), (3, 3.0)):
        converse(method, t, sending([[1.0], [peer]]))
        points.append(float(method.parameters))
        alphas.append(method.alpha.tolist())
    assert points == [-1, -1, -2]
    assert alphas == [[1, 0], [0.5, 0.5], [1, 0]]
    assert method.means.flatten().tolist() == [1, 2]


def test_the_default_memory_is_an_epoch_and_one_is_no_average():
    assert built(0.5).memory == 2
    method = built(0.5, memory=1, count=2, start=(0.0,))
    for t, peer in ((1, 9.0), (2, 1.0)):
        converse(method, t, sending([[1.0], [peer]]))
    assert method.alpha.tolist() == [0.5, 0.5]


def test_who_was_never_heard_has_no_weight_and_who_is_silent_now_keeps_its_average():
    """The target is silo 2. Silo 0 never answers, silo 3 once; c > 1 has a mean of 0 near."""
    rows = torch.tensor([[1.0], [9.0], [1.0], [1.0]])
    method = built(1.5, start=(0.0,), target=2)
    for t, answer in ((1, (1, 2, 3)), (2, (1, 2))):
        converse(method, t, lambda r, answer=answer: heard(replies_of(r, rows), answer))
        assert method.alpha.tolist() == [0, 0, 0.5, 0.5]
    assert method.heard.tolist() == [0, 2, 2, 1]


def test_on_digits_it_finds_the_cluster_and_then_loses_it():
    """The criterion is of training gradients: the target's vanish, so that all become strangers."""
    mean = np.mean([alpha for _, alpha in trained("all-for-one", 8).alphas], axis=0)
    assert mean[1:3].min() > 0.05
    assert mean[3:].sum() < 0.05
