"""docs/trust.md: the numbers of its section Report are those of the committed tables."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spcacw_flwr.report.facts import facts_of
from spcacw_flwr.report.read import read
from spcacw_flwr.report.words import signed

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "trust.md").read_text().split("## Report")[1].split("\n## ")[0]


@pytest.mark.parametrize("name", ["digits", "rotate"])
def test_leave_one_out_is_the_committed_table(name, tmp_path):
    (tmp_path / "config.toml").write_text("seed = 0\n")
    table = ROOT / "experiments" / "results" / f"leave-one-out-{name}.csv"
    shutil.copy(table, tmp_path / "leave_one_out.csv")
    found = facts_of(read(tmp_path)).leave_one_out
    for one in found.absences:
        margin = "" if one.margin is None else f" ± {one.margin:.2f} |"
        assert f"| {one.silo} | {one.alpha:.4f} | {signed(one.mean)} |{margin}" in PAGE
    words = " ".join(PAGE.split())
    assert f"{found.test_samples} test images" in words.replace(",", "")
    if name == "digits":
        assert f"the points lost is {found.correlation:.2f}" in words
    else:
        assert f"ends at {found.accuracy:.2f} % with all" in words
        assert f"below the {found.chance:.2f} points" in words


def test_links_and_pictures_lead_somewhere():
    for path in (
        "report.png",
        "../spcacw_flwr/report",
        "../experiments/results/leave-one-out-digits.csv",
    ):
        assert f"]({path})" in PAGE
        assert (ROOT / "docs" / path).exists()
