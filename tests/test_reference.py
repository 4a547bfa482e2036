"""The study of the reference: its lines, that it goes on where it stopped, and its Markdown."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import torch

from spcacw_flwr.config.config import Config
from spcacw_flwr.engine.loop import play
from spcacw_flwr.experiments import reference
from spcacw_flwr.experiments.reference import COLUMNS, RULES, Study, jobs, measure, render, run
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.protocol import Federation
from spcacw_flwr.silos.setup import setting_of

ROOT = Path(__file__).parents[1]
SMALL = {"epochs": 2, "data_dir": ""}


def test_a_study_is_a_line_a_run_and_goes_on_where_it_stopped(tmp_path, monkeypatch):
    study, path = Study("digits-relabel", (50,)), tmp_path / "reference.csv"
    rules = ["spcacw", "cross-fit 2", "fresh", "local"]
    table = run(path, jobs([study], rules, [0]), SMALL)
    assert list(table.columns) == list(COLUMNS)
    assert list(table.rule) == rules
    weights = table.set_index("rule")[["alpha_target", "alpha_cluster", "alpha_wrong"]]
    assert (weights.sum(axis=1) - 1).abs().max() < 1e-3
    assert weights.alpha_target["local"] == 1
    floats = table.set_index("rule").floats
    assert floats["cross-fit 2"] == 3 * floats["spcacw"]
    assert floats["fresh"] == floats["spcacw"]
    ran = []
    monkeypatch.setattr(reference, "measure", lambda keys: ran.append(keys) or measure(keys))
    again = run(path, jobs([study], rules, [0, 1]), SMALL)
    assert [keys["seed"] for keys in ran] == [1] * 4
    assert len(again) == 8


def test_every_rule_is_a_run_of_its_own():
    keys = {"setting": "digits-relabel", "eta": 0.05, "seed": 0, "samples_per_silo": 50, **SMALL}
    alphas = {rule: measure(keys | {"epochs": 6} | RULES[rule])["alpha_target"] for rule in RULES}
    assert len(set(alphas.values())) == len(RULES)


def test_biases_are_folded_once_and_relative_to_the_test_data_at_the_model_that_was_asked():
    config = Config.from_keys(samples_per_silo=50, smoothness=1.0, beta=0.5, update_every=9)
    pool = SiloPool(config, setting_of(config), range(7))
    federation = Federation(tuple(pool.describe()), 0, 32)
    start = pool.initial_parameters()
    method = reference.FreshReference(config, federation, start)
    play(pool, method, 1)
    gradients = pool.gradients(start, 1, range(7)).rows
    fresh = method.unseen.gradients(start, 1, [0]).rows[0]
    expected = 0.5 * (gradients - fresh)
    torch.testing.assert_close(method.bias.estimate, expected)


def test_render_pairs_the_seeds():
    lines = [
        ["s", 0, 0.05, rule, seed, last, last + 1, 0.5, 0.25, 0.25, 1, 2.0]
        for rule, lasts in (("local", (82.0, 84.0)), ("spcacw", (80.0, 81.0, 99.0)))
        for seed, last in enumerate(lasts)
    ]
    text = render(pd.DataFrame(lines, columns=list(COLUMNS)))
    assert "| local | 2 | 83.00 ± 1.41 | +2.50 ± 0.50 | 84.00 | 0.50 | 0.25 | 0.25 | 2 |" in text
    assert "`s`, its own number of images, η = 0.05" in text


def test_the_committed_markdown_is_the_committed_table():
    path = ROOT / "experiments" / "results" / "reference.csv"
    assert path.with_suffix(".md").read_text() == render(pd.read_csv(path)) + "\n"
