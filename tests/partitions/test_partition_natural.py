"""Real federations: who holds what, split by the seed, and a target that owns little."""

import csv
import shutil
import threading
from dataclasses import replace
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.keys import PartitionKeys
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.partitions import data, natural
from spcacw_flwr.partitions.natural import (
    NaturalKeys,
    NaturalSilos,
    patients,
    standardised,
    stratified,
)
from spcacw_flwr.report.page import write_report
from spcacw_flwr.report.terminal import print_report
from spcacw_flwr.silos.models import make_model
from spcacw_flwr.silos.setup import checked_setting
from tests.conftest import one_sentence
from tests.test_end_to_end import metrics, spcacw

BOTH = pytest.mark.parametrize("name", ["heart", "landmine"])


class Numbered(NaturalSilos):
    """Three silos of 30 rows, whose feature is the row's number; one row in five is labelled 1."""

    name = "numbered"
    names = ("a", "b", "c")
    input_shape = (1,)

    def rows(self, silo):
        number = np.arange(30)
        return number[:, None].astype(float), (number % 5 == 0).astype(int)


def numbered(seed=0, target=0, target_samples=0, **keys):
    own = NaturalKeys(target_samples)
    setting = Numbered(PartitionKeys(**{"samples_per_silo": 0, **keys}, own=own), seed)
    setting.target = target
    return setting


def numbers(setting, silo):
    """The numbers of a silo's training and test rows, which standardising keeps in their order."""
    train, test = setting.train(silo), setting.test(silo)
    place = torch.cat((train.x, test.x)).flatten().argsort().argsort()
    assert torch.equal(torch.cat((train.y, test.y)), (place % 5 == 0).long())
    return place[: len(train.y)].tolist(), place[len(train.y) :].tolist()


def test_the_rows_are_those_that_the_literature_counts(make):
    """FLamby: 303, 261, 46 and 130 patients. Landmine: 445 to 690 echoes, 14,820 in all."""
    found = make("heart")
    labels = [found.rows(silo)[1] for silo in range(4)]
    assert [len(y) for y in labels] == [303, 261, 46, 130]
    assert [int(y.sum()) for y in labels] == [139, 98, 45, 101]
    assert {found.rows(silo)[0].shape[1] for silo in range(4)} == {13}
    assert found.names == ("Cleveland", "Hungary", "Switzerland", "VA Long Beach")
    found = make("landmine")
    labels = [found.rows(silo)[1] for silo in range(found.num_silos)]
    assert (len(labels), sum(map(len, labels))) == (29, 14_820)
    assert (min(map(len, labels)), max(map(len, labels))) == (445, 690)
    assert sum(map(sum, labels)) / 14_820 == pytest.approx(0.06, abs=0.005)
    assert (found.names[0], found.names[28]) == ("field-1", "field-29")
    assert found.oracle(0) == list(range(15))
    assert found.oracle(28) == list(range(15, 29))


def test_a_patient_by_hand():
    """63, male, cp 4, 150 mmHg, 223, …, restecg 2; columns 11 to 13 may lack, no other."""
    table = (
        "63.0,1.0,4.0,150.0,223.0,1.0,2.0,115.0,0.0,0.5,?,?,?,3\n"
        "54.0,0.0,1.0,130.0,240.0,0.0,0.0,160.0,1.0,1.5,2.0,0.0,3.0,0\n"
        "54.0,0.0,1.0,?,240.0,0.0,0.0,160.0,1.0,1.5,2.0,0.0,3.0,0\n"
    )
    x, y = patients(table)
    assert y.tolist() == [1, 0]
    assert x.tolist() == [
        [63, 1, 150, 223, 1, 115, 0, 0.5, 0, 0, 1, 0, 1],
        [54, 0, 130, 240, 0, 160, 1, 1.5, 0, 0, 0, 0, 0],
    ]


def test_training_and_test_rows_are_all_rows_once_as_the_seed_draws():
    for silo in range(3):
        train, test = numbers(numbered(), silo)
        assert len(train) == 20
        assert sorted(train + test) == list(range(30))
    assert numbers(numbered(), 1) == numbers(numbered(), 1) != numbers(numbered(), 0)
    assert numbers(numbered(), 1) != numbers(numbered(seed=1), 1)


@BOTH
def test_labels_are_split_in_proportion(make, name):
    setting = make(name)
    for silo in (0, 1):
        shares = [part(silo).y.double().mean().item() for part in (setting.train, setting.test)]
        assert shares[0] == pytest.approx(shares[1], abs=0.015)


def test_every_beginning_of_an_order_has_its_share_of_each_label():
    labels = np.array([0] * 90 + [1] * 10)
    order = stratified(labels, np.random.default_rng(0))
    assert sorted(order) == list(range(100))
    for count in range(2, 100):
        mines = int(labels[order[:count]].sum())
        assert mines >= 1
        assert abs(mines - count / 10) <= 1
    again = stratified(labels, np.random.default_rng(1))
    assert not np.array_equal(order, again)
    assert 2 in stratified(np.array([1, 1, 0, 1, 1]), np.random.default_rng(0))[:2]


def test_features_are_standardised_by_the_training_rows_and_constants_only_moved():
    x = np.array([[1.0, 7.0, 0.1], [3.0, 7.0, 0.1], [9.0, 8.0, 0.1]])
    found = standardised(x, np.array([0, 1]))
    np.testing.assert_allclose(found, [[-1, 0, 0], [1, 0, 0], [7, 1, 0]], atol=1e-12)


def test_every_silo_is_standardised_by_its_own_training_rows(make):
    for setting in (make("heart"), make("heart", target=3, target_samples=20)):
        for silo in range(4):
            x = setting.train(silo).x.double()
            torch.testing.assert_close(x.mean(0), torch.zeros(13).double(), atol=1e-6, rtol=0)
            spread = x.std(0, correction=0)
            assert torch.all((spread - 1).abs().lt(1e-6) | spread.lt(1e-6))
            assert torch.isfinite(setting.test(silo).x).all()
    assert make("heart").train(2).x[:, 3].abs().max() == 0  # Swiss cholesterol is 0 everywhere


def test_the_target_alone_owns_few_and_is_tested_on_all_its_others():
    every, six, twelve = (numbers(numbered(2, 1, count), 1) for count in (0, 6, 12))
    assert [len(part) for part in (*six, *twelve)] == [6, 24, 12, 18]
    # Those of few are among those of more: curves over them compare like with like.
    assert six[0] == twelve[0][:6] == every[0][:6]
    for silo in (0, 2):
        assert numbers(numbered(2, 1, 6), silo) == numbers(numbered(2), silo)


def test_a_target_of_few_patients_has_both_labels(make):
    for seed in range(5):
        setting = make("heart", seed=seed, target=3, target_samples=20)
        assert 0 < setting.train(3).y.sum() < 20
        assert len(setting.test(3).y) == 110


def test_a_target_reaches_its_setting_in_every_way():
    keys = {"setting": "heart", "target": 1, "heart.target-samples": 30}
    assert checked_setting(Config.from_flat(keys)).target == 1
    held = checked_setting(Config.from_flat(keys | {"holdout": 0.2}))
    assert (held.setting.target, held.names[1]) == (1, "Hungary")


def test_samples_may_be_fewer_everywhere():
    setting = numbered(target=1, target_samples=10, samples_per_silo=8, test_samples=5)
    assert [len(setting.train(silo).y) for silo in range(3)] == [8] * 3
    assert len(setting.test(1).y) == 5


def test_too_many_samples_and_another_number_of_silos_are_one_sentence():
    with one_sentence("numbered.target-samples = 30", "b (silo 1)", "has 30", "at most 29"):
        numbered(target=1, target_samples=30).prepare()
    numbered(target=1, target_samples=29).prepare()
    with one_sentence("silos = 2", "numbered has 3"):
        numbered(silos=2)
    numbered(silos=3)


@pytest.fixture
def server(monkeypatch, tmp_path):
    """A server with the four files, and a home without any."""
    files = tmp_path / "server"
    files.mkdir()
    handler = partial(SimpleHTTPRequestHandler, directory=files)
    with HTTPServer(("127.0.0.1", 0), handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{http.server_port}/"
        monkeypatch.setattr(natural, "HEART", replace(data.HEART, loader=url))
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        yield files
        http.shutdown()


def test_the_hospitals_are_downloaded_once_and_checked(server, tables_dir, tmp_path):
    names = data.HEART.forms[0].digests
    shutil.copytree(Path(tables_dir, "heart"), server, dirs_exist_ok=True)
    store = tmp_path / "home" / ".cache" / "spcacw" / "data"
    setting = checked_setting(Config.from_flat({"setting": "heart", "data-dir": str(tmp_path)}))
    last = server / "processed.va.data"
    good = last.read_bytes()
    last.write_text("<html>moved</html>")
    with one_sentence("processed.va.data is another file", "put processed.cleveland.data", "data-"):
        setting.prepare()
    assert [path.name for path in store.iterdir() if path.is_dir()] == []
    last.write_bytes(good)
    setting.prepare()
    assert {path.name for path in (store / "heart").iterdir()} == set(names)
    last.unlink()
    setting.prepare()


def test_logistic_is_one_linear_layer():
    model = make_model((2, 3), 4, 64, 0, "logistic", 0.5)
    assert [tuple(weight.shape) for weight in model.parameters()] == [(4, 6), (4,)]
    x = torch.rand(5, 2, 3)
    weight, bias = model.parameters()
    torch.testing.assert_close(model(x), x.flatten(1) @ weight.T + bias)


@BOTH
def test_a_run_learns_and_keeps_to_its_kind(tables_dir, name):
    config = Config.from_keys(setting=name, data_dir=tables_dir, epochs=10, compare_alone=False)
    assert (config.training.model, config.training.eta) == ("logistic", 0.05)
    result = simulate(config)
    assert config.run.metric == {"heart": "accuracy", "landmine": "auroc"}[name]
    if name == "heart":
        assert result.accuracy[-1] > 70
    else:  # 6 % are mines: who never finds one is right 94 times in 100
        assert result.epochs[-1]["auroc"] > 0.6
    if name == "landmine":  # weight goes to fields of the target's terrain
        assert result.alpha[:15].sum() > 0.9


def test_a_metric_that_the_target_s_labels_do_not_allow(tables_dir):
    """45 of Switzerland's 46 are ill, and the 15 that test it are."""
    keys = {"setting": "heart", "target": 2, "data_dir": tables_dir, "epochs": 1}
    with one_sentence("metric = 'auroc'", "silo 2 (1 of 2 classes)", "accuracy, balanced"):
        simulate(Config.from_keys(**keys, metric="auroc"))
    (found,) = simulate(Config.from_keys(**keys)).epochs
    assert "accuracy" in found
    assert "auroc" not in found


def test_terminal_and_report_call_silos_by_their_names(tables_dir, tmp_path, capsys):
    keys = {"setting": "heart", "target": 1, "epochs": 2, "data_dir": tables_dir}
    simulate(Config.from_keys(**keys, output=str(tmp_path)))
    print_report(Console(width=120), tmp_path)
    said = capsys.readouterr().out
    assert "heart: silo 1 Hungary by spcacw" in said
    assert "3 VA Long Beach" in said
    assert "true group" not in said  # nobody knows
    page = write_report(tmp_path).read_text()
    assert "Who helped silo 1 Hungary?" in page
    assert '<th scope="row">0 Cleveland</th>' in page


@pytest.mark.slow
def test_ray_trains_as_in_process(tables_dir, tmp_path):
    common = ("run", "--setting", "heart", "--epochs", "3", "--target", "1", "--data-dir",
              tables_dir, "--set", "heart.target-samples=40", "--set", "nodes=1")  # fmt: skip
    found = []
    for engine in ("ray", "in-process"):
        done = spcacw(*common, "--engine", engine, "--output", engine, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        with (tmp_path / engine / "alpha.csv").open() as file:
            last = [*csv.reader(file)][-1]
        accuracy = [line["accuracy"] for line in metrics(tmp_path / engine)]
        found.append([*map(float, last), *accuracy])
    assert found[0] == pytest.approx(found[1], abs=1e-4)
