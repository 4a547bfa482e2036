"""A Hugging Face dataset from a local path, split by stock Partitioners and ours."""

import json
import math

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, Sequence, Value

from spcacw_flwr.config.config import Config
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.silos.setup import setting_of
from tests.conftest import one_sentence, ran

DIRICHLET = {"partitioner": "DirichletPartitioner",
             "arguments": json.dumps({"partition_by": "label", "alpha": 100.0})}  # fmt: skip


def table(count: int = 120) -> dict:
    rng = np.random.default_rng(0)
    kind = np.arange(count) % 3
    return {
        "a": kind * 10 + rng.normal(size=count), "b": rng.normal(size=count),
        "label": np.array(["oak", "ash", "elm"])[kind], "size": rng.normal(size=count),
        "kinds": [[float(k > 0), float(k > 1)] for k in kind],
        "town": ["t0", "t1", "t2", "t3"] * (count // 4), "many": [True, False] * (count // 2),
        "one": [1] * count,
    }  # fmt: skip


@pytest.fixture
def saved(tmp_path):
    """A folder of save_to_disk."""
    Dataset.from_dict(table()).save_to_disk(str(tmp_path / "trees"))
    return tmp_path / "trees"


def keys(path, silos=4, **own):
    own = {"features": "a,b"} | own
    flat = {f"hf.{name.replace('_', '-')}": value for name, value in own.items()}
    return {"setting": "hf", "silos": silos, "hf.dataset": str(path), **flat}


def made(path, silos=4, seed=0, **own):
    return setting_of(Config.from_flat(keys(path, silos, **own) | {"seed": seed}))


def test_a_run_by_keys_alone(saved):
    given = keys(saved, **DIRICHLET) | {
        "epochs": 25,
        "compare-alone": False,
        "engine": "in-process",
    }
    assert simulate(Config.from_flat(given)).accuracy[-1] > 90


def test_silos_share_the_rows_and_each_is_tested_on_its_own(saved):
    setting = made(saved)
    parts = [(setting.train(silo), setting.test(silo)) for silo in range(4)]
    assert setting.num_classes == 3
    assert [(len(train.y), len(test.y)) for train, test in parts] == [(24, 6)] * 4
    train, test = parts[0]
    np.testing.assert_allclose(train.x.mean(0), [0, 0], atol=1e-6)
    np.testing.assert_allclose(train.x.std(0, correction=0), [1, 1], rtol=1e-5)
    assert sorted(test.y.unique().tolist()) == [0, 1, 2]  # each label has its share
    # ash, elm, oak are 0, 1, 2: those of a are about 10, 20 and 0.
    means = [float(train.x[train.y == label, 0].mean()) for label in (2, 0, 1)]
    assert means == sorted(means)
    again, other = made(saved).train(1), made(saved, seed=1).train(1)
    assert torch.equal(again.x, parts[1][0].x)
    assert not torch.equal(other.x, parts[1][0].x)


def test_rows_that_lie_class_by_class_are_shuffled_before_they_are_split(tmp_path):
    """As a FederatedDataset does: Partitioners such as the IidPartitioner cut rows in a row."""
    whole = Dataset.from_dict(table()).sort("label")
    whole.save_to_disk(str(tmp_path / "sorted"))
    before = sorted(tmp_path.rglob("*"))
    setting = made(tmp_path / "sorted", 3)
    assert [len(setting.train(silo).y.unique()) for silo in range(3)] == [3, 3, 3]
    assert sorted(tmp_path.rglob("*")) == before, "nothing is written beside the data"
    again = made(tmp_path / "sorted", 3).train(1)
    assert torch.equal(again.x, setting.train(1).x)


@pytest.mark.parametrize("form", ["csv", "parquet", "dict"])
def test_other_forms_of_a_dataset(form, tmp_path):
    whole = Dataset.from_dict(table())
    path = tmp_path / f"trees.{form}"
    if form == "dict":
        DatasetDict({"train": whole.select(range(30)), "dev": whole}).save_to_disk(str(path))
    else:
        getattr(whole, f"to_{form}")(str(path))
    setting = made(path, split="dev" if form == "dict" else "train")
    assert len(setting.train(0).y) == 24
    assert setting.num_classes == 3


def test_natural_silos_and_our_own_partitioners(saved):
    natural = json.dumps({"partition_by": "town"})
    setting = made(saved, partitioner="NaturalIdPartitioner", arguments=natural)
    assert len(setting.train(3).y) == 24
    assert setting.names == ("t0", "t1", "t2", "t3")
    with one_sentence("NaturalIdPartitioner makes 4 silos of this dataset: set silos=4."):
        made(saved, 5, partitioner="NaturalIdPartitioner", arguments=natural).train(0)
    ours = "spcacw_flwr.partitions.flower:RelabelPartitioner"
    given = json.dumps({"cluster_sizes": [1, 1], "partition_by": "many"})
    assert len(made(saved, 2, label="many", partitioner=ours, arguments=given).train(0).y) == 48


def test_a_report_says_the_natural_ids(saved, tmp_path):
    natural = json.dumps({"partition_by": "town"})
    given = keys(saved, partitioner="NaturalIdPartitioner", arguments=natural)
    simulate(Config.from_flat(given | {"epochs": 1, "output": str(tmp_path / "run")}))
    for name in ("summary", "status"):  # a run that does not end has only a status
        told = json.loads((tmp_path / "run" / f"{name}.json").read_text())
        assert told["names"] == ["t0", "t1", "t2", "t3"]


@pytest.mark.parametrize(
    ("label", "classes", "kind"), [("size", 1, torch.float32), ("many", 2, torch.int64)]
)
def test_labels_are_numbers_or_yes_and_no(saved, label, classes, kind):
    setting = made(saved, label=label)
    assert (setting.num_classes, setting.train(0).y.dtype) == (classes, kind)


@pytest.mark.parametrize("names", [(1, 2, 7), (-1, 0, 1), (0.0, 1.0, 2.0)])
def test_whole_numbers_are_labels_as_they_are(tmp_path, names):
    """A column that once lacked a value has them with a point."""
    rows = table() | {"label": np.array(names)[np.arange(120) % 3]}
    Dataset.from_dict(rows).to_csv(str(tmp_path / "trees.csv"))
    setting = made(tmp_path / "trees.csv")
    train = setting.train(0)
    assert setting.num_classes == 3
    means = [float(train.x[train.y == label, 0].mean()) for label in range(3)]
    assert means == sorted(means)  # those of a are about 0, 10 and 20


def test_a_row_may_have_several_labels(saved):
    setting = made(saved, label="kinds")
    found = setting.train(0).y
    assert (setting.num_classes, found.dtype, found.shape) == (2, torch.float32, (24, 2))
    assert set(map(tuple, found.tolist())) == {(0, 0), (1, 0), (1, 1)}


def test_images_vectors_and_tokens(tmp_path):
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (40, 6, 5, 3), dtype=np.uint8)
    names = ClassLabel(names=["x", "y", "z"])
    features = Features({
        "image": Image(), "label": names, "grey": Image(), "vector": Sequence(Value("float32")),
        "tokens": Sequence(Value("int64")),
    })  # fmt: skip
    rows = {"image": list(pictures), "label": [0, 1] * 20, "grey": list(pictures[..., 0]),
            "vector": rng.normal(size=(40, 7)).tolist(), "tokens": [[1, 2, 3]] * 40}  # fmt: skip
    Dataset.from_dict(rows, features=features).save_to_disk(str(tmp_path / "set"))
    shapes = {"image": (3, 6, 5), "grey": (1, 6, 5), "vector": (7,), "tokens": (3,)}
    for column, shape in shapes.items():
        setting = made(tmp_path / "set", 2, features=column)
        assert (setting.input_shape, setting.num_classes) == (shape, 3)
    train = made(tmp_path / "set", 1, features="image").train(0)
    assert 0 <= float(train.x.min()) < 0.01
    assert 0.99 < float(train.x.max()) <= 1
    assert setting.train(0).x.dtype == torch.int64
    with one_sentence("Column 'vector' of"):
        made(tmp_path / "set", 2, features="vector,tokens").train(0)


@pytest.mark.parametrize(("kind", "white"), [("bool", 1), ("uint16", 65535), ("float32", 1)])
def test_white_is_1_whatever_the_depth_of_an_image(tmp_path, kind, white):
    shades = np.linspace(0, white, 12).reshape(3, 4).astype(kind)
    rows = {"image": [shades] * 9, "label": [0, 1, 2] * 3}
    features = Features({"image": Image(), "label": Value("int64")})
    Dataset.from_dict(rows, features=features).save_to_disk(str(tmp_path / "set"))
    shown = made(tmp_path / "set", 1, features="image").train(0).x[0, 0]
    np.testing.assert_allclose(shown, shades / white, rtol=1e-6)


@pytest.mark.parametrize(("own", "words"), [
    ({"label": "lable"}, "has no column 'lable' (did you mean label?): it has a, b,"),
    ({"features": "a,town"}, "Column 'town' of"), ({"features": "town"}, "5,6 is a text"),
    ({"test_share": 0.99}, "has 30 rows, of which a test share of 0.99 leaves none to train on"),
    ({"partitioner": "DirichletPartition"}, "did you mean DirichletPartitioner?"),
    ({"partitioner": "DirichletPartitioner"}, "cannot be made with hf.arguments = ''"),
    ({"arguments": "{"}, "IidPartitioner cannot be made with hf.arguments = '{'"),
    ({"label": "one"}, "Column 'one' of"), ({"label": "one"}, "holds 1 alone"),
    ({"dataset": ""}, "set hf.dataset to a name or a path"),
])  # fmt: skip
def test_a_mistake_is_one_sentence(saved, own, words):
    with one_sentence(words):
        made(saved, **own).train(0)


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("column", ["label", "many", "b"])
def test_a_value_that_is_missing_is_named_by_its_row(form, column, tmp_path):
    rows = table()
    rows[column] = [None if k in (7, 9) else value for k, value in enumerate(list(rows[column]))]
    path = tmp_path / f"trees.{form}"
    getattr(Dataset.from_dict(rows), f"to_{form}")(str(path))
    label = "label" if column == "b" else column
    with one_sentence(f"Column '{column}' of", "lacks a value in row 8 (2 of 120): fill it or"):
        made(path, 1, label=label).train(0)


def test_a_number_that_is_none_is_a_missing_value(tmp_path):
    rows = table() | {"b": [math.nan, *range(119)]}
    Dataset.from_dict(rows).save_to_disk(str(tmp_path / "trees"))
    with one_sentence("Column 'b' of", "lacks a value in row 1 (1 of 120)"):
        made(tmp_path / "trees", 1).train(0)


def test_a_file_that_is_not_there_is_not_asked_for_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.load_dataset", lambda *words, **more: pytest.fail("it asks"))
    with one_sentence("cannot be loaded", f"No such file or directory: '{tmp_path}/tres.csv'"):
        made(tmp_path / "tres.csv").train(0)


@pytest.mark.parametrize("form", ["csv", "disk"])
def test_a_split_that_is_not_there_is_refused(form, tmp_path):
    whole, path = Dataset.from_dict(table()), tmp_path / f"trees.{form}"
    (whole.save_to_disk if form == "disk" else whole.to_csv)(str(path))
    with one_sentence("split 'dev', cannot be loaded"):
        made(path, split="dev").train(0)


def test_what_cannot_be_loaded_is_one_sentence(tmp_path):
    (tmp_path / "bad.csv").write_bytes(b"\xff\xfe\x00")
    with one_sentence("cannot be loaded") as found:
        made(tmp_path / "bad.csv").train(0)
    assert str(found.value).startswith("hf.dataset = ")  # no partitioner's fault


@pytest.mark.parametrize(("name", "text", "words"), [
    ("latin.csv", "größe,label\n1,ja\n2,nein\n".encode("latin-1"), "'utf-8' codec can't decode"),
    ("empty.csv", b"", "EmptyDataError: No columns to parse from file"),
    ("trees.tsv", b"a\tlabel\n1\t2\n", "a file must end in .csv, .parquet, .json, .jsonl"),
    ("semi.csv", b"a;label\n1,5;ja\n2,5;nein\n", "has a;label"),
    ("semi.csv", b"a;label\n1,5;ja\n2,5;nein\n", "is to have commas between its columns"),
    ("inf.csv", b"a,label\n1,ja\ninf,nein\n3,ja\n4,nein\n", "'a' of"),
    ("inf.csv", b"a,label\n1,ja\ninf,nein\n3,ja\n4,nein\n", "lacks a value in row 2"),
])  # fmt: skip
def test_a_file_of_another_kind_is_one_sentence_that_says_what_is_wrong(
    name, text, words, tmp_path
):
    (tmp_path / name).write_bytes(text)
    with one_sentence(words):
        made(tmp_path / name, 1, features="a").train(0)


def test_the_end_of_a_name_may_be_in_capitals(tmp_path):
    Dataset.from_dict(table()).to_csv(str(tmp_path / "TREES.CSV"))
    assert made(tmp_path / "TREES.CSV").num_classes == 3


def test_a_relative_path_is_the_commands(tmp_path, monkeypatch):
    Dataset.from_dict(table()).to_csv(str(tmp_path / "trees.csv"))
    monkeypatch.chdir(tmp_path)
    words = ["--set", "hf.features=a,b", "--set", "silos=3", "--epochs", "1", "--engine"]
    given = ["run", "--setting", "hf", "--set", "hf.dataset=trees.csv", *words, "in-process"]
    assert "hf: silo 0 by spcacw-plus, 8 test cases" in ran(*given)
