"""The configuration: one truth for defaults, and one sentence for every bad value."""

import tomllib
from functools import partial
from pathlib import Path

import pytest

from spcacw_flwr.config.config import AUTO, Config, fields, flattened
from spcacw_flwr.config.declare import import_by_path
from spcacw_flwr.config.registry import SETTINGS, method_class, setting_class
from spcacw_flwr.silos.models import make_loss, make_model
from spcacw_flwr.silos.setup import checked_setting
from tests.conftest import one_sentence

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def manifest_keys():
    return flattened(tomllib.loads(PYPROJECT.read_text())["tool"]["flwr"]["app"]["config"])


def test_pyproject_lists_every_key_with_its_default():
    keys = manifest_keys()
    assert list(keys) == list(fields())
    for name, (_, field) in fields().items():
        if keys[name] != AUTO:
            assert keys[name] == field.default
            assert type(keys[name]) is type(field.default)
    assert Config.from_flat(keys) == Config.from_flat({})


@pytest.mark.parametrize("setting", list(SETTINGS))
def test_a_key_that_a_setting_decides_is_auto_in_pyproject(setting):
    auto = {name.replace("-", "_") for name, value in manifest_keys().items() if value == AUTO}
    assert set(setting_class(setting).defaults) <= auto
    config = Config.from_flat(manifest_keys() | {"setting": setting})
    flat = config.to_flat()
    for name, value in setting_class(setting).defaults.items():
        assert flat[name.replace("_", "-")] == value


MNIST = {"eta": 0.01, "momentum": 0.9, "weight_decay": 5e-4, "max_norm": 1.0, "batch_size": 32}
PAPER = {
    "mnist-relabel": MNIST,
    "mnist-rotate": MNIST,
    "cifar100-clusters": MNIST | {"eta": 0.1, "max_norm": 5.0},
    "shakespeare": MNIST | {"weight_decay": 1e-4},
}
"""What appendix "Network Architectures and Hyperparameter" prints, written down from there."""


@pytest.mark.parametrize("setting", PAPER)
def test_a_setting_trains_with_the_papers_printed_numbers(setting):
    config = Config.from_keys(setting=setting)
    found = {name: getattr(config.training, name) for name in PAPER[setting]}
    assert found == PAPER[setting]
    epochs = 50 if setting.startswith("mnist") else 100
    assert config.run.epochs == epochs
    if setting == "shakespeare":
        assert config.partition.own.window == 50


def test_a_whole_number_may_stand_for_a_text():
    """As ``--set privacy-silos=1`` or ``--set input-shape=30`` on the command line."""
    config = Config.from_flat({"privacy-silos": 1, "input-shape": 30})
    assert (config.privacy.privacy_silos, config.partition.input_shape) == ("1", "30")


@pytest.mark.parametrize(
    ("flat", "words"),
    [
        ({"beta": 0.0}, ["beta = 0.0", "(0, 1]"]),
        ({"beta": "x"}, ["beta = 'x'", "a number"]),
        ({"eta": -0.1}, ["eta = -0.1", "(0, ∞)"]),
        ({"eta": float("nan")}, ["eta = nan"]),
        ({"participation": 0.0}, ["participation = 0.0", "(0, 1]"]),
        ({"participation": 2}, ["participation = 2.0", "(0, 1]"]),
        ({"seed": 1.5}, ["seed = 1.5", "a whole number"]),
        ({"seed": True}, ["seed = True", "a whole number"]),
        ({"tensorboard": 1}, ["tensorboard = 1", "true or false"]),
        ({"solver": "sgd"}, ["solver = 'sgd'", "one of ftl, ftal"]),
        ({"nodes": 8}, ["nodes = 8", "7 silos"]),
        ({"holdout": 1.0}, ["holdout = 1.0", "a number in [0, 1)"]),
        ({"holdout": -0.1}, ["holdout = -0.1", "a number in [0, 1)"]),
        ({"holdout": 0.2, "target": 9}, ["target = 9 is not a silo"]),
    ],
)
def test_a_bad_value_is_one_sentence_with_key_and_allowed_values(flat, words):
    with one_sentence(*words):
        checked_setting(Config.from_flat(flat))


@pytest.mark.parametrize(("body", "words"), [
    ("import os\nos.environ['HOSPITAL_DATA']", "(KeyError: 'HOSPITAL_DATA', broken.py line 2)"),
    ("import json\njson.loads('')", "Expecting value: line 1 column 1 (char 0), broken.py line 2)"),
    ("import no_such_library", "No module named 'no_such_library', broken.py line 1)"),
    ("def load(silo) return 1", "(SyntaxError: expected ':' (broken.py, line 1))"),
    ("raise ValueError", "(ValueError, broken.py line 1)"),
])  # fmt: skip
def test_a_module_that_fails_while_it_is_imported_is_one_sentence(
    body, words, tmp_path, monkeypatch
):
    (tmp_path / "broken.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    for find in (method_class, setting_class, make_loss, partial(import_by_path, what="silo"),
                 lambda path: make_model((2,), 2, 4, 0, path)):  # fmt: skip
        with one_sentence("'broken:load' fails while it is imported", words):
            find("broken:load")
