"""Known answers of the statistics and ranks; the arithmetic stands beside each."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from spcacw_flwr.experiments import overviews, scores
from spcacw_flwr.experiments.scores import Score

RESULTS = Path(__file__).parents[2] / "experiments" / "results"
PAIRS = [1.0, 2.0, 3.0, 4.0]
CURVES = np.array([[1.0, 9.0, 5.0], [3.0, 5.0, 6.0], [5.0, 7.0, 7.0]])
"""Three seeds, three epochs: means 3, 7, 6."""


def test_the_best_epoch_is_that_of_the_mean_and_the_std_is_of_that_epoch():
    assert scores.best_epoch(CURVES) == 2
    # Not the mean of each seed's best, (9 + 6 + 7)/3; sample variance (4 + 4 + 0)/2 = 4.
    assert scores.score_at(CURVES, 2) == Score(2, 7.0, 2.0, 3)
    assert scores.score_at(CURVES[:1], 3) == Score(3, 5.0, None, 1)
    assert scores.best_epoch(np.array([[2.0, 4.0, 4.0]])) == 2  # the first of equals


def test_the_distance_to_the_paper():
    # √(2²/3 + 1²/5) = √(23/15); (7 − 5)/that.
    found = scores.difference(Score(2, 7.0, 2.0, 3), (5.0, 1.0))
    assert found == pytest.approx(2 / math.sqrt(23 / 15))
    assert scores.difference(Score(2, 7.0, None, 1), (5.0, 1.0)) is None
    assert scores.difference(Score(2, 7.0, 0.0, 3), (5.0, 0.0)) is None


def test_the_paired_test():
    # Differences 1, 2, 3: mean 2, s = 1, t = 2√3 with 2 degrees of freedom, for which the
    # two-sided p is 1 − t/√(2 + t²) = 1 − √(12/14).
    assert scores.paired_p([2, 4, 6], [1, 2, 3]) == pytest.approx(1 - math.sqrt(12 / 14))
    assert scores.paired_p([1], [2]) is None
    assert scores.paired_p([1, 2], [1, 2]) == 1.0
    assert scores.paired_p([2, 3], [1, 2]) == 0.0


def test_holms_correction():
    # Holm's own steps: 4 × .01 = .04, 3 × .03 = .09, 2 × .04 = .08 → .09 (monotone), 1 × .5.
    found = scores.holm({"a": 0.5, "b": 0.01, "c": None, "d": 0.04, "e": 0.03})
    expected = {"a": 0.5, "b": 0.04, "c": None, "d": 0.09, "e": 0.09}
    assert found == {k: v and pytest.approx(v) for k, v in expected.items()}
    assert scores.holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}


def test_the_top_three_share_places():
    assert scores.top({"a": 3, "b": 2, "c": 2, "d": 2, "e": 1}) == {"a", "b", "c", "d"}
    assert scores.top({"a": 1}) == {"a"}
    # 861 of 1,700 cases, summed in another order.
    assert "d" in scores.top({"a": 51, "b": 52, "c": 50.64705882352942, "d": 50.64705882352941})


def test_the_cost_of_an_accuracy_is_that_of_its_first_epoch():
    cost = np.array([[10.0, 20.0, 30.0]] * 3)
    # 5 % is first there at epochs 2, 2, 1: (20 + 20 + 10)/3; two seeds never see 8 %.
    found = scores.to_reach(CURVES, cost, [5.0, 8.0])
    assert found[0] == pytest.approx(50 / 3)
    assert math.isnan(found[1])


def test_over_silos():
    mine, alone = [float(k) for k in range(20)], [5.5] * 20
    # Mean 9.5; the lowest two of twenty are 0 and 1; 6 … 19 are above 5.5.
    assert scores.over_silos(mine, alone) == (9.5, 0.5, 14 / 20)
    assert scores.over_silos([3.0, 1.0], [3.0, 0.0]) == (2.0, 1.0, 0.5)  # equal is not better


def test_runs_of_a_cluster_are_not_counted_as_if_independent():
    quantile = 12.706204736  # Student's at .975 with one degree of freedom
    # Mean 4; the deviations are -3, -1 | 1, 3: 2 (4² + 4²)/4² = 4, whose root is 2.
    mean, half = scores.clustered([1.0, 3.0, 5.0, 7.0], ["a", "a", "b", "b"])
    assert (mean, half) == (4.0, pytest.approx(2 * quantile))
    # Clusters of one are the usual interval: s/sqrt(n) = 1.
    assert scores.clustered([1.0, 3.0], [0, 1]) == (2.0, pytest.approx(quantile))
    assert math.isnan(scores.clustered([1.0, 3.0], [0, 0])[1])


def test_harm_is_more_than_half_a_point_and_more_than_a_test_case():
    assert scores.unharmed([-0.5, -0.51, -1.0, -1.01], [1000, 1000, 100, 100]) == 0.5
    assert scores.unharmed([-0.005, -0.0051, 0.1, -0.01], [1000, 1000, 9, 100], 1) == 0.75
    # A case less is no harm, whatever a CSV rounds to eight places.
    right = np.round(100 * np.arange(151) / 150, 8)
    assert scores.unharmed(right[:-1] - right[1:], [150] * 150) == 1
    assert scores.unharmed(right[:-2] - right[2:], [150] * 149) == 0


def test_ranks_wins_and_losses():
    """a is 1 ahead of b in every pair of the first cell; c swings, and is nowhere but there."""
    one = pd.DataFrame({"a": PAIRS, "b": [x - 1 for x in PAIRS], "c": [9.0, -9.0, 9.0, -9.0]})
    two = pd.DataFrame(
        {"a": PAIRS, "b": [x + e for x, e in zip(PAIRS, (1, -1, 2, -1), strict=True)]}
    )
    found = overviews.ranks({"one": one, "two": two}).set_index("method")
    assert list(found.index) == ["a", "b"]
    assert found["mean_rank"].tolist() == [1.5, 1.5]
    assert found.loc["a", ["wins", "losses", "best"]].tolist() == [1, 0, 1]
    assert found.loc["b", ["wins", "losses", "best"]].tolist() == [0, 1, 1]
    # The same lead on two splits of two targets is no win: 1 and 2 ahead, t = 3 with one freedom.
    pairs = pd.MultiIndex.from_product([range(2), range(2)], names=["seed", "target"])
    two = pd.DataFrame({"a": [2.0, 4.0, 2.0, 4.0], "b": [1.0, 2.0, 1.0, 2.0]}, pairs)
    assert overviews.ranks({"two": two})["wins"].tolist() == [0, 0]


def test_costs_are_multiples_within_a_column():
    """In the second column all methods have twice the rounds, which does not count."""
    lines = [("local", 10, 0), ("fedavg", 10, 100), ("ours", 15, 200)]
    runs = pd.DataFrame(
        [(column, 0, name, times * gradients, times * size)
         for column, times in (("one", 1), ("two", 2)) for name, gradients, size in lines],
        columns=["column", "seed", "method", "target_gradients", "bytes"],
    )  # fmt: skip
    found = overviews.costs(runs).loc["ours"]
    assert found.tolist() == [1.5, 2.0]


def test_the_committed_gains_are_those_of_the_committed_runs():
    """The paper's SP-CACW has 89.40 on MNIST rotate, its Local 85.24."""
    committed = pd.read_csv(RESULTS / "gains.csv")
    pd.testing.assert_frame_equal(overviews.gain_table(RESULTS), committed)
    of = committed.groupby(["column", "whose", "method"])["gain"].apply(list)
    assert of["MNIST rotate", "paper", "SP-CACW"] == pytest.approx([4.16])
    runs = pd.read_csv(RESULTS / "table1.csv").set_index(["column", "seed", "method"])
    best = runs["best_accuracy"]["mnist-rotate", 3]
    assert of["MNIST rotate", "ours", "SP-CACW"][3] == pytest.approx(
        best["spcacw"] - best["local"], abs=1e-3
    )


def test_the_committed_ranks_are_those_of_the_committed_runs():
    """Every cell has the methods that matter."""
    committed = pd.read_csv(RESULTS / "ranks.csv")
    pd.testing.assert_frame_equal(overviews.rank_table(RESULTS), committed, check_dtype=False)
    assert {"local", "spcacw", "spcacw-plus", "meritfed"} <= set(committed["method"])
