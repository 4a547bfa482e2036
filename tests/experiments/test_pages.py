"""The tables of docs/ are those of the committed results, and a stale one is named."""

import re
from pathlib import Path

import pytest

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.experiments.pages import from_csv, pages

ROOT = Path(__file__).parents[2]


def test_the_committed_pages_are_fresh():
    assert pages(ROOT, check=True) == []


@pytest.fixture
def root(tmp_path):
    """A repository of one page with two tables, of a CSV and of the second of a Markdown file."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "a.csv").write_text("kind,way,x\nk,one,1\nk,one,3\nk,two,5\nl,one,7\n")
    (tmp_path / "b.md").write_text("| first |\n| --- |\n\nText.\n\n| second |\n| --- |\n| 2 |\n")
    (tmp_path / "docs" / "page.md").write_text(
        '# Page\n\n<!-- table: a.csv by=kind across=way show="x: x: ±.1f" -->\n<!-- end -->\n\n'
        "Between.\n\n<!-- table: b.md number=2 -->\nstale\n<!-- end -->\n"
    )
    return tmp_path


def test_tables_are_filled_once(root):
    page = root / "docs" / "page.md"
    assert pages(root, check=False) == [page]
    text = page.read_text()
    assert "| kind | one | two |\n| --- | --: | --: |\n" in text
    assert "| k | 2.0 ± 1.4 | 5.0 |\n| l | 7.0 | – |\n" in text  # 1 and 3: deviation √2
    assert "-->\n\n| second |\n| --- |\n| 2 |\n\n<!-- end -->" in text
    assert "stale" not in text
    assert "Between." in text
    assert pages(root, check=True) == []


def test_a_stale_page_is_named(root):
    with pytest.raises(SpcacwError, match=r"^Tables of docs/page.md are not those of the comm"):
        pages(root, check=True)
    pages(root, check=False)
    (root / "a.csv").write_text("kind,way,x\nk,one,1\n")
    with pytest.raises(SpcacwError, match=r"docs/page\.md"):
        pages(root, check=True)


@pytest.mark.parametrize(
    "marker", ["gone.csv show=x", "a.csv show=y", "a.csv colour=red", "b.md number=3"]
)
def test_a_table_that_cannot_be_made_is_named(root, marker):
    (root / "docs" / "page.md").write_text(f"<!-- table: {marker} -->\n<!-- end -->\n")
    with pytest.raises(SpcacwError, match=re.escape(f"page.md: no table of {marker}: ")):
        pages(root, check=True)


def test_a_table_without_an_end_swallows_nothing(root):
    page = root / "docs" / "page.md"
    text = page.read_text().replace("<!-- end -->", "", 1)
    page.write_text(text)
    with pytest.raises(SpcacwError, match=r"page\.md: a table has no <!-- end -->"):
        pages(root, check=False)
    assert page.read_text() == text


def test_lines_are_chosen_and_titled(tmp_path):
    csv = tmp_path / "a.csv"
    csv.write_text("kind,x\nk,1000\nl,2\nm,3\n")
    made = from_csv(csv, where="kind=k|m", show="kind: which; x: how many: ,")
    assert made.splitlines()[0] == "| which | how many |"
    assert made.splitlines()[2:] == ["| k | 1,000 |", "| m | 3 |"]
