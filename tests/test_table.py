"""The rendered table says what the CSV says."""

from __future__ import annotations

import pytest
import typer

from spcacw_flwr.experiments.table import main

HEAD = "column,method,seed,epochs,best_accuracy,last_accuracy,target_gradients,floats,seconds\n"


def test_a_table(tmp_path):
    table, page = tmp_path / "t.csv", tmp_path / "t.md"
    rows = [
        "a,ditto,0,2,90.126,89.0,1400,1.5e9,2.04",
        "a,local,0,2,80,79,700,0,1",
        "a,apfl,0,2,85,84,1400,1e9,1",
        "a,x,0,2,70,70,1,2,3",
        "b,local,0,2,50,50,7,0,9",
    ]
    table.write_text(HEAD + "\n".join(rows) + "\n")
    main(table, page)
    text = page.read_text()
    assert "| **ditto** | 90.13 | 89.00 | 1,400 | 1.5e+09 | 2.0 |" in text
    assert "| x | 70.00 |" in text
    assert text.index("### a") < text.index("### b") < text.index("| **local** | 50.00")
    assert f"python -m spcacw_flwr.experiments.table {table} {page}" in text


def test_two_seeds_of_one_method_are_not_mixed(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text(HEAD + "a,ditto,0,2,90,89,1,1,1\na,ditto,1,2,90,89,1,1,1\n")
    with pytest.raises(typer.BadParameter, match="more than one run"):
        main(table, tmp_path / "t.md")
