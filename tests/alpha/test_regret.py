"""The regret meter against brute force, and every learner's regret against its theorem."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spcacw_flwr.alpha import ExponentiatedGradient, RegretMeter, cost
from spcacw_flwr.alpha.learners import DIAMETER, exp_concavity, ftal_beta, gradient_bound
from spcacw_flwr.config.registry import solver_class
from tests.alpha.test_solver import slsqp

ETA, SMOOTHNESS = 0.5, 0.6


def test_constants_by_hand():
    # 8 + 2 * 3 * 1/2 = 11, times 2² = 44. 4GD = 176 √2 > 44, so the first is the smaller.
    assert gradient_bound(0.5, 3.0, 2.0) == 44.0
    assert exp_concavity(0.5, 3.0, 2.0) == 1 / 44
    assert ftal_beta(0.5, 3.0, 2.0) == pytest.approx(1 / (352 * math.sqrt(2)), rel=1e-15)
    assert pytest.approx(np.linalg.norm([1.0, -1.0])) == DIAMETER


def test_two_rounds_by_hand():
    meter = RegretMeter(2, eta=0.5, gradient_bound=None)
    meter.add(np.diag([1.0, 3.0]), np.array([1.0, 0.0]), 2.0, 1.5)
    meter.add(np.diag([3.0, 1.0]), np.array([0.5, 0.5]), 0.0, 1.0)
    # Played 1 + (3 + 1)/4 = 2; the sum is diag(4, 4), whose least is 4/4 + 4/4 = 2.
    # G = 1/γ = (8 + 2) 1.5² = 22.5 in the first round, 8 * 1.5² in the second.
    bound = 64 * 22.5 * (1 + math.sqrt(2)) * 2 * (1 + math.log(2))
    assert meter.report() == {
        "cumulative_cost": 2.0, "best_fixed_cost": 2.0, "regret": 0.0,
        "regret_bound": pytest.approx(bound, rel=1e-14),
    }  # fmt: skip
    lazy = RegretMeter(2, eta=0.5, gradient_bound=1.5, every=2)
    for _ in range(3):
        lazy.add(np.eye(2), np.array([1.0, 0.0]), 2.0)
    # two blocks, twice G
    assert lazy.report()["regret_bound"] == pytest.approx(2 * bound, rel=1e-14)


def sequences(draw):
    """Draw M, T and the Hₜ of a federation, ‖gᵢ‖ <= 1, ‖b̂ᵢ‖ <= 2, that may look at the α played."""
    silos, seed = draw(st.integers(2, 5)), draw(st.integers(0, 2**31))
    mode = draw(st.sampled_from(["random", "alternating", "spiteful", "opposite", "copies"]))
    rng = np.random.default_rng(seed)
    swing = rng.integers(2, size=silos)

    def costs(t, alpha):
        gradients, bias = rng.normal(size=(2, silos, rng.integers(1, 4)))
        gradients /= np.maximum(1.0, np.linalg.norm(gradients, axis=1, keepdims=True))
        bias *= rng.uniform(0, 2, size=(silos, 1)) / np.linalg.norm(bias, axis=1, keepdims=True)
        if mode == "alternating":  # two groups take turns at being the worst possible
            bias = np.zeros((silos, 1)) + 2.0 * ((swing + t) % 2)[:, None]
        elif mode == "spiteful":  # whoever has most weight
            bias = 2.0 * np.eye(silos)[[np.argmax(alpha)]].T
        elif mode == "opposite":  # one sign against the other, uneven
            bias = np.where(swing, 2.0, -rng.uniform(0, 2))[:, None]
        elif mode == "copies":  # of rank 1, all equal: ∇ as long as it can be
            bias, gradients = np.full((silos, 1), 2.0), np.ones((silos, 1))
        return bias @ bias.T + ETA * SMOOTHNESS * gradients @ gradients.T

    return silos, draw(st.integers(1, 60)), costs


def play(learner, alpha, rounds, costs, every=1):
    """Run a learner with new weights every K rounds; return the meter's report and each ∇."""
    meter, slopes = RegretMeter(len(alpha), ETA, 1.0, every), []
    for t in range(1, rounds + 1):
        H = costs(t, alpha)
        meter.add(H, alpha, SMOOTHNESS)
        learner.add(H, alpha, smoothness=SMOOTHNESS)
        slopes.append(2 * H @ alpha)
        if t % every == 0:
            alpha = learner.minimise(alpha).alpha
    return meter.report(), np.array(slopes)


G = (8 + 2 * ETA * SMOOTHNESS) * 1.0**2  # and 1/γ


@pytest.mark.parametrize("mode", ["alternating", "spiteful"])
def test_ftals_regret_grows_with_the_logarithm(mode):
    """The bound's 64 is above T G/2, the most there can be, for all T here; the rate is not.

    From T to 4T a regret of order T is 4 times as large, one of order √T twice.
    """
    drawn = iter([2, 3, mode, 400])
    silos, rounds, costs = sequences(lambda _: next(drawn))
    for name in ("ftal", "ftl"):
        short, long = (
            play(solver_class(name)(silos, ETA, 1.0), np.eye(silos)[0], T, costs)[0]["regret"]
            for T in (rounds // 4, rounds)
        )
        assert 0.0 < long < 1.6 * short


def ons_bound(silos, blocks, every=1):
    """Hazan et al.'s proof, before constants are rounded up to 5 (1/γ + GD) M log T.

    (1/2β) (log det A_T / det A_0 + 1), where tr A_T <= tr A_0 + T M G² (G bounds each entry of ∇)
    gives log det <= M log(1 + T G²β²D²), and GβD = 1/8.
    """
    return 4 * every * G * math.sqrt(2) * (silos * math.log1p(blocks / 64) + 1)


@given(st.data(), st.sampled_from([1, 1, 4]), st.sampled_from(["ftal", "ons"]))
@settings(deadline=None, max_examples=80)
def test_ftal_and_ons_are_below_their_bounds(data, every, name):
    silos, rounds, costs = sequences(data.draw)
    report, _ = play(solver_class(name)(silos, ETA, 1.0), np.eye(silos)[0], rounds, costs, every)
    blocks, unit = math.ceil(rounds / every), (G + G * math.sqrt(2)) * silos
    bound = 64 * every * unit * (1 + math.log(blocks))
    assert report["regret_bound"] == pytest.approx(bound, rel=1e-14)
    assert report["regret"] <= (bound if name == "ftal" else ons_bound(silos, blocks, every))
    if blocks > 1:
        assert ons_bound(silos, blocks) <= 5 * unit * math.log(blocks)


@given(st.data(), st.sampled_from([1, 1, 4]))
@settings(deadline=None, max_examples=40)
def test_eg_is_below_its_bound(data, every):
    """((1 + √2) √ln M + 2/(1 - 1/√2)) √Σr², r at most G/2: O(G √(T ln M))."""
    silos, rounds, costs = sequences(data.draw)
    uniform = np.full(silos, 1 / silos)
    report, slopes = play(ExponentiatedGradient(silos), uniform, rounds, costs, every)
    blocks = [slopes[k : k + every].sum(axis=0) for k in range(0, rounds, every)]
    spread = math.sqrt(sum((np.ptp(block) / 2) ** 2 for block in blocks))
    root = math.sqrt(2)
    factor = (1 + root) * math.sqrt(math.log(silos)) + 2 / (1 - 1 / root)
    rounding = 1e-9 * report["cumulative_cost"]
    assert report["regret"] <= factor * spread + rounding
    assert spread <= every * G * math.sqrt(len(blocks))


@given(st.data())
@settings(deadline=None, max_examples=30)
def test_agrees_with_brute_force(data):
    silos, rounds, costs = sequences(data.draw)
    rng = np.random.default_rng(rounds)
    plays = rng.dirichlet(np.ones(silos), size=rounds)
    matrices = [costs(t, plays[t]) for t in range(rounds)]
    meter = RegretMeter(silos, ETA, 1.0)
    for H, alpha in zip(matrices, plays, strict=True):
        meter.add(H, alpha, SMOOTHNESS)

    def total(alpha):
        return sum(alpha @ H @ alpha for H in matrices)

    found = total(slsqp(total, lambda a: sum(2 * H @ a for H in matrices), silos, ftol=1e-14))
    report, scale = meter.report(), 1.0 + total(np.full(silos, 1 / silos))
    played = sum(cost(alpha, H) for H, alpha in zip(matrices, plays, strict=True))
    best = report["best_fixed_cost"]
    assert report["cumulative_cost"] == pytest.approx(played, rel=1e-12)
    assert best == pytest.approx(found, abs=1e-7 * scale)
    assert best <= found + 1e-9 * scale
    assert report["regret"] == report["cumulative_cost"] - best


def test_long_sums_do_not_drift():
    """10,000 equal rounds at the optimum after one that is 1e8 times larger, off by nothing."""
    H, alpha = np.diag([0.1, 0.1]), np.array([0.5, 0.5])
    meter = RegretMeter(2, eta=0.0, gradient_bound=1.0)
    meter.add(1e8 * H, alpha, 0.0)
    for _ in range(10_000):
        meter.add(H, alpha, 0.0)
    report = meter.report()
    assert report["cumulative_cost"] == pytest.approx(0.05 * (1e8 + 1e4), rel=3e-16)
    assert abs(report["regret"]) <= 2e-16 * report["cumulative_cost"]


def test_nothing_played_yet_and_no_cost():
    meter = RegretMeter(3, 0.1)
    assert not any(meter.report().values())
    meter.add(np.zeros((3, 3)), np.eye(3)[0], 1.0)
    assert (meter.rounds, meter.report()["regret"]) == (1, 0.0)
    with pytest.raises(ValueError, match="gradient_norm"):
        meter.add(np.eye(3), np.eye(3)[0], 1.0)
    for bound in (-1.0, 0.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="gradient bound"):
            RegretMeter(3, 0.1, bound)
