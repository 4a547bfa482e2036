"""The study of privacy's cost, small; and what its committed table shows."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from spcacw_flwr.experiments import privacy

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "experiments" / "results" / "privacy.csv"


def test_a_small_study_goes_on_where_it_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(privacy, "SETTINGS", {"digits-relabel": {"epochs": 1}})
    monkeypatch.setattr(privacy, "NOISES", {"digits-relabel": (0.1, 10.0)})
    few = {name: privacy.VARIANTS[name] for name in ("all", "one")}
    monkeypatch.setattr(privacy, "VARIANTS", few)
    table, picture = tmp_path / "t.csv", tmp_path / "t.png"
    for seeds in (1, 2):
        privacy.main(table, picture, "", seeds, "digits-relabel")
    rows = pd.read_csv(table)
    assert len(rows) == 2 * (5 + 2 * 2)
    assert not rows.duplicated(["variant", "noise", "seed"]).any()
    kept = rows[rows.variant == "all"].groupby("noise").alpha_private.mean()
    assert kept[10.0] < 0.01 < kept[0.1]
    assert picture.stat().st_size > 10_000
    assert table.with_suffix(".md").read_text().count("SP-CACW, all peers private") == 2


def test_the_committed_markdown_is_the_committed_table():
    rows = pd.read_csv(TABLE)
    assert set(rows.seed) == {0, 1, 2}
    made = privacy.render(privacy.in_order(rows)) + "\n"
    assert TABLE.with_suffix(".md").read_text() == made


@pytest.mark.parametrize("setting", list(privacy.SETTINGS))
def test_what_noise_costs(setting):
    """With noise at a useful ε SP-CACW is as good as training alone, and averaging is not."""
    rows = pd.read_csv(TABLE)
    rows = rows[rows.setting == setting]
    last = rows.groupby(["variant", "noise"]).last_accuracy.mean()
    alone = last["local"].iloc[0]
    assert last["all"].min() > alone - 0.5
    assert last["average-noisy"].min() < alone - 10
    assert last["one"].min() > alone + 1
    useful = rows[(rows.variant == "all") & (rows.epsilon < 20)]
    assert useful.alpha_private.max() < 0.05
