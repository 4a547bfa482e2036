"""Which plays silos share, and the table of weights beside it."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd

from spcacw_flwr.config.config import Config
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.experiments import roles
from spcacw_flwr.partitions.plays import Role
from tests.conftest import data_at


def test_the_share_of_a_silos_letters_in_plays_of_another():
    """Silo 0: Hamlet 30, Lear 10; silo 1: Hamlet 5; silo 2: Othello 8."""
    said = [("Hamlet", 30), ("Lear", 10), ("Hamlet", 5), ("Othello", 8)]
    every = [Role(play, "x", "a" * letters) for play, letters in said]
    setting = SimpleNamespace(roles=every, num_silos=3, roles_of_silos=[[0, 1], [2], [3]])
    expected = [[1, 1, 0], [0.75, 1, 0], [0, 0, 1]]
    np.testing.assert_allclose(roles.shared(setting), expected)


def test_a_line_for_each_target_and_peer(tmp_path):
    shakespeare = data_at("shakespeare")
    keys = {"setting": "shakespeare", "silos": 3, "width": 0.05, "epochs": 1,
            "samples_per_silo": 64, "test_samples": 20, "compare_alone": False, "update_every": 1,
            "shakespeare": {"roles-per-silo": 2, "role-characters": 20_000},
            "data_dir": shakespeare}  # fmt: skip
    for target, method in ((2, "spcacw-plus"), (0, "spcacw-plus"), (0, "local")):
        output = str(tmp_path / "runs" / f"{target}-{method}")
        simulate(Config.from_keys(target=target, method=method, output=output, **keys))
    table = tmp_path / "roles.csv"
    roles.main(tmp_path / "runs", table, Path(shakespeare))
    lines = pd.read_csv(table)
    found = list(zip(lines["target"], lines["silo"], strict=True))
    assert found == [(0, 1), (0, 2), (2, 0), (2, 1)]
    assert lines[["alpha", "shared"]].min().min() >= 0
    assert lines[["alpha", "shared"]].max().max() <= 1
