"""The cost matrices of SP-CACW's rounds: probed, booked; and the options around them."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

from spcacw_flwr.alpha import BiasTracker, NoiseTracker, minimise, optimal_weights
from spcacw_flwr.config.config import Config
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.methods.costs import CostBook
from spcacw_flwr.silos.protocol import Replies
from tests.baselines import by_hand
from tests.baselines.by_hand import converse, sending

M, D = 4, 6


METHOD = {"method": "spcacw", "epochs": 3, "compare_alone": False}


def digits(**keys):
    return simulate(Config.from_keys(**METHOD | keys))


def make(method="spcacw", dimension=D, **keys):
    return by_hand.make(method, [0.0] * dimension, sizes=[64] * M, **keys)


class Book(CostBook):
    """With a bias of its own, which is updated with each round that is heard; L is 2."""

    def __init__(self, **keys) -> None:
        config = Config.from_keys(method="spcacw", eta=0.5, **keys)
        bias = BiasTracker(M, D, beta=0.5)
        federation = make("local").federation
        super().__init__(config, federation, bias, bound=None, every=1, evidence=False)

    def hear(self, rows: torch.Tensor, silos=(0, 1, 2, 3), silent=(), bias=None):
        """The matrix of a round in which ``silos`` send their ``rows``; b̂ is set to ``bias``."""
        rows = rows[list(silos)]
        self.bias.update(rows, silos)
        if bias is not None:
            self.bias.estimate.fill_(bias)
        return self.matrix(rows, silos, list(silent), 2.0, counts=True)


def noise(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, M, D, generator=torch.Generator().manual_seed(seed))


def test_plain_cost_matrix_is_the_equation():
    book, rows = Book(), noise(0)
    matrix, norm = book.hear(rows)
    b, g = book.bias.estimate.double().numpy(), rows.double().numpy()
    np.testing.assert_allclose(matrix, b @ b.T + 0.5 * 2.0 * g @ g.T, rtol=1e-5)
    assert norm == pytest.approx(np.linalg.norm(g, axis=1).max(), rel=1e-6)


def test_a_round_costs_the_mean_over_the_draws_and_who_is_silent_is_predicted():
    """p = ½. Silo 1 is not asked and keeps its last row, silo 3 is silent: g₀ + b̂₃."""
    book, (first, rows) = Book(participation=0.5), noise(1, 2)
    for _ in range(2):
        book.hear(first)
    matrix, norm = book.hear(rows, (0, 2), silent=(3,))
    level = np.array([1, 0.875 / 0.75, 1, 0.875 / 0.75])  # 1 − ½³ over 1 − ½², β = ½
    b = book.bias.estimate.double().numpy() * level[:, None]
    own, kept = rows.double().numpy(), first.double().numpy()
    g = np.stack([own[0], kept[1], own[2], own[0] + b[3]])
    squares = np.square(g).sum(axis=1) * [1, 2, 2, 2]  # ‖g‖²/p, and the target's z is 1
    products = g @ g.T
    np.fill_diagonal(products, squares)
    np.testing.assert_allclose(matrix, b @ b.T + products, rtol=1e-5, atol=1e-6)
    assert norm == pytest.approx(np.sqrt(squares.max()), rel=1e-6)
    matrix, _ = book.hear(rows, (0, 2))  # silo 3 is not asked again
    b3 = book.bias.estimate[3].double().numpy() * (1 - 0.5**4) / 0.75
    assert matrix[0, 3] == pytest.approx(own[0] @ (own[0] + b3), rel=1e-5)


def test_the_cost_is_unbiased_whoever_is_drawn():
    """Prop. partial participation: over draws the mean of ‖Σ α g̃‖² is αᵀHα, as of every round.

    Gradients stand still: then H is the same whoever was drawn, and so is its mean.
    """
    p, rng = 0.3, np.random.default_rng(0)
    book, rows = Book(participation=p), noise(2)
    alpha, g = np.array([0.4, 0.3, 0.2, 0.1]), rows.double().numpy()
    costs, squares = [], []
    for t in range(4_000):
        here = (0, *(i for i in range(1, M) if t < 2 or rng.random() < p))
        z = np.isin(range(M), here) / np.array([1, p, p, p])
        squares.append(np.square((alpha * z) @ g).sum())
        if t < 200:
            costs.append(alpha @ book.hear(rows, here, bias=0.0)[0] @ alpha)
    np.testing.assert_allclose(costs, costs[0], rtol=1e-6)
    error = np.std(squares[2:], ddof=1) / np.sqrt(len(squares) - 2)
    assert costs[0] == pytest.approx(np.mean(squares[2:]), abs=4 * error)
    assert costs[0] - alpha @ g @ g.T @ alpha > 8 * error  # without 1/p − 1 it would fail


def test_noise_of_silos_that_are_not_asked_stays_their_own():
    """All have the mean gradient ½·1, and noise of variance 1 in each of D = 6 coordinates.

    E⟨gᵢ, gⱼ⟩ = 6/4 and E‖gᵢ‖² = 6/4 + 6, of a peer 1/p times that. Rows that b̂ predicts would share
    the target's noise, and have 6 more in every product. A mean is off by .25 (1000 p rows).
    """
    p, rng, book = 0.25, np.random.default_rng(3), Book(participation=0.25)
    total = np.zeros((M, M))
    for t in range(1000):
        rows = torch.from_numpy(rng.normal(size=(M, D)) + 0.5).float()
        here = (0, *(i for i in range(1, M) if t < 2 or rng.random() < p))
        total += book.hear(rows, here, bias=0.0)[0] / 1000
    wanted = np.full((M, M), 1.5) + np.diag([6.0, *3 * [7.5 / p - 1.5]])
    assert (np.abs(total - wanted) < 1 + np.diag([0.0, *3 * [3.0]])).all()


def test_a_silo_heard_once_has_the_targets_row():
    book, rows = Book(participation=0.5), noise(4)
    for here in ((0, 1), (0, 1, 2)):
        matrix, _ = book.hear(rows, here)
    assert book.known.tolist() == [True, True, False, False]
    for silo in (2, 3):
        np.testing.assert_array_equal(matrix[silo], matrix[0])
        np.testing.assert_array_equal(matrix[:, silo], matrix[:, 0])


SOLVERS = [{"solver": name} for name in ("ftl", "ftal", "ons", "eg")]


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("keys", [*SOLVERS, {"method": "spcacw-closed-form"}, {"probe": 0.1}])
def test_no_weight_without_two_reports(keys, every):
    """Silo 1 never answers, silo 2 answers in round 3 and 5, silo 3 in rounds 2, 3, … ."""
    made = make(smoothness=1.0, max_norm=0.0, update_every=every, **keys)
    rng, heard_at = np.random.default_rng(0), ({}, {}, {3, 5}, {2, 3, 4, 5, 6, 7, 8})
    reports = np.zeros(M)
    for round_ in range(1, 9):
        rows = torch.from_numpy(rng.normal(size=(M, D)) + 1).float()

        def reply(request, rows=rows, round_=round_):
            here = [i for i in request.silos if i == 0 or round_ in heard_at[i]]
            reports[here] += 1
            return Replies(tuple(here), rows[here], torch.ones(len(here)))

        converse(made, round_, reply)
        assert not made.alpha[1:][reports[1:] < 2].any()
        assert made.alpha.sum() == pytest.approx(1)


def test_ftls_weights_are_those_of_the_problem_without_the_unknown():
    made = make(smoothness=1.0, max_norm=0.0, update_every=1)
    rng, total = np.random.default_rng(1), np.zeros((3, 3))
    for round_ in range(1, 6):
        rows = torch.from_numpy(rng.normal(size=(M, D)) + 1).float()
        answer = lambda request, rows=rows: Replies((0, 1, 2), rows[:3], torch.ones(3))  # noqa: E731
        converse(made, round_, answer)
        b, g = made.bias.estimate[:3].double().numpy(), rows[:3].double().numpy()
        total += b @ b.T + made.config.training.eta * g @ g.T
    np.testing.assert_allclose(made.alpha[:3], minimise(total).alpha, atol=1e-6)
    assert made.alpha[3] == 0
    assert made.epoch_report()["best_fixed_cost"] == pytest.approx(
        made.alpha[:3] @ total @ made.alpha[:3], rel=1e-5
    )


@pytest.mark.parametrize(("p", "seed"), [(0.5, 2), (0.1, 0), (0.1, 1)])
def test_silos_that_are_rarely_heard_do_no_harm_on_digits(p, seed):
    """A silo never heard had it all: 55 % at p = ½, 16 and 23 % at p = .1; alone 65 to 80."""
    alone, found = (digits(participation=p, epochs=5, seed=seed, method=method)
                    for method in ("local", "spcacw"))  # fmt: skip
    assert found.accuracy[-1] > alone.accuracy[-1] - 3
    assert found.alpha[0] > 0.7


def test_the_closed_form_trusts_peers_no_more_that_are_heard_more_rarely():
    """α₀ was .64 at p = .1, where all of the weight is the target's at p = 1."""
    found = [digits(method="spcacw-closed-form", participation=p, epochs=15) for p in (1, 0.1)]
    assert found[0].alpha[0] == pytest.approx(1.0, abs=1e-3)
    assert found[1].alpha[0] > 0.95


@pytest.mark.parametrize("smoothness", [1.0, 4.0])
def test_the_closed_form_is_the_lemma_at_the_runs_own_eta_and_smoothness(smoothness):
    """Also with rounds before T_start, in which biases are others: none of them counts."""
    keys = {"max_norm": 0.0, "smoothness": smoothness, "t_start": 41, "eta": 0.1}
    made = make("spcacw-closed-form", 200, **keys)
    rng = np.random.default_rng(0)
    for round_ in range(1, 241):
        rows = rng.normal(size=(M, 200)) / np.sqrt(200)
        rows[:, 0] += [0, 0.2, 0, 0.5] if round_ > 40 else [0, 9, 9, 9]
        converse(made, round_, sending(rows))
        if round_ == 40:
            np.testing.assert_array_equal(made.alpha, [1, 0, 0, 0])
            made.bias.estimate.zero_()
            made.book.evidence.noise = NoiseTracker(M, 0)
    evidence = made.book.evidence
    lemma = optimal_weights(evidence.squared_biases, evidence.variances, 0.1, smoothness).alpha
    np.testing.assert_array_equal(made.leader(), lemma)
    np.testing.assert_array_equal(made.silo_figures()["closed_form"], lemma)
    np.testing.assert_array_equal(made.alpha, lemma)
    assert ((lemma > 0) & (lemma < 1)).any()
    assert evidence.squared_biases[2] < 0.3  # 81 before T_start


def test_who_is_left_out_where_all_are_asked_counts_as_silent():
    """A method of one's own may ask fewer: no gradient of them is kept, so b̂ predicts it."""
    rows, found = noise(0, 3), []
    for silent in ((), (2, 3)):
        book = Book()
        for some in rows[:2]:
            book.hear(some)
        found.append(book.hear(rows[2], (0, 1), silent)[0])
    np.testing.assert_array_equal(*found)


def test_the_bound_of_gradients_counts_the_draws_of_peers():
    """√E‖g̃‖² ≤ max-norm/√p: 2/√¼ = 4 in learner and regret, where silos clip."""
    made = make(max_norm=2.0, participation=0.25)
    assert made.learner.gradients.value == made.book.regret.gradients.value == 4.0


def test_diagnostics_do_not_touch_training():
    with_, without = digits(diagnostics=True), digits(diagnostics=False)
    np.testing.assert_array_equal(with_.alpha, without.alpha)
    assert all(torch.equal(with_.parameters[n], without.parameters[n]) for n in with_.parameters)
    assert "regret" in with_.epochs[0]
    assert "regret" not in without.epochs[0]


def test_large_federations_are_not_logged(monkeypatch):
    for most, logged in ((6, False), (7, True)):
        monkeypatch.setattr("spcacw_flwr.methods.costs.LOGGED", most)
        assert ("regret" in digits(epochs=1).epochs[0]) is logged


def test_regret_and_silo_figures_are_on_disk(tmp_path):
    digits(output=str(tmp_path / "run"), epochs=4, t_start=2)
    lines = [json.loads(x) for x in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    for line in lines:
        assert line["cumulative_cost"] - line["best_fixed_cost"] == pytest.approx(line["regret"])
        assert -1e-9 <= line["regret"] <= line["regret_bound"]
    table = pd.read_csv(tmp_path / "run/silos.csv")
    assert list(table.columns) == ["epoch", "silo", "alpha", "bias", "sigma", "closed_form"]
    assert len(table) == 4 * 7
    np.testing.assert_allclose(table.groupby("epoch").closed_form.sum(), 1)
    own = table[table.silo == 0]
    assert (own.bias == 0).all()
    assert (own.sigma > 0).all()
    last = table[table.epoch == 4].set_index("silo")
    assert last.bias[[1, 2]].max() < last.bias[3:].min()  # the true cluster is less biased
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["figures"]["bias"] == pytest.approx(list(last.bias))


@pytest.mark.parametrize(
    ("probe", "p", "asked"), [(0.25, 1.0, [2000, 500, 500]), (0.5, 0.5, [1000, 500, 500])]
)
def test_peers_of_weight_zero_are_asked_at_the_rate_of_probe_times_participation(probe, p, asked):
    """Of 2000 rounds; 500 ± 4 √(2000 · ¼ · ¾) = 500 ± 77, and 1000 ± 4 √500 = 1000 ± 89."""
    made = make(probe=probe, participation=p)
    made.alpha, found = np.array([0.5, 0.5, 0.0, 0.0]), np.zeros(M)
    for round_ in range(1, 2001):
        found[list(made.request(round_).silos)] += 1
    assert found[0] == 2000
    assert (np.abs(found[1:] - asked) <= [0 if p == 1 else 89, 77, 77]).all()


def test_probing_saves_floats_and_does_not_change_who_wins():
    full, probed = digits(epochs=8), digits(epochs=8, probe=0.2)
    assert probed.epochs[-1]["floats"] < full.epochs[-1]["floats"]
    assert set(np.argsort(-probed.alpha)[:3]) == set(np.argsort(-full.alpha)[:3])


@pytest.mark.parametrize(
    "keys", [{"solver": "ftal"}, {"solver": "ons"}, {"solver": "eg"}, {"beta_schedule": "harmonic"}]
)
def test_every_learner_and_schedule_trains(keys):
    result = digits(update_every=1, epochs=5, **keys)
    assert result.accuracy[-1] > 40
    assert result.alpha.sum() == pytest.approx(1)
    assert (result.alpha >= 0).all()
    assert not np.array_equal(result.alpha, np.eye(7)[0])


def test_given_g_max_is_used():
    small, large = digits(solver="ftal", g_max=0.05), digits(solver="ftal", g_max=5)
    assert not np.array_equal(small.alpha, large.alpha)


def test_closed_form_gives_silos_without_bias_weight_by_their_noise():
    # Silos 1 and 2 are like the target, with noise of σ₁ = 2σ₂; silo 3 is far off.
    made = make("spcacw-closed-form", 2000, max_norm=0, smoothness=1.0, beta=0.02)
    rng = np.random.default_rng(0)
    sigmas, biases = np.array([1.0, 2.0, 1.0, 1.0]), np.array([0, 0, 0, 5.0])
    for round_ in range(1, 801):
        rows = rng.normal(size=(M, 2000)) / np.sqrt(2000) * sigmas[:, None]
        rows[:, 0] += biases
        converse(made, round_, sending(rows))
    figures = made.silo_figures()
    np.testing.assert_allclose(figures["sigma"], sigmas, rtol=0.05)
    assert figures["bias"][3] == pytest.approx(5, rel=0.05)
    assert figures["bias"][1:3].max() < 0.3
    assert made.alpha[3] == 0.0
    np.testing.assert_array_equal(made.alpha, figures["closed_form"])
    assert made.alpha[2] > 2 * made.alpha[1] > 0
