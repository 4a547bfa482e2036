"""MNIST is read from every layout that users have, and what is wrong is named."""

import shutil
import socket
import sys
import threading
import time

import numpy as np
import pytest

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.partitions import fetch, hub, sources
from spcacw_flwr.partitions.sources import MNIST_MD5, MNIST_SHAPES, load_digits, load_mnist

FETCH = hub.fetch
# Per class 0 … 9, from the counts published with the data set.
TRAIN_COUNTS = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
TEST_COUNTS = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def test_digits_have_their_known_shape_and_range():
    x, y = load_digits()
    assert (x.shape, x.dtype, y.shape, y.dtype) == ((1797, 1, 8, 8), np.float32, (1797,), np.int64)
    assert (x.min(), x.max()) == (0.0, 1.0)
    # First image of the UCI file: row 0 is 0 0 5 13 9 1 0 0, and it is a zero.
    assert (x[0, 0, 0] * 16).tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    assert y[0] == 0


def test_mnist_has_its_known_shapes_and_class_counts(mnist_dir):
    arrays = load_mnist(mnist_dir)
    assert [a.shape for a in arrays] == [(60_000, 28, 28), (60_000,), (10_000, 28, 28), (10_000,)]
    assert {a.dtype for a in arrays} == {np.dtype(np.uint8)}
    assert np.bincount(arrays[1]).tolist() == TRAIN_COUNTS
    assert np.bincount(arrays[3]).tolist() == TEST_COUNTS
    assert arrays[0].max() == 255


def test_the_md5s_are_torchvisions():
    from torchvision.datasets import MNIST

    assert dict(MNIST.resources) == MNIST_MD5


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


def test_empty_data_dir_is_the_cache_of_the_home_directory(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    tiny.write(tmp_path / ".cache" / "spcacw" / "data", tiny.gz)
    assert tiny.agrees(load_mnist(""))


@pytest.mark.parametrize("stem", MNIST_SHAPES)
def test_a_truncated_gz_is_named(tiny, tmp_path, stem):
    name = f"{stem}.gz"
    folder = tiny.write(tmp_path, {**tiny.gz, name: tiny.gz[name][:-3]})
    with pytest.raises(SpcacwError, match="damaged") as caught:
        load_mnist(str(tmp_path))
    assert str(folder / name) in str(caught.value)
    assert "data-dir" in str(caught.value)


@pytest.mark.parametrize("harm", ["truncated", "longer", "magic", "shape", "empty"])
def test_a_damaged_unpacked_file_is_named(tiny, tmp_path, harm):
    stem = tiny.stems[0]
    good = tiny.raw[stem]  # 4 bytes of magic, sizes 5, 2, 2 in 4 bytes each, the pixels
    bad = {
        "truncated": good[:-1],
        "longer": good + b"\0",
        "magic": b"\0\0\x09" + good[3:],
        "shape": good[:8] + bytes([0, 0, 0, 1, 0, 0, 0, 4]) + good[16:],  # (5, 1, 4)
        "empty": b"",
    }
    folder = tiny.write(tmp_path, {**tiny.raw, stem: bad[harm]})
    with pytest.raises(SpcacwError, match="damaged") as caught:
        load_mnist(str(tmp_path))
    assert repr(str(folder / stem)) in str(caught.value)


def test_no_data_and_no_network_says_which_files_where_and_which_key(tiny, tmp_path, monkeypatch):
    def offline(*_, **__):
        raise RuntimeError("Error downloading:\nTried here, got:\n<Name or service not known>\n")

    monkeypatch.setattr("torchvision.datasets.MNIST", offline)
    tiny.write(tmp_path, {tiny.stems[1]: tiny.raw[tiny.stems[1]]})
    with pytest.raises(SpcacwError) as caught:
        load_mnist(str(tmp_path))
    message = str(caught.value)
    for part in [str(tmp_path / "MNIST" / "raw"), "data-dir", "Name or service", tiny.stems[0]]:
        assert part in message
    assert tiny.stems[1] not in message, "names a file that is there"
    assert "\n" not in message
    assert not list(tmp_path.glob(".mnist-*")), "left its scratch directory behind"


def test_a_data_dir_that_cannot_be_made_is_an_error_of_ours(tiny, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SpcacwError, match="data-dir"):
        load_mnist(str(tmp_path / "file" / "below"))


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
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(load_mnist(str(tmp_path)))) for _ in "ab"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert len(results) == 2
    assert all(tiny.agrees(result) for result in results)
    assert capfd.readouterr() == ("", "")
    assert sorted(p.name for p in (tmp_path / "MNIST" / "raw").iterdir()) == sorted(tiny.gz)
    assert not list(tmp_path.glob(".mnist-*"))


def test_the_network_timeout_is_put_back(tiny, tmp_path, monkeypatch):
    seen = []

    def download(root, **_):
        seen.append(socket.getdefaulttimeout())
        raise OSError("offline")

    monkeypatch.setattr("torchvision.datasets.MNIST", download)
    before = socket.getdefaulttimeout()
    try:
        socket.setdefaulttimeout(77.0)
        with pytest.raises(SpcacwError):
            fetch.fetch_mnist(tmp_path, tiny.stems, found=lambda: False)
        assert seen == [10.0]
        assert socket.getdefaulttimeout() == 77.0
    finally:
        socket.setdefaulttimeout(before)


def at_the_hub(tiny, folder):
    """Parquet files, which load_dataset reads like a data set of the hub."""
    import datasets
    from PIL import Image

    folder.mkdir()
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(num_classes=256))
    for name, (x, y) in {"train": tiny.arrays[:2], "test": tiny.arrays[2:]}.items():
        table = {"image": [Image.fromarray(one) for one in x], "label": y.tolist()}
        split = datasets.Dataset.from_dict(table, features=features)
        split.to_parquet(folder / f"{name}-0.parquet")


def offline(*_, **__):
    raise RuntimeError("no network")


def test_from_the_hub_when_the_servers_fail(tiny, tmp_path, monkeypatch):
    at_the_hub(tiny, tmp_path / "hub-of-the-world")
    monkeypatch.setattr("torchvision.datasets.MNIST", offline)
    monkeypatch.setattr(hub, "fetch", FETCH)
    monkeypatch.setattr(hub, "MNIST", str(tmp_path / "hub-of-the-world"))
    assert tiny.agrees(load_mnist(str(tmp_path / "data")))
    # Another start needs neither.
    shutil.rmtree(tmp_path / "hub-of-the-world")
    shutil.rmtree(tmp_path / "data" / "hub")
    sources._load_mnist.cache_clear()
    assert tiny.agrees(load_mnist(str(tmp_path / "data")))


def test_what_flwr_datasets_left_is_used_before_anything_is_downloaded(tiny, tmp_path, monkeypatch):
    (tmp_path / "hub" / "ylecun___mnist").mkdir(parents=True)
    splits = {
        "train": {"image": list(tiny.arrays[0]), "label": tiny.arrays[1]},
        "test": {"image": list(tiny.arrays[2]), "label": tiny.arrays[3]},
    }
    monkeypatch.setattr(hub, "fetch", lambda *_: splits)
    assert tiny.agrees(load_mnist(str(tmp_path)))


def test_a_hub_with_other_images_is_refused(tiny, tmp_path, monkeypatch):
    (tmp_path / "hub" / "ylecun___mnist").mkdir(parents=True)
    other = {"image": list(tiny.arrays[0] + 1), "label": tiny.arrays[1]}
    monkeypatch.setattr(hub, "fetch", lambda *_: {"train": other, "test": other})
    with pytest.raises(SpcacwError, match="x_train of ylecun/mnist differs"):
        load_mnist(str(tmp_path))


def test_where_the_hubs_name_is_unknown_nothing_is_tried_again_and_again(tmp_path, monkeypatch):
    def unknown(*_, **__):
        raise OSError("no such name")

    def asked(*_, **__):
        raise AssertionError("the hub was asked")

    for proxy in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    monkeypatch.setattr("socket.getaddrinfo", unknown)
    monkeypatch.setattr("flwr_datasets.FederatedDataset", asked)
    with pytest.raises(SpcacwError, match=r"no such name.*: put it there"):
        FETCH(hub.CIFAR100, ("train",), tmp_path, "put it there")
