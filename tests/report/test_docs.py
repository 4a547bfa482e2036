"""docs/run.md: what it says of leave-one-out is what the committed tables say."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spcacw_flwr.report.facts import facts_of
from spcacw_flwr.report.read import read

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "run.md").read_text().split("## The report")[1].split("\n## ")[0]


@pytest.mark.parametrize("name", ["digits", "rotate"])
def test_leave_one_out_says_what_the_page_says(name, tmp_path):
    (tmp_path / "config.toml").write_text("seed = 0\n")
    table = ROOT / "experiments" / "results" / f"leave-one-out-{name}.csv"
    shutil.copy(table, tmp_path / "leave_one_out.csv")
    found = facts_of(read(tmp_path)).leave_one_out
    words = " ".join(PAGE.split())
    assert f"{found.test_samples} test images" in words.replace(",", "")
    told = {one.silo for one in found.absences if one.margin and one.mean > one.margin}
    if name == "digits":
        assert len(found.absences) == 6
        assert told == {1, 2}  # the target's true cluster; of the others nothing but chance
        assert f"the points lost is {found.correlation:.2f}" in words
    else:
        assert max(abs(one.mean) for one in found.absences) < found.chance / 2
        assert f"far below the {found.chance:.2f} points" in words
