"""MeritFed and TAWT by hand: mirror descent on a fresh gradient of the target."""

from math import exp, log

import numpy as np
import pytest
import torch

from spcacw_flwr.baselines.meritfed import mirror_step
from tests.baselines.by_hand import G, close, converse, make, play, quadratics, replies_of, sending

CENTRES = torch.tensor([[1.0, 0.0], [0.0, 1.0]])


def merit(steps, rho=10.0, **keys):
    """η = .1, so that ρη = 1."""
    return make("meritfed", sizes=(64, 64), own={"inner-steps": steps, "rho": rho}, eta=0.1, **keys)


@pytest.mark.parametrize(("product", "alpha"), [(log(3), [0.75, 0.25]), (1e4, [1, 0])])
def test_one_mirror_step(product, alpha):
    """α ∝ (.5 e^{ln 3}, .5 e⁰) = (1.5, .5); a large product does not overflow."""
    found = mirror_step(np.array([0.5, 0.5]), np.array([product, 0.0]), 1.0)
    np.testing.assert_allclose(found, alpha)


def test_two_inner_steps_by_hand():
    """f_i = ½‖w − c_i‖² at w = 0: g_0 = (−1, 0), g_1 = (0, −1), so w⁺ = .1 α.

    g⁺ = .1 α − c_0, ⟨g⁺, g_0⟩ = 1 − .1 α_0, ⟨g⁺, g_1⟩ = −.1 α_1: with ρη = 1 the log-odds of
    silo 0 grow by 1 − .1 α_0 + .1 α_1 in each inner step, by 1 in the first.
    """
    method = merit(2)
    asked = converse(method, 1, quadratics(CENTRES))
    first = 1 / (1 + exp(-1))
    odds = 1 + 1 - 0.1 * first + 0.1 * (1 - first)
    second = 1 / (1 + exp(-odds))
    np.testing.assert_allclose(method.alpha, [second, 1 - second], rtol=1e-6)
    close(method.parameters, 0.1 * torch.tensor([second, 1 - second]))
    assert [(r.silos, r.draw) for r in asked] == [((0, 1), 0), ((0,), 1), ((0,), 2)]
    close(asked[1].points, [0.05, 0.05])
    close(asked[2].points, 0.1 * torch.tensor([first, 1 - first]))
    assert method.epoch_report()["target_gradients"] == 3


def test_the_trial_is_a_plain_step_and_weights_stay_warm():
    """Momentum is the step's alone: in round 2 too w⁺ = w − η Σ α g."""
    method = merit(1, momentum=0.9, rho=1.0)
    converse(method, 1, quadratics(CENTRES))
    before, warm = method.parameters.clone(), torch.tensor(method.alpha, dtype=torch.float32)
    asked = converse(method, 2, quadratics(CENTRES))
    close(asked[1].points, before - 0.1 * warm @ (before - CENTRES))
    assert method.alpha_round == 2
    assert 0.5 < warm[0] < method.alpha[0]


def test_partial_participation_by_hand():
    """p = .5: g̃_1 = 2 g_1. Both answer: w⁺ = .1 (½ (1, 0) + ½ · 2 (0, 1)) = (.05, .1).

    g⁺ = (−.95, .1); the exponents are ⟨g⁺, g_0⟩ = .95 and 2 ⟨g⁺, g_1⟩ = −.2.
    """
    method = merit(1, participation=0.5)
    asked = converse(method, 1, quadratics(CENTRES))
    close(asked[1].points, [0.05, 0.1])
    assert method.alpha[0] == pytest.approx(1 / (1 + exp(-1.15)))


def tawt(**keys):
    return make("tawt", (0.0, 0.0, 0.0), [64] * 4, {"rho": 1.0}, eta=1.0, **keys)


def test_known_answer_of_tawt():
    """cos(g_i, g_0) = 1, .991684, −.299572, −.948190; α ∝ e^{2 cos} after two rounds.

    Steps have the α of before: 1/4 each, then ∝ e^{cos} = (.415472, .412032, .113278, .059218).
    """
    method = tawt()
    asked = play(method, 2, sending(G))
    assert [(r.silos, r.draw) for r in asked] == [((0,), 1), ((0, 1, 2, 3), 0)]
    np.testing.assert_allclose(method.alpha, [0.481195, 0.473258, 0.035771, 0.009776], atol=1e-6)
    first = torch.tensor([0.415472, 0.412032, 0.113278, 0.059218])
    expected = -(torch.full((4,), 0.25) + first) @ torch.tensor(G)
    close(method.parameters, expected, atol=2e-6, rtol=0)
    assert method.epoch_report()["target_gradients"] == 4


def test_the_cosine_is_with_the_fresh_batch():
    """g' = −2 g_3, all send g_3 but silo 1, which sends 0: cosines −1, the target's too, and 0."""
    method, g = tawt(), torch.tensor(G)
    rows = g[[3] * 4] * torch.tensor([1.0, 0.0, 1.0, 1.0])[:, None]
    converse(method, 1, lambda r: replies_of(r, -2 * g[3:] if r.draw else rows))
    expected = np.exp([-1, 0, -1, -1])
    np.testing.assert_allclose(method.alpha, expected / expected.sum(), rtol=1e-6)


def test_partial_participation_counts_an_answer_of_tawt_twice():
    """p = .5, all answer, cosines 1 with g': the peers' log-odds against the target grow by 1."""
    method = tawt(participation=0.5)
    method.sampled = lambda *_: (0, 1, 2, 3)
    converse(method, 1, sending([G[0]] * 4))
    np.testing.assert_allclose(np.log(method.alpha[1:] / method.alpha[0]), 1, atol=1e-6)
