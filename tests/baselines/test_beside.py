"""A model beside the global one: APFL's mixture and its α, Ditto's pull to a centre that rests."""

import pytest
import torch

from tests.baselines.by_hand import close, converse, make, play, replies_of

V, W = [1.0, 0.0], [0.0, 1.0]


def beside(at_v, at_w):
    """Return silos that send ``at_v`` when the target alone is asked, and else ``at_w``."""
    return lambda r: replies_of(r, [at_v] if len(r.silos) == 1 else at_w)


def apfl_round(gradient, **own):
    made = make("apfl", W, own={"alpha": 0.5} | own, eta=0.1)
    made.v = torch.tensor(V)
    return made, converse(made, 1, beside(gradient, torch.ones(3, 2)))


def test_known_answer_of_apfl():
    """v̄ = .5 (1, 0) + .5 (0, 1) = (.5, .5); g(v̄) = (1, 2).

    v = (1, 0) − .1 · .5 · (1, 2) = (.95, −.1); w = (0, 1) − .1 · (1, 1) = (−.1, .9).
    v̄ is then .5 (.95, −.1) + .5 (−.1, .9) = (.425, .4), and α = .5 stays.
    """
    made, asked = apfl_round([1.0, 2.0])
    assert [r.silos for r in asked] == [(0,), (0, 1, 2)]
    close(asked[0].points, [0.5, 0.5])
    close(made.v, [0.95, -0.1])
    close(made.parameters, [-0.1, 0.9])
    close(made.personal, [0.425, 0.4])
    assert made.epoch_report()["mixing"] == 0.5


@pytest.mark.parametrize(
    ("gradient", "mixing"),
    # ⟨v − w, g⟩ with v − w = (1, −1): 1 − 2 = −1, so .5 + .1; then −10 and 10, clipped.
    [([1.0, 2.0], 0.6), ([0.0, 10.0], 1.0), ([10.0, 0.0], 0.0)],
)
def test_adaptive_mixing_sees_v_and_w_before_they_move(gradient, mixing):
    made, _ = apfl_round(gradient, adaptive=True)
    assert made.epoch_report()["mixing"] == pytest.approx(mixing)
    # The step of v used the old α, .5.
    close(made.v, torch.tensor(V) - 0.05 * torch.tensor(gradient))


@pytest.mark.parametrize(
    ("lambda_", "expected"), [(1.0, [0.060, -0.085, 0.250]), (0.1, [0.069, -0.0715, 0.241])]
)
def test_known_answer_of_ditto(lambda_, expected):
    """v − .1 (g + λ (v − w)); first entry, λ = 1: .15 − .1 (.8 + .15 − .05) = .06.

    Everyone's gradient at w is (1, 1, 1): w moves by −.1 in the same round, and v does not see it.
    """
    made = make("ditto", (0.05, -0.25, 0.35), own={"lambda": lambda_}, eta=0.1)
    made.v = torch.tensor([0.15, -0.10, 0.25])
    own, w = made.v.clone(), made.parameters.clone()
    points = []

    def silo(request):
        points.append(request.points.clone())
        return beside([0.80, -0.30, 0.10], torch.ones(3, 3))(request)

    asked = converse(made, 1, silo)
    close(torch.stack(points), torch.stack([own, w]))
    assert [(r.silos, r.draw) for r in asked] == [((0,), 0), ((0, 1, 2), 0)]
    close(made.personal, expected)
    close(made.parameters, w - 0.1)
    report = made.epoch_report()
    assert report["target_gradients"] == 2
    assert report["floats"] == 2 * (3 + 3)  # the target's silo is not counted


def test_each_model_has_its_own_momentum():
    """μ = .5, η = 1, λ = 0; g_0(v) = 1 always, g(w) = 4: v = −1, −2.5; w = −4, −10."""
    made = make("ditto", (0.0,), own={"lambda": 0.0}, eta=1.0, momentum=0.5)
    play(made, 2, beside([1.0], [[4.0]] * 3))
    close(made.personal, [-2.5])
    close(made.parameters, [-10.0])
