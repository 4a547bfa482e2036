"""The configuration of Table 1 is complete, valid, and says what the paper says."""

import tomllib
from pathlib import Path

import pytest
import torch

from spcacw_flwr.config.config import flattened
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.experiments import conf, readings
from spcacw_flwr.experiments.runs import fingerprint
from spcacw_flwr.silos.models import make_model

ROOT = Path(__file__).parents[2]
APP = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
COLUMNS = conf.columns()
NARROW = sorted((conf.CONF / "narrow").glob("*.toml"))


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)
@pytest.mark.parametrize("tuned", [False, True])
def test_every_cell_is_a_valid_run(column, tuned):
    rows = [row for row in conf.rows() if not tuned or row.name != "spcacw-closed-form"]
    if tuned and not column.name.startswith("mnist"):
        pytest.skip("nothing was tuned for it")
    jobs = conf.make_jobs([column], rows, [3], {}, tuned=tuned)
    assert len({fingerprint(job.config()) for job in jobs}) == len(jobs)
    assert {job.row for job in jobs} == {r.name for r in rows if column.name not in r.without}
    assert {job.seed for job in jobs} == {3}
    assert set(column.keys) <= set(flattened(APP))  # which `flwr run` takes, too


def test_the_papers_table():
    names = [row.name for row in conf.rows()]
    assert names[:8] == ["spcacw", "spcacw-reg", "feddisco", "ditto", "fedamp", "fedcluster",
                         "local", "oracle"]  # fmt: skip
    for column in COLUMNS:
        without = "shakespeare" in column.name or column.name == "mnist-rotate"
        assert set(column.paper) == set(names[: 7 if without else 8])
    assert COLUMNS[0].paper["feddisco"] == (54.03, 0.52)
    assert COLUMNS[5].paper["spcacw"] == (94.85, 0.47)
    assert sum(x[0] for c in COLUMNS for x in c.paper.values()) == pytest.approx(2579.26)


def test_the_last_one_to_say_a_key_wins():
    column = conf.Column("mnist-relabel", "", {"setting": "mnist-relabel", "eta": 0.5}, {})
    row = conf.Row("local", "Local", {"method": "local"})
    choice = conf.tuned_keys("mnist-relabel", "local", "local")["eta"]
    assert choice != 0.5
    for more, tuned, eta in (({}, False, 0.5), ({}, True, choice), ({"eta": 0.7}, True, 0.7)):
        (job,) = conf.make_jobs([column], [row], [0], more, tuned=tuned)
        assert job.config().training.eta == eta


def test_a_row_has_its_own_choice_before_that_of_its_method(tmp_path):
    (tmp_path / "c.toml").write_text("[spcacw]\neta = 0.1\n[spcacw-own]\neta = 0.2\n")
    choices = [conf.tuned_keys("c", row, "spcacw", tmp_path) for row in ("spcacw-own", "x")]
    assert choices == [{"eta": 0.2}, {"eta": 0.1}]
    for column, row in (("c", "local"), ("another", "spcacw")):
        with pytest.raises(SpcacwError, match=rf"{column}\.toml has no keys .* tuned for {row}:"):
            conf.tuned_keys(column, row, row, tmp_path)


def test_columns_that_one_asks_for(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('setting = "digits-relabel"\n[ditto]\nlambda = 0.1\n')
    found = conf.columns(["mnist-rotate", "digits-relabel", str(path)])
    assert [column.name for column in found] == ["mnist-rotate", "digits-relabel", "mine"]
    assert found[2].keys["ditto.lambda"] == 0.1
    assert "digits-relabel" not in {column.name for column in COLUMNS}


@pytest.mark.parametrize(
    ("find", "name", "sentence"),
    [
        (conf.columns, "mnist-relable", "no column 'mnist-relable' .did you mean mnist-relabel"),
        (conf.columns, "mine.toml", r"mine.toml cannot be read"),
    ],
)
def test_unknown_names_are_one_sentence(find, name, sentence):
    with pytest.raises(SpcacwError, match=sentence):
        find([name])


def test_every_variant_is_another_run_of_a_reading_we_list():
    listed = (ROOT / "docs" / "readings.md").read_text()
    columns = COLUMNS + conf.columns([str(path) for path in NARROW])
    jobs, numbers = readings.variant_jobs(columns, conf.rows(["spcacw"]), [0], {})
    base = {job.column: fingerprint(job.config()) for job in jobs if job.note == readings.AS_IS}
    for job in jobs:
        if job.note != readings.AS_IS:
            assert fingerprint(job.config()) != base[job.column], job.note
            assert f"| {numbers[job.note]} |" in listed
    assert {job.note for job in jobs} == set(numbers)


def test_calibration_tries_every_combination_by_local_alone():
    of = conf.columns(["mnist-rotate"])
    jobs = readings.calibration_jobs(of, conf.rows(["local"])[0], range(2), {})
    assert len(jobs) == 2 * 4 * 2
    assert {job.config().run.method for job in jobs} == {"local"}


def test_rows_are_in_the_order_in_which_they_are_named_and_may_be_ones_own():
    names = ["spcacw-plus", "mine:Tilted", "spcacw", "local"]
    found = conf.rows([*names, "spcacw"])
    assert [row.name for row in found] == names
    assert (found[1].title, found[1].keys) == ("Tilted", {"method": "mine:Tilted"})


#: What makes a column small, and what its larger step asks of a method.
SHORT = {"epochs", "eta", "precision"}
NARROWER = {"epochs", "eta", "model", "width", "samples-per-silo", "test-samples", "fedamp.lambda",
            "shakespeare.window-stride"}  # fmt: skip
FORMS = {"short": SHORT, "quarter": SHORT | {"model", "test-samples"}, "narrow": NARROWER}
SHAPES = {"cifar100-clusters": ((3, 32, 32), 100), "shakespeare": ((50,), 80)}


@pytest.mark.parametrize("path", NARROW, ids=lambda path: path.stem)
def test_a_columns_small_form_is_the_large_one_in_all_else(path):
    (column,), (name, form) = conf.columns([str(path)]), path.stem.rsplit("-", 1)
    (full,) = conf.columns([name])
    changed = {key for key, value in column.keys.items() if full.keys.get(key) != value}
    assert changed <= FORMS[form]
    if form != "narrow":
        return
    (row,) = conf.rows(["local"])
    (job,) = conf.make_jobs([column], [row], [0], {})
    training = job.config().training
    shape, classes = SHAPES[column.keys["setting"]]
    model = make_model(shape, classes, training.hidden, 0, training.model, training.width)
    assert sum(part.numel() for part in model.parameters()) < 150_000
    if len(shape) == 3:
        assert model(torch.zeros(2, *shape)).shape == (2, classes)


def test_there_is_one_of_each_large_column():
    names = {path.stem[:-7] for path in NARROW if path.stem.endswith("-narrow")}
    assert names == {c.name for c in conf.columns() if not c.name.startswith("mnist")}
