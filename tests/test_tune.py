"""Tuning: one budget for all, trials on held-out training data, a choice that can be read back."""

from __future__ import annotations

import json
import math
import tomllib

import pandas as pd
import pytest

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.registry import METHODS
from spcacw_flwr.experiments import tune
from spcacw_flwr.experiments.conf import tuned_keys
from spcacw_flwr.experiments.results import read_csv
from spcacw_flwr.experiments.runs import FAILED, Run
from spcacw_flwr.silos.setup import setting_of

BUDGET = 6
DIGITS = {"setting": "digits-relabel"}


def jobs_of(method, *candidates, epochs=1):
    """The runs of some candidates of a method on digits."""
    grid = {method: list(candidates)}
    return list(tune.trials("digits-relabel", [method], 1, epochs, grid, DIGITS))


@pytest.mark.parametrize("method", [*METHODS, "spcacw-corrected", "spcacw-every-round"])
def test_every_method_has_the_same_number_of_candidates(method):
    candidates = tune.grids()[method]
    assert len(candidates) == BUDGET
    configs = [job.config() for job in jobs_of(method, *candidates)]
    assert len({repr(config) for config in configs}) == BUDGET


@pytest.mark.slow
def test_a_tuning_writes_trials_and_choices_and_goes_on_where_it_stopped(tmp_path, monkeypatch):
    small = {"local": tune.grids()["local"][:2], "fedavg": tune.grids()["fedavg"][:1]}
    monkeypatch.setattr(tune, "grids", lambda *_: small)
    choice = tune.tune("digits-relabel", ["local"], 1, 1, "", tmp_path, workers=1)
    rows = read_csv(tmp_path / "digits-relabel.csv")
    assert len(rows) == 2
    scores = [float(row["held_out_accuracy"]) for row in rows]
    assert choice == {"local": small["local"][scores.index(max(scores))]}
    again = tune.tune("digits-relabel", ["local", "fedavg"], 1, 1, "", tmp_path, workers=1)
    assert (tmp_path / "digits-relabel.csv").read_text().count("\n") == 4  # a heading, three trials
    assert tomllib.loads((tmp_path / "digits-relabel.toml").read_text()) == again
    assert again == choice | {"fedavg": small["fedavg"][0]}


def test_a_column_has_its_own_keys_and_steps_around_its_own(tmp_path, monkeypatch):
    column = tmp_path / "mine.toml"
    column.write_text('setting = "digits-relabel"\neta = 0.5\nsamples-per-silo = 60\n')
    seen, trials = [], tune.trials
    monkeypatch.setattr(tune, "trials", lambda *of: seen.extend(trials(*of)) or seen)
    choice = tune.tune(str(column), ["local"], 1, 1, "", tmp_path / "out")
    seen = [job.config() for job in seen]
    assert [config.training.eta for config in seen] == [0.125, 0.25, 0.5, 1.0, 2.0, 4.0]
    assert {config.partition.samples_per_silo for config in seen} == {60}
    assert {config.run.setting for config in seen} == {"digits-relabel"}
    assert tomllib.loads((tmp_path / "out" / "mine.toml").read_text()) == choice
    assert tuned_keys("mine", "row", "local", tmp_path / "out") == choice["local"]


def test_a_trial_sees_no_test_data():
    (job,) = jobs_of("local", {})
    setting = setting_of(job.config())
    plain = setting_of(Config.from_keys())
    kept, held, whole = setting.train(0), setting.test(0), plain.train(0)
    assert (len(kept.y), len(held.y)) == (160, 40)
    rows = {tuple(row.flatten().tolist()) for row in whole.x}
    assert {tuple(row.flatten().tolist()) for row in held.x} <= rows


def test_a_candidate_that_fails_is_never_chosen(tmp_path, monkeypatch, capsys):
    small = {"local": [{"eta": -1.0}, {"eta": 0.1}]}
    monkeypatch.setattr(tune, "grids", lambda *_: small)
    assert tune.tune("digits-relabel", ["local"], 1, 1, "", tmp_path) == {"local": {"eta": 0.1}}
    assert "eta = -1.0 is not allowed" in capsys.readouterr().out
    scores = [row["held_out_accuracy"] for row in read_csv(tmp_path / "digits-relabel.csv")]
    assert scores[0] == "nan"
    assert float(scores[1]) > 0


def test_a_candidate_whose_process_was_killed_is_tried_again(tmp_path):
    (job,) = jobs_of("local", {})
    assert math.isnan(tune.score(job, Run([job], tmp_path, FAILED))["held_out_accuracy"])
    assert tune.score(job, Run([job], tmp_path, FAILED, killed=True)) is None


def test_without_data_there_is_one_sentence(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError("offline")

    monkeypatch.setattr("torchvision.datasets.MNIST", fail)
    monkeypatch.setattr("datasets.load_dataset", fail)
    with pytest.raises(SpcacwError, match="data-dir"):
        tune.tune("mnist-rotate", ["local"], 1, 1, str(tmp_path / "none"), tmp_path)


def trials(*of) -> pd.DataFrame:
    lines = [(method, json.dumps({"eta": eta}), *rest) for method, eta, *rest in of]
    return pd.DataFrame(lines, columns=["method", "keys", "epochs", "held_out_accuracy"])


def test_seeds_are_averaged_and_only_the_longest_trials_count():
    table = trials(
        ("local", 0.1, 50, 90.0), ("local", 0.1, 50, 92.0),
        ("local", 0.2, 50, 95.0), ("local", 0.2, 50, 86.0),
        ("local", 0.4, 15, 99.0),
        ("fedavg", 0.4, 15, 70.0), ("fedavg", 0.2, 15, 60.0),
    )  # fmt: skip
    assert tune.best(table, tune.grids()) == {"local": {"eta": 0.1}, "fedavg": {"eta": 0.4}}


def test_a_row_of_the_table_is_tuned_with_its_own_keys():
    config = jobs_of("spcacw-corrected", {"eta": 0.05})[0].config()
    assert (config.run.method, config.spcacw.bias_correction) == ("spcacw", True)
    assert config.training.eta == 0.05


def test_a_method_without_a_grid_is_one_sentence(tmp_path):
    with pytest.raises(SpcacwError, match=r"no grid for method 'locl' .did you mean local"):
        tune.tune("digits-relabel", ["locl"], 1, 1, "", tmp_path)
