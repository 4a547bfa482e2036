"""The pictures of each setting are drawn, and the saved allocation is the setting's own."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import typer
from PIL import Image

from spcacw_flwr.experiments import pictures
from spcacw_flwr.silos.setting import Setting, SiloData
from tests.conftest import one_sentence, ran

APP = typer.Typer()
"""``python -m spcacw_flwr.experiments.pictures``."""
APP.command()(pictures.main)


def names_in(directory):
    return sorted(path.name for path in directory.iterdir())


def test_digits(tmp_path):
    ran("--setting", "digits-relabel", "--output", tmp_path / "new", of=APP)
    expected = ["digits-relabel-samples.png", "digits-relabel-silos.png"]
    assert names_in(tmp_path / "new") == expected
    for name in expected:
        with Image.open(tmp_path / "new" / name) as picture:
            assert len(np.unique(np.asarray(picture.convert("RGB")).reshape(-1, 3), axis=0)) > 10
        assert (tmp_path / "new" / name).stat().st_size < 150_000


def test_a_place_where_no_picture_can_be_is_one_sentence(tmp_path):
    (file := tmp_path / "file").write_text("")
    said = ran("--setting", "digits-relabel", "--output", file, code=1, of=APP)
    assert "spcacw: A file could not be used: " in said


def test_latent_clusters_save_their_matrix(tmp_path, make, cifar_dir):
    keys = {"cifar100-clusters.epsilon": 0.01}
    written = pictures.draw_setting("cifar100-clusters", cifar_dir, tmp_path, keys)
    stem = "cifar100-clusters-"
    kinds = ["allocation.csv", "allocation.png", "samples.png", "silos.png"]
    assert names_in(tmp_path) == [stem + kind for kind in kinds] == [path.name for path in written]
    with (tmp_path / f"{stem}allocation.csv").open() as file:
        header = file.readline().strip().split(",")
        saved = np.loadtxt(file, delimiter=",")
    assert header[:4] == ["silo", "cluster", "apple", "aquarium_fish"]
    assert saved[:, 1].tolist() == [i // 5 for i in range(20)]
    x = make("cifar100-clusters", epsilon=0.01).allocation
    np.testing.assert_allclose(saved[:, 2:], x, rtol=1e-9)


def test_shakespeare(tmp_path, plays_dir):
    pictures.draw_setting("shakespeare", plays_dir, tmp_path, {"silos": 3})
    assert names_in(tmp_path) == ["shakespeare-samples.png", "shakespeare-silos.png"]


def test_89_silos(tmp_path, mnist):
    pictures.draw_setting("mnist-rotate", mnist, tmp_path, {})
    with Image.open(tmp_path / "mnist-rotate-silos.png") as picture:
        assert picture.size[1] <= 1100


def test_data_of_ones_own_that_are_no_pictures(tmp_path):
    keys = {"silo": "examples.own_data:load", "silos": 4, "classes": 2}
    pictures.draw_setting("own", "", tmp_path, keys)
    assert names_in(tmp_path) == ["own-silos.png"]


class Strange(Setting):
    """A setting of one's own; ``train`` and ``num_classes`` are what a test gives."""

    name = "strange"
    num_silos, num_classes, group_kind, groups, input_shape = 2, 3, "none", [None] * 2, (3,)

    def train(self, silo):
        return self.given(silo)

    test = train

    def prepare(self):
        """Nothing to do."""


@pytest.mark.parametrize(
    ("given", "classes", "words"),
    [
        (lambda silo: {}["rows"], 3, "train(0) of the setting raises KeyError: 'rows'"),
        (lambda silo: [1], 3, "train(0) of the setting gives a list"),
        (lambda silo: SiloData(torch.ones(2, 3), torch.ones(2)), 1, "its labels are no classes"),
        (lambda silo: SiloData(torch.ones(2, 3), torch.ones(2)), "2", "needs input_shape"),
    ],
)
def test_a_setting_of_ones_own_that_cannot_be_drawn(given, classes, words, tmp_path, monkeypatch):
    monkeypatch.setattr(Strange, "given", staticmethod(given), raising=False)
    monkeypatch.setattr(Strange, "num_classes", classes)
    with one_sentence(words):
        pictures.draw_setting(f"{__name__}:Strange", "", tmp_path, {})


def test_classes_that_only_the_data_tell_are_drawn(tmp_path, monkeypatch):
    given = lambda silo: SiloData(torch.ones(silo + 1, 3), torch.arange(silo + 1))  # noqa: E731
    monkeypatch.setattr(Strange, "given", staticmethod(given), raising=False)
    monkeypatch.setattr(Strange, "num_classes", 0)
    (picture,) = pictures.draw_setting(f"{__name__}:Strange", "", tmp_path, {})
    assert picture.name.endswith("Strange-silos.png")


def test_missing_data_end_in_one_sentence_or_are_passed_over(tmp_path, offline):
    where = ["--data-dir", tmp_path / "none", "--output", tmp_path / "out"]
    one = ran("--setting", "shakespeare", *where, code=1, of=APP)
    assert "shakespeare: Shakespeare is not in" in one
    assert ran("--setting", "all", *where, of=APP).count("data-dir") == 6
    assert len(names_in(tmp_path / "out")) == 2


@pytest.mark.parametrize(("groups", "edges"), [([0, 0, 1, 2, 2], [2, 3]), ([0], []), ([], [])])
def test_lines_separate_clusters(groups, edges):
    setting = SimpleNamespace(group_kind="cluster", groups=groups)
    assert pictures._edges(setting) == edges


def test_text_with_a_dollar_is_no_mathematics(tmp_path):
    pictures.texts(tmp_path / "a.png", "title", ["$x"], ["$y$ _^"])
    assert (tmp_path / "a.png").is_file()
