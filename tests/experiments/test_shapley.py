"""Shapley values by hand, on a run, and in the committed table."""

from pathlib import Path

import pandas as pd
import pytest

from spcacw_flwr.config.config import read_toml
from spcacw_flwr.experiments.shapley import (
    CHEAP,
    GAMES,
    PARTS,
    agreement,
    coalitions,
    jobs_of,
    markdown,
    measure,
    shapley,
)
from spcacw_flwr.experiments.studies import STUDIES

RESULTS = Path(__file__).parents[2] / "experiments" / "results"
LINES = pd.read_csv(RESULTS / "shapley.csv")


WORTH = {4: 2.0, 6: -1.0, 9: 0.0}


@pytest.mark.parametrize(
    ("game", "expected"),
    [
        # 1 has a left glove, 2 and 3 right ones: of 6 orders, 1 comes after a right one in 4.
        (lambda S: float(1 in S and len(S) > 1), {1: 4 / 6, 2: 1 / 6, 3: 1 / 6}),
        # Of a sum each gets its part, and who adds nothing gets nothing.
        (lambda S: 7 + sum(WORTH[i] for i in S), WORTH),
        # Players that are alike share evenly all that there is.
        (lambda S: len(S) ** 2, dict.fromkeys(range(6), 6.0)),
    ],
)
def test_games_by_hand(game, expected):
    found = shapley(expected, {S: game(S) for S in coalitions(expected)})
    assert found == pytest.approx(expected)


def test_agreement_by_hand():
    """Ranks 1 2 3 against 1 3 2 are 1 − 6·2/24 = ½; a column of equals agrees with nothing."""
    lines = pd.DataFrame({"target": 0, "seed": [0] * 3 + [1] * 3, "shapley": [1.0, 2.0, 9.0] * 2,
                          "alpha": [0.1, 0.9, 0.2, 0.1, 0.1, 0.1]})  # fmt: skip
    assert agreement(lines, "alpha") == pytest.approx((0.5 + 0) / 2)


@pytest.mark.filterwarnings("ignore")
def test_the_values_of_a_run_add_up():
    keys = {"cluster-sizes": "2,1", "samples-per-silo": 40, "epochs": 30, "eta": 0.2}
    grid = {"seeds": 1, "setting": "digits-relabel", "targets": [1], "set": keys}
    job = next(jobs_of({"grid": [grid]}, {}))
    lines = pd.DataFrame(measure(job.keys))
    assert sorted(set(lines["silo"])) == [0, 2]
    assert len(lines) == len(GAMES) * 2 * 2
    for _, of in lines.groupby(["game", "metric"]):
        worth = of[[*PARTS, "leave_one_out", *CHEAP]].astype(float)
        # v(N) − v(∅) = φ₀ + φ₂, and of two players φ₀ − φ₂ is the difference of their losses.
        left, right = worth["leave_one_out"], worth["shapley"]
        assert right.iloc[0] - right.iloc[1] == pytest.approx(left.iloc[0] - left.iloc[1], abs=1e-3)
    averaged = lines[(lines["game"] == "fedavg") & (lines["metric"] == "accuracy")]
    kin, stranger = averaged["shapley"].astype(float)
    assert kin > 0 > stranger


def test_the_committed_table_is_whole_and_its_page_is_made_of_it():
    places = {tuple(job.place.values()) for job in jobs_of(read_toml(STUDIES)["shapley"], {})}
    found = LINES.groupby(["setting", "target", "seed"]).size()
    assert set(found.index) == places
    peers = {"heart": 3}
    assert all(count == 4 * peers.get(place[0], 6) for place, count in found.items())
    assert (RESULTS / "shapley.md").read_text() == markdown(LINES) + "\n"


def test_what_the_page_says_of_it():
    """The kin are first by α and by φ; with luck within both groups ρ is 12/17.5 on average."""
    games = LINES[LINES["setting"] != "heart"].groupby(["setting", "seed", "game", "metric"])
    first = {by: [set(of.nlargest(2, by)["silo"]) == {1, 2} for _, of in games]
             for by in ("alpha", "shapley")}  # fmt: skip
    assert all(first["alpha"])
    ranks = pd.Series([1.5, 1.5, 4.5, 4.5, 4.5, 4.5])
    assert ranks.cov(pd.Series(range(6))) / pd.Series(range(6)).var() == pytest.approx(12 / 17.5)
    six = LINES[LINES["setting"] != "heart"].groupby(["setting", "game", "metric"])
    gaps = [agreement(of, "alpha") - agreement(of, "leave_one_out") for _, of in six]
    page = " ".join((RESULTS.parents[1] / "docs" / "run.md").read_text().split())
    less = f"{-sum(gaps) / len(gaps):.2f}".lstrip("0")
    assert f"agrees with φ by {less} less, on average, than leave-one-out" in page
    assert f"φ does in {sum(first['shapley'])} of {len(games)} games" in page
