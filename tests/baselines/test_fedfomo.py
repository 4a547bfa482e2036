"""FedFomo by hand."""

import numpy as np
import pytest
import torch

from spcacw_flwr.baselines.fedfomo import fomo_weights
from spcacw_flwr.silos.protocol import LOSSES, Replies
from tests.baselines.by_hand import close, converse, heard, make, play, quadratics, replies_of

CENTRES = torch.tensor([[1.0], [2.0], [-1.0]])
"""f_i = ½(w − c_i)². From 0 with η = .25 the silos' steps lead to .25, .5 and −.25."""
SILOS = quadratics(CENTRES)


def built(name="fedfomo", **keys):
    return make(name, [0.0], [64, 64, 64], eta=0.25, **keys)


@pytest.mark.parametrize(
    ("losses", "before", "away", "expected"),
    [
        # Gains 1, 1.5, −1 over distances 1, 2, 1: slopes 1, .75 and 0.
        ([1.0, 0.5, 3.0], 2.0, [1.0, 2.0, 1.0], [4 / 7, 3 / 7, 0]),
        ([np.inf, 1.0], 2.0, [1.0, 1.0], [0, 1]),
        ([np.inf, 1.0], np.inf, [1.0, 1.0], [0, 1]),
        ([np.inf, np.inf], np.inf, [1.0, 1.0], [0, 0]),
        ([3.0, 2.0], 2.0, [1.0, 1.0], [0, 0]),
        ([2.0, 1.0], 2.0, [0.0, 1.0], [0, 1]),
    ],
)
def test_weights_by_hand_and_where_a_quotient_would_not_be_a_number(losses, before, away, expected):
    np.testing.assert_allclose(fomo_weights(np.array(losses), before, np.array(away)), expected)


def mixed(origins, stepped):
    """The card's formula, silo by silo, in one dimension."""
    models = []
    for own, centre in zip(origins, CENTRES[:, 0], strict=True):
        gains = 0.5 * (own - centre) ** 2 - 0.5 * (stepped - centre) ** 2
        slopes = (gains / (stepped - own).abs()).clamp(min=0)
        models.append(own + (slopes / slopes.sum()) @ (stepped - own))
    return torch.stack(models)


def test_two_rounds_of_the_published_form_by_hand():
    """Silo 0: f_0 = .28125, .125, .78125 at the three models, .5 before: gains .21875, .375.

    Over .25 and .5 that is .875 and .75: ω = (7, 6, 0)/13, u_0 = (7 · .25 + 6 · .5)/13.
    Silo 1: gains 2 − 1.53125, 2 − 1.125 over the same: 1.875, 1.75, u_1 = (15 · .25 + 14 · .5)/29.
    Silo 2 gains by its own model only: u_2 = −.25. In round 2 each steps from its own u_i.
    """
    method = built()
    gradients, standing, judged = converse(method, 1, SILOS)
    close(method.models, [[4.75 / 13], [10.75 / 29], [-0.25]])
    assert method.personal == method.models[0]
    close(judged.points, [[0.25], [0.5], [-0.25]])
    for question in (standing, judged):
        assert (question.silos, question.want, question.draw) == ((0, 1, 2), LOSSES, 1)
    assert [one.floats() for one in (gradients, standing, judged)] == [(0, 1), (0, 0), (3, 0)]

    before = method.models.clone()
    asked, standing, judged = converse(method, 2, SILOS)
    close(asked.points, before)
    close(judged.points, before - 0.25 * (before - CENTRES))
    close(standing.points, before[:, None])
    close(method.models[:, 0], mixed(before[:, 0], judged.points[:3, 0]))
    assert method.alpha_round == 2
    assert method.alpha[2] == 0
    assert method.epoch_report()["stayed"] == 0


def test_the_gradient_form_by_hand():
    """The same ω as silo 0's above; the step is .25 (7/13 · 1 + 6/13 · 2) = 4.75/13."""
    method = built("fedfomo-gradient")
    _, judged = converse(method, 1, SILOS)
    close(method.parameters, [4.75 / 13])
    assert (judged.silos, judged.want, judged.draw) == ((0,), LOSSES, 1)


@pytest.mark.parametrize("name", ["fedfomo", "fedfomo-gradient"])
@pytest.mark.parametrize(("norm", "length"), [("l1", 2.0), ("l2", 2**0.5)])
def test_the_key_norm_says_which_distance(name, norm, length):
    """f_0 = ½‖w − (4, 0)‖² is 8 at 0, 4.5 at silo 0's (1, 0), 5 at silo 1's (1, 1).

    Gains 3.5 and 3 over distances 1 and ‖(1, 1)‖.
    """
    method = make(name, sizes=[64, 64], own={"norm": norm}, eta=0.25)
    converse(method, 1, quadratics([[4.0, 0.0], [4.0, 4.0]]))
    close(method.personal, [1.0, 3 / length / (3.5 + 3 / length)])


@pytest.mark.parametrize("name", ["fedfomo", "fedfomo-gradient"])
def test_where_no_model_is_better_the_target_stays(name):
    """Not even its own step is kept, as in the authors' code; the log says e_0."""
    method = make(name, [0.5], [64, 64], eta=0.25)

    def silo(request):
        if request.want == LOSSES:
            shape = len(request.silos), len(request.points)
            return Replies(request.silos, torch.empty(len(request.silos), 0), torch.ones(shape))
        return replies_of(request, [[1.0], [2.0]])

    play(method, 2, silo)
    assert float(method.personal) == 0.5
    np.testing.assert_array_equal(method.alpha, [1, 0])
    assert method.epoch_report()["stayed"] == 1


@pytest.mark.parametrize("silent", [1, 2])
def test_a_silo_that_does_not_judge_keeps_its_model(silent):
    """Silent when it is asked for its loss at its own model, or at all of them."""
    method = built()
    converse(method, 1, lambda r: heard(SILOS(r), (0, 2) if r.number == silent else r.silos))
    close(method.models, [[4.75 / 13], [0.0], [-0.25]])


def test_each_silo_has_a_momentum_of_its_own():
    """Buffers of round 2 are .9 g_1 + g_2, with g_1 = −c_i."""
    method = built(momentum=0.9)
    converse(method, 1, SILOS)
    before = method.models.clone()
    *_, judged = converse(method, 2, SILOS)
    buffers = 0.9 * -CENTRES + (before - CENTRES)
    close(judged.points, before - 0.25 * buffers)
