"""MNIST is read from every layout that users have, and what is wrong is named."""

import gzip
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from sklearn import datasets

from spcacw_flwr.partitions import data
from spcacw_flwr.partitions.images import load_digits, load_mnist
from tests.conftest import one_sentence

STEMS = tuple(data.MNIST.forms[0].digests)
# Per class 0 … 9, from the counts published with the data set.
TRAIN_COUNTS = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
TEST_COUNTS = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def test_digits_are_those_that_scikit_learn_loads():
    x, y = load_digits()
    known = datasets.load_digits()
    assert np.array_equal(x[:, 0] * 16, known.images)
    assert np.array_equal(y, known.target)
    assert (x.shape, x.dtype, y.shape, y.dtype) == ((1797, 1, 8, 8), np.float32, (1797,), np.int64)
    assert (x.min(), x.max()) == (0.0, 1.0)
    # First image of the UCI file: row 0 is 0 0 5 13 9 1 0 0, and it is a zero.
    assert (x[0, 0, 0] * 16).tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    assert y[0] == 0


def test_mnist_has_its_known_shapes_and_class_counts(mnist):
    arrays = load_mnist(mnist)
    assert [a.shape for a in arrays] == [(60_000, 28, 28), (60_000,), (10_000, 28, 28), (10_000,)]
    assert {a.dtype for a in arrays} == {np.dtype(np.uint8)}
    assert np.bincount(arrays.y_train).tolist() == TRAIN_COUNTS
    assert np.bincount(arrays.y_test).tolist() == TEST_COUNTS
    assert arrays.x_train.max() == 255


def test_torchvision_downloads_the_files_of_the_table():
    """Under the names and, for CIFAR-100, the MD5s and the folder that the table has."""
    from torchvision.datasets import CIFAR100, MNIST

    assert {name for name, _ in MNIST.resources} == {f"{stem}.gz" for stem in STEMS}
    pickles = data.CIFAR100.forms[-1]
    assert dict(CIFAR100.train_list + CIFAR100.test_list) == pickles.digests
    assert CIFAR100.base_folder == pickles.folders[0]


def test_loading_again_gives_the_same_arrays_which_cannot_be_written_to(tiny, tmp_path):
    tiny.write(tmp_path, tiny.gz)
    first, again = load_mnist(str(tmp_path)), load_mnist(str(tmp_path / "."))
    assert first[0] is again[0]
    with pytest.raises(ValueError, match="read-only"):
        first[0][0] = 1


@pytest.mark.parametrize("below", [".", "mnist"])
@pytest.mark.parametrize("form", ["raw", "gz", "mixed"])
def test_reads_packed_or_unpacked_files_here_or_in_mnist(tiny, tmp_path, form, below):
    mixed = {k: v for k, v in (tiny.raw | tiny.gz).items() if ("images" in k) == (".gz" in k)}
    files = {"raw": tiny.raw, "gz": tiny.gz, "mixed": mixed}[form]
    folder = tiny.write(tmp_path / below, files)
    assert tiny.agrees(load_mnist(str(tmp_path)))
    assert sorted(path.name for path in folder.iterdir()) == sorted(files), "wrote beside the data"
    assert {p.name for p in tmp_path.iterdir()} <= {"MNIST", "mnist"}, "wrote beside the data"


@pytest.mark.parametrize("named", ["", "elsewhere"])
def test_the_cache_of_the_home_directory_is_read_where_the_directory_has_none(
    tiny, tmp_path, monkeypatch, named
):
    tiny.write(tmp_path / "home" / ".cache" / "spcacw" / "data", tiny.gz)
    assert tiny.agrees(load_mnist(named and str(tmp_path / named)))
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("harm", ["truncated", "longer", "magic", "shape", "pixel", "empty"])
def test_a_damaged_file_is_named(tiny, tmp_path, harm, end):
    stem = tiny.stems[0]
    good = tiny.raw[stem]  # 4 bytes of magic, sizes 5, 2, 2 in 4 bytes each, the pixels
    bad = {
        "longer": good + b"\0",
        "magic": b"\0\0\x09" + good[3:],
        "shape": good[:8] + bytes([0, 0, 0, 1, 0, 0, 0, 4]) + good[16:],  # (5, 1, 4)
        "pixel": good[:-1] + bytes([good[-1] ^ 1]),
        "empty": b"",
    }
    held = (gzip.compress if end else bytes)(bad.get(harm, good))
    changed = {stem + end: held[:-3] if harm == "truncated" else held}
    folder = tiny.write(tmp_path, (tiny.gz if end else tiny.raw) | changed)
    with one_sentence("damaged", "data-dir", repr(str(folder / (stem + end)))):
        load_mnist(str(tmp_path))


def test_a_part_of_the_files_says_which_lack_and_where(tiny, tmp_path):
    folder = tiny.write(tmp_path, {tiny.stems[1]: tiny.raw[tiny.stems[1]]})
    lacking = f"without {tiny.stems[0]}, {tiny.stems[2]}, {tiny.stems[3]}: put"
    with one_sentence("only in part", repr(str(folder)), "data-dir", lacking):
        load_mnist(str(tmp_path))


def test_no_data_and_no_network_says_what_where_and_which_key(tiny, tmp_path):
    with one_sentence(str(tmp_path / "none"), "MNIST/raw", "data-dir", "Name or service", ".gz"):
        load_mnist(str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()
    assert not list(tmp_path.rglob(".download-*")), "left its scratch directory behind"


def test_a_home_that_cannot_be_written_to_is_an_error_of_ours(tiny, tmp_path):
    (tmp_path / "home").write_text("a file")
    with one_sentence("could not be downloaded into", "data-dir"):
        load_mnist(str(tmp_path / "none"))


def test_files_appear_at_once_and_are_fetched_once_and_quietly(tiny, tmp_path, monkeypatch, capfd):
    calls = []

    def download(root, download):
        assert download
        calls.append(root)
        print("noise")
        print("100%|###|", file=sys.stderr)
        tiny.write(root, tiny.gz | tiny.raw)
        time.sleep(0.2)  # the other thread looks while the files are only in scratch

    monkeypatch.setattr("torchvision.datasets.MNIST", download)
    with ThreadPoolExecutor(2) as threads:
        results = [*threads.map(load_mnist, [str(tmp_path)] * 2)]
    assert len(calls) == 1
    assert all(tiny.agrees(result) for result in results)
    assert capfd.readouterr() == ("", "")
    store = tmp_path / "home" / ".cache" / "spcacw" / "data"
    assert {p.name for p in (store / "MNIST" / "raw").iterdir()} == set(tiny.gz | tiny.raw)
    assert not list(store.glob(".download-*"))
    assert [p.name for p in tmp_path.iterdir()] == ["home"], "wrote into the user's directory"


def test_the_network_timeout_is_put_back(tiny, tmp_path, monkeypatch):
    seen = []

    def download(root, **_):
        seen.append(socket.getdefaulttimeout())
        raise OSError("offline")

    monkeypatch.setattr("torchvision.datasets.MNIST", download)
    before = socket.getdefaulttimeout()
    try:
        socket.setdefaulttimeout(77.0)
        with one_sentence("(offline)"):
            load_mnist(str(tmp_path))
        assert seen == [10.0]
        assert socket.getdefaulttimeout() == 77.0
    finally:
        socket.setdefaulttimeout(before)
