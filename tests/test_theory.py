"""The synthetic silos are what the theory assumes, and the theory studies measure what they say."""

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from spcacw_flwr.experiments.theory import claims, rates
from spcacw_flwr.experiments.theory.__main__ import STUDIES, main
from spcacw_flwr.experiments.theory.problems import Logistic, Pool, Quadratics
from spcacw_flwr.experiments.theory.trials import (
    AUTARKY,
    ORACLE,
    SPCACW,
    UNIFORM,
    Trial,
    Variant,
    best,
    clustering,
    few_rounds,
    fit,
    measured,
    repeated,
    step_size,
)
from spcacw_flwr.silos.protocol import Request

PROBLEMS = (Quadratics(own=3, off=3), Quadratics(own=3, off=3, stretch=1.0), Logistic(3, 3))
RESULTS = Path("experiments/results/theory")
PAGE = Path("docs/theory.md").read_text()
NAMES = ("quadratics", "stretched", "logistic")


def point_of(problem, seed=1):
    return problem.start + 0.3 * np.random.default_rng(seed).normal(size=problem.start.shape)


@pytest.mark.parametrize("problem", PROBLEMS, ids=NAMES)
def test_gradients_are_unbiased_with_the_stated_bias_and_variance(problem):
    """4096 rounds at w₁; the mean must lie within 4 standard errors in norm, the variance in 5 %.

    The squared distance of the mean has expectation σ²/n; 4 times its root is far above chance.
    """
    n, w = 4096, problem.start
    rows = np.stack([problem.answers(0, w, t, 0) for t in range(1, n + 1)])
    reach = 4 * np.sqrt(problem.variance / n)
    for silo in range(6):
        expected = problem.gradient(w) + (problem.bias(w, 1) if silo >= 3 else 0.0)
        assert np.linalg.norm(rows[:, silo].mean(axis=0) - expected) < reach
    for silo in range(3):  # of the logistic silos, the off-target ones have a variance of their own
        deviation = rows[:, silo] - problem.gradient(w)
        assert_allclose(np.square(deviation).sum(axis=1).mean(), problem.variance, rtol=0.05)
    # Silos and rounds are independent: no correlation beyond 5 standard errors.
    noise = (rows - rows.mean(axis=0))[:, :, 0]
    assert abs(np.corrcoef(noise.T) - np.eye(6)).max() < 5 / np.sqrt(n)
    assert abs(np.corrcoef(noise[:-1, 0], noise[1:, 0])[0, 1]) < 5 / np.sqrt(n)


@pytest.mark.parametrize("problem", PROBLEMS[1:], ids=NAMES[1:])
def test_gradient_and_constants_are_those_of_the_loss(problem):
    """∇f by central differences, δ₁ and L by the loss itself."""

    def loss(w):
        if isinstance(problem, Logistic):
            return np.logaddexp(0, -problem.data[0] @ w).mean()
        return 0.5 * w @ (problem.spectrum * w)

    w, step = point_of(problem), 1e-5
    differences = [(loss(w + step * e) - loss(w - step * e)) / (2 * step) for e in np.eye(len(w))]
    assert_allclose(problem.gradient(w), differences, rtol=1e-6, atol=1e-8)
    best_point = np.array(w)
    for _ in range(3000):
        best_point -= problem.gradient(best_point) / problem.smoothness
    assert_allclose(problem.gap, loss(problem.start) - loss(best_point), rtol=1e-4)
    pairs = [(point_of(problem, s), point_of(problem, s + 50)) for s in range(20)]
    ratios = [np.linalg.norm(problem.gradient(a) - problem.gradient(b)) / np.linalg.norm(a - b)
              for a, b in pairs]  # fmt: skip
    assert 0.2 * problem.smoothness < max(ratios) <= problem.smoothness * (1 + 1e-9)


def test_what_moves_with_w():
    """Of logistic silos with the same x the noise, not the bias; of the stretched the bias."""
    stretched, logistic = PROBLEMS[1:]
    near, far = stretched.start, 2 * stretched.start
    moved = stretched.bias(far, 1) - stretched.bias(near, 1)
    assert_allclose(moved, stretched.gradient(far) - stretched.gradient(near))
    w = point_of(logistic)
    assert_allclose(logistic.bias(w, 1), logistic.bias(logistic.start, 1), atol=1e-12)
    by_hand = (logistic.data[0] - logistic.data[1]).mean(axis=0) / 2
    assert_allclose(logistic.bias(w, 1), by_hand, atol=1e-12)


@pytest.mark.parametrize("problem", PROBLEMS, ids=NAMES)
def test_a_pure_function_of_seed_silo_round_and_draw(problem):
    w, config = point_of(problem), Trial(problem, AUTARKY, 10, 5).config()
    points = torch.from_numpy(w)

    def rows(round_, silos):
        return Pool(problem, config).answer(Request(round_, silos, points)).replies.gradients

    first = rows(300, (0, 1, 2, 3, 4, 5))
    rows(7, (0,))
    assert_array_equal(rows(300, (1, 4)), first[[1, 4]])
    for seed, round_, draw in ((6, 300, 0), (5, 301, 0), (5, 300, 1)):
        assert (problem.answers(seed, w, round_, draw) != problem.answers(5, w, 300, 0)).any()
    # The target's cluster draws the same whatever the number of silos beside it.
    if isinstance(problem, Quadratics):
        wider = Quadratics(own=3, off=9).answers(5, w, 300, 0)
        assert_array_equal(wider[:3], problem.answers(5, w, 300, 0)[:3])


def test_a_bias_that_appears():
    problem = Quadratics(own=1, off=1, onset=10)
    w = problem.start
    assert not problem.bias(w, 9).any()
    assert_allclose(np.linalg.norm(problem.bias(w, 10)), problem.distance)


@pytest.mark.parametrize(
    ("variant_", "weights"),
    [(AUTARKY, [1, 0, 0]), (ORACLE, [0.5, 0.5, 0]), (UNIFORM, [1 / 3, 1 / 3, 1 / 3])],
    ids=["autarky", "oracle", "uniform"],
)
def test_error_is_that_of_plain_sgd(variant_, weights):
    problem, T = Quadratics(own=2, off=1), 60
    trial = Trial(problem, variant_, T, seed=3, factor=2.0)
    helpers = {"target": 1, "cluster": 2, "all": 3}[variant_.helpers]
    eta, w, total = 2 * step_size(problem, T, helpers), problem.start, 0.0
    for t in range(1, T + 1):
        total += np.square(problem.spectrum * w).sum()
        w = w - eta * np.array(weights) @ problem.answers(3, w, t, 0)
    assert_allclose(trial.run()["error"], total / T, rtol=1e-5)


def test_step_size_of_the_lemma():
    assert step_size(Quadratics(noise=10.0), 1000, 8) == pytest.approx((8 / 20_000) ** 0.5)
    assert step_size(Quadratics(noise=10.0), 10, 8) == 1 / 8


def test_methods_differ_as_the_theory_says():
    """At T = 400: Oracle < SP-CACW < Autarky, and uniform FL is at its floor."""
    problem = Quadratics(own=8, off=8)
    errors = {
        v.label: np.mean([Trial(problem, v, 400, s, 2.0).run()["error"] for s in range(3)])
        for v in (ORACLE, SPCACW, AUTARKY, UNIFORM)
    }
    values = [errors[v.label] for v in (ORACLE, SPCACW, AUTARKY)]
    assert all(a < b for a, b in pairwise(values))
    assert errors[UNIFORM.label] > 0.9 * 0.25


def test_clustering_that_is_told_the_size_finds_clusters_far_apart():
    problem = Quadratics(own=4, off=5, distance=20.0)
    found = Trial(problem, clustering(4, 5), 50, 0).run()
    assert found["off_weight"] == 0.0
    # Three inner rounds leave (1 − 4/9)³ of α on the target; the first round counts e₀.
    rest = (5 / 9) ** 3
    each = (1 - rest) / 4
    squares = (rest + each) ** 2 + 3 * each**2
    assert found["squared_weights"] == pytest.approx((1 + 49 * squares) / 50)


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        ([250, 500, 1000, 2000], [3 * v**-0.5 for v in (250, 500, 1000, 2000)], (-0.5, 0)),
        ([1, 2, 4], [7, 7, 7], (0, 0)),  # which SciPy's linregress calls NaN
        # log y = 0, 0, 3: slope 1.5, residuals ½, −1, ½, so the error is √¾; t of one degree.
        (np.exp([0, 1, 2]), np.exp([0, 0, 3]), (1.5, 12.7062 * 0.75**0.5)),
    ],
)
def test_slope_and_interval_by_hand(x, y, expected):
    slope, reach = expected
    found = list(fit(x, y).values())
    assert_allclose(found, (slope, slope - reach, slope + reach), rtol=1e-5, atol=1e-9)


def test_a_slope_needs_three_points():
    with pytest.raises(ValueError, match="three points"):
        fit([1, 2], [1, 2])


def test_means_best_steps_and_slopes():
    cells = [cell for T in (10, 20, 40)
             for cell in repeated(T, Quadratics(), AUTARKY, T, 2, (1.0, 2.0))]  # fmt: skip

    def run(trial):
        return {"error": (2 / trial.factor + (-0.1, 0.1)[trial.seed]) / trial.rounds}

    table = measured(cells, 0, run)
    assert list(table["seeds"]) == [2] * 6
    assert_allclose(table["standard_error"][0], 0.01)  # values 0.19 and 0.21
    assert set(best(table)["factor"]) == {2.0}
    found = rates.slopes("s", "T", table)
    assert [row["step_size"] for row in found] == ["best", "formula"]
    assert_allclose([row["slope"] for row in found], -1.0)
    assert {row["theory"] for row in found} == {-0.5}


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_error_of_the_bias_estimate_is_the_lemmas(beta):
    """Mean over 40 runs and 12 silos; the target's noise is common, so 25 % is 3–4 standard errors.

    The error of one run, ‖·‖² of d = 20 Gaussian coordinates, has the relative deviation √(2/20).
    """
    variant = next(rates.bias_cells((beta,))).trial.variant
    cells = repeated(beta, Quadratics(own=1, off=12), variant, 50, 40, label="stationary")
    found = rates.traced(list(cells), workers=0)
    late = found[found["t"] >= 5]
    assert_allclose(late["estimate"], late["theory"], rtol=0.25)


@pytest.mark.parametrize("p", [1.0, 0.5, 0.2, 0.1])
def test_partial_participation_proposition(p):
    """Var G̃ = (1/p − 1) Σ α²‖g‖² over the peers: the target always takes part.

    Within 5 standard errors of 5000 draws; the mean's squared error is about Var/5000.
    """
    (trial,) = (cell.trial for cell in rates.participation(5000) if cell.x == p)
    found = rates.simulated(trial)
    assert abs(found["variance"] - found["theory_peers"]) <= 5 * found["variance_error"] + 1e-9
    assert found["mean_error"] <= 5 * found["theory_peers"] / 5000 + 1e-9
    if p < 1:
        assert found["theory_all"] > found["theory_peers"]


def test_silos_of_their_own_noise_and_bias():
    """Beside silos that are alike: the noise is scaled, and b_i has a direction of its own."""
    alike = Quadratics(own=1, off=2, distance=0.0)
    problem = Quadratics(own=1, off=2, noises=(1, 4, 1 / 4), shifts=(0, 0.5, 2))
    w = problem.start
    biases = problem.biases(w, 1)
    assert_allclose(np.linalg.norm(biases, axis=1), [0, 0.5, 2])
    assert abs(biases[1] @ biases[2]) < 1  # not of one direction
    assert_allclose(problem.variances, [10, 40, 2.5])
    noise = alike.answers(0, w, 1, 0) - problem.gradient(w)
    expected = problem.gradient(w) + np.array([[1], [2], [1 / 2]]) * noise + biases
    assert_allclose(problem.answers(0, w, 1, 0), expected)


def test_both_sides_of_the_bounds():
    """Left ≤ right in the mean, and what is tight is seen to be: half of σ² would be too little."""
    table = claims.compared([*few_rounds(claims.bounds(), 40)], 0).set_index(
        ["statement", "weights"]
    )
    assert len(table) == 3 * 3 + 2 * 10
    assert (table["left"] > 0).all()
    assert (table["right"] > table["left"]).all()
    moment = table.loc[("Lemma A.2, second moment", "Autarky")]
    assert moment["right"] - Quadratics.noise / 2 < moment["left"]


def test_what_the_page_says_of_the_bounds():
    table = pd.read_csv(RESULTS / "bounds.csv")
    assert (table["margin"] > 3).all()
    times = table.set_index("statement")["times"]
    theorem = times["Theorem 3.1"]
    said = f"Theorem 3.1 is {theorem.min():.1f} to {theorem.max():.1f} times its left side"
    assert said in " ".join(PAGE.split())
    assert times["Theorem 4.1, regret"].min() > 1e4
    measured = times[times.index.str.endswith("R measured")]
    assert [round(measured.min()), round(measured.max())] == [6, 42]


def test_what_the_page_says_of_unequal_noise():
    table = pd.read_csv(RESULTS / "unequal-noise.csv")
    of = table[table["x"] == 64].set_index(["shift", "label"])
    lemma, cosine = "Lemma 3.1, told b and σ", "cosine of mean gradients"
    near, far = (of.loc[f"‖b‖ = {shift}"] for shift in ("0.2", "1"))
    assert near.loc[lemma, "off"] > 0.5
    assert far.loc[lemma, "off"] == 0
    assert near.loc[SPCACW.label, "target"] > 0.5
    assert near.loc[lemma, "excess"] < near.loc[cosine, "excess"] < near.loc[SPCACW.label, "excess"]
    assert far["excess"].idxmax() == "inverse variance, told σ"
    assert far.loc[cosine, "excess"] < far.loc[SPCACW.label, "excess"]


def test_what_the_page_says_of_regularisers_bounds_and_public_data():
    table = pd.read_csv(RESULTS / "regularisers.csv").set_index(["x", "label"]).sort_index()
    cubic, square = (table.loc[(100, term), "excess"] for term in ("cubic", "quadratic"))
    assert (cubic.to_numpy() < square.to_numpy()).all()
    table = pd.read_csv(RESULTS / "bounded-bias.csv").set_index(["bias", "label"])["excess"]
    late = table["b appears at T/2"]
    assert late["B = ‖b‖"] < 1.1 * late[ORACLE.label] < late[SPCACW.label] / 2
    assert table["one b", "B = ‖b‖/3"] > 2 * table["one b", "B = 3‖b‖"]
    table = pd.read_csv(RESULTS / "public-data.csv").set_index(["label", "x"])
    assert (table.loc["Lemma 3.1, told b and σ", "off"] == 0).all()
    assert table.loc[SPCACW.label, "off"].is_monotonic_increasing
    assert (
        table["excess"].drop(AUTARKY.label, level="label").max()
        < table.loc[AUTARKY.label, "excess"].min()
    )


SMALL = Quadratics(own=2, off=2)


def answers(rule, rounds):
    """Return the method after its rounds, and the gradients that it saw, (T, M, d)."""
    trial = Trial(SMALL, rule, rounds, 0)
    *steps, (_, point, _, method) = list(trial.play())
    points = [*(step[1] for step in steps), point]
    return method, np.stack([SMALL.answers(0, w, t, 0) for t, w in enumerate(points, 1)]), trial.eta


def test_the_bounded_cost():
    """Σ H = T BBᵀ + ηL Σ GGᵀ with the bounds that were told, whatever the estimates are."""
    told = claims.own(claims.Bounded, "", values="0 .5 1 2")
    method, g, eta = answers(told, 9)
    B = np.array([0, 0.5, 1, 2])
    expected = 9 * np.outer(B, B) + eta * np.einsum("tid,tjd->ij", g, g)
    assert_allclose(method.learner.total, expected, rtol=1e-4, atol=1e-3)


def test_cosine_weights_by_hand():
    rule = claims.own(claims.Cosine, "", {"update_every": 3})
    method, g, _ = answers(rule, 5)
    mean = g[:3].sum(axis=0)
    cosines = mean @ mean[0] / np.linalg.norm(mean, axis=1) / np.linalg.norm(mean[0])
    cosines = np.maximum(cosines, 0)
    assert_allclose(method.alpha, cosines / cosines.sum(), rtol=1e-5)


@pytest.mark.parametrize(("gamma", "expected"), [(0.0, None), (1e9, [0.25] * 4)])
def test_the_quadratic_regulariser(gamma, expected):
    """Without γ it is SP-CACW, with a large one α is uniform; between them, 2Hα + 2λα is level."""
    keys = {"update_every": 4}
    method, *_ = answers(claims.own(claims.Quadratic, "", keys, gamma=gamma), 8)
    plain, *_ = answers(Variant("", "spcacw", keys, "target"), 8)
    assert_allclose(method.alpha, plain.alpha if expected is None else expected, atol=1e-6)


def test_a_quiet_shifted_silo_is_used_where_cosines_cannot_tell():
    """σ² a 64th of the target's, ‖b‖ = .2: it has most of α, and the target's loss is smaller."""
    problem = Quadratics(2, 1, 40.0, noises=(1, 1, 1 / 64), shifts=(0, 0, 0.2))
    rules = {rule.label: rule for rule in claims.rivals(problem, 200)}
    found = {
        name: claims.final(Trial(problem, rules[name], 200, 0, 2.0))
        for name in (SPCACW.label, AUTARKY.label)
    }
    excess = {name: each["excess"] for name, each in found.items()}
    assert found[SPCACW.label]["off"] > 0.1
    assert excess[SPCACW.label] < excess[AUTARKY.label]


@pytest.mark.slow
def test_the_command(tmp_path, capsys):
    main(tmp_path / "tables", tmp_path / "pictures", quick=True, workers=0)
    tables = {path.stem: pd.read_csv(path) for path in (tmp_path / "tables").glob("*.csv")}
    assert set(tables) == {*STUDIES, "slopes"}
    assert all(np.isfinite(table["error"]).all() for table in tables.values() if "error" in table)
    pictures = {path.stem for path in (tmp_path / "pictures").glob("*.png")}
    assert {"quadratics-rounds", "separation", "moving-bias", "schedule"} <= pictures
    main(tmp_path / "tables", tmp_path / "pictures", quick=True, workers=0, only=["participation"])
    assert "theory_peers" in capsys.readouterr().out
    page = (tmp_path / "tables" / "slopes.md").read_text()
    assert re.search(r"\| quadratics-rounds \| Autarky \| T \| best \| -?\d", page)
