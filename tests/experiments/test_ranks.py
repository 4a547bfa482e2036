"""Ranks, wins and losses: by hand, and the committed table from its sources."""

from pathlib import Path

import pandas as pd
import pytest

from spcacw_flwr.experiments.ranks import costs, ranks, read_cells, table

RESULTS = Path(__file__).parents[2] / "experiments" / "results"
PAIRS = [1.0, 2.0, 3.0, 4.0]


def test_by_hand():
    """a is 1 ahead of b in every pair of the first cell; c swings, and is nowhere but there."""
    one = pd.DataFrame({"a": PAIRS, "b": [x - 1 for x in PAIRS], "c": [9.0, -9.0, 9.0, -9.0]})
    two = pd.DataFrame(
        {"a": PAIRS, "b": [x + e for x, e in zip(PAIRS, (1, -1, 2, -1), strict=True)]}
    )
    found = ranks({"one": one, "two": two}).set_index("method")
    assert list(found.index) == ["a", "b"]
    assert found["mean_rank"].tolist() == [1.5, 1.5]
    assert found.loc["a", ["wins", "losses", "best"]].tolist() == [1, 0, 1]
    assert found.loc["b", ["wins", "losses", "best"]].tolist() == [0, 1, 1]


def test_costs_by_hand():
    """In the second column all methods have twice the rounds, which does not count."""
    lines = [("local", 10, 0), ("fedavg", 10, 100), ("ours", 15, 200)]
    runs = pd.DataFrame(
        [(column, 0, name, times * gradients, times * size)
         for column, times in (("one", 1), ("two", 2)) for name, gradients, size in lines],
        columns=["column", "seed", "method", "target_gradients", "bytes"],
    )  # fmt: skip
    found = costs(runs).loc["ours"]
    assert found.tolist() == [1.5, 2.0]


def test_the_committed_table_is_that_of_the_committed_runs():
    committed = pd.read_csv(RESULTS / "ranks.csv")
    pd.testing.assert_frame_equal(table(RESULTS), committed, check_dtype=False)


@pytest.mark.parametrize("method", ["local", "spcacw", "spcacw-plus", "meritfed"])
def test_every_cell_has_the_methods_that_matter(method):
    assert all(method in cell for cell in read_cells(RESULTS).values())
