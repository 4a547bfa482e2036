"""CIFAR-100: every form gives the same images, decoded once, and what is wrong is named."""

import hashlib
import io
import logging
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from spcacw_flwr.partitions import data, images
from spcacw_flwr.partitions.images import load_cifar100
from tests.conftest import one_sentence

SIZES = {"train": 6, "test": 4}


def saved(save, *arguments, **keys):
    file = io.BytesIO()
    save(file, *arguments, **keys)
    return file.getvalue()


class Tiny:
    """Six training and four test images in both forms, two to a mosaic."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.arrays, labels, self.mosaics, self.pickles = {}, {}, {}, {}
        for part, n in SIZES.items():
            x = rng.integers(0, 256, (n, 3, 32, 32), np.uint8)
            y = labels[f"{part}_fine"] = rng.integers(0, 100, n).astype(np.uint8)
            self.arrays |= {f"x_{part}": x, f"y_{part}": y}
            for i in range(0, n, 2):
                picture = Image.fromarray(
                    np.concatenate(list(x[i : i + 2].transpose(0, 2, 3, 1)), 1)
                )
                content = saved(picture.save, "webp", lossless=True)
                self.mosaics[f"{part}-{i // 2:02d}.webp"] = content
            entry = {"data": x.reshape(-1, 3072), "fine_labels": y.tolist()}
            self.pickles[part] = pickle.dumps(entry)
        self.mosaics["labels.npz"] = saved(np.savez, **labels)

    def write(self, root, form):
        folder = root / "cifar-100-python" if form == "pickles" else root
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in getattr(self, form).items():
            (folder / name).write_bytes(content)

    def agrees(self, loaded):
        for name, array in self.arrays.items():
            np.testing.assert_array_equal(getattr(loaded, name), array)
            with pytest.raises(ValueError, match="read-only"):
                getattr(loaded, name)[0] = 1


@pytest.fixture
def tiny(monkeypatch, expect, offline):
    made = Tiny()
    expect(images, "CIFAR100", made.mosaics, made.pickles)
    decoded = {name: hashlib.sha256(array).hexdigest() for name, array in made.arrays.items()}
    monkeypatch.setattr(images, "DECODED", decoded)
    return made


@pytest.fixture
def decodings(monkeypatch):
    """Counts how often CIFAR-100 is decoded."""
    made, decode = [], images._decode
    monkeypatch.setattr(images, "_decode", lambda paths: made.append(paths) or decode(paths))
    return made


@pytest.fixture
def kept(tmp_path):
    return tmp_path / "home" / ".cache" / "spcacw" / "decoded" / "cifar100"


def fresh(root):
    """Load as a new process would."""
    load_cifar100.cache_clear()
    return load_cifar100(str(root))


@pytest.mark.parametrize("form", ["mosaics", "pickles"])
@pytest.mark.parametrize("below", [".", "cifar100"])
def test_reads_each_form_here_or_in_cifar100(tiny, tmp_path, decodings, kept, form, below):
    """A second start decodes nothing; nothing is written beside the data."""
    root = tmp_path / "data"
    tiny.write(root / below, form)
    before = sorted(root.rglob("*"))
    loaded = fresh(root)
    tiny.agrees(loaded)
    assert load_cifar100(str(root / ".")) is loaded
    tiny.agrees(fresh(root))
    assert len(decodings) == 1
    assert sorted(root.rglob("*")) == before
    assert sorted(p.name for p in kept.iterdir()) == sorted(f"{name}.npy" for name in tiny.arrays)


def test_the_pickles_are_downloaded_by_torchvision_into_the_home(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "torchvision.datasets.CIFAR100", lambda root, download: tiny.write(Path(root), "pickles")
    )
    tiny.agrees(fresh(tmp_path / "none"))
    assert (tmp_path / "home/.cache/spcacw/data/cifar-100-python/train").is_file()
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("harm", ["truncate", "flip", "garbage", "pickle", "empty", "lose"])
def test_a_damaged_array_is_decoded_again(tiny, tmp_path, decodings, kept, harm):
    tiny.write(tmp_path, "mosaics")
    fresh(tmp_path)
    file = kept / "x_test.npy"
    good = file.read_bytes()
    bad = {
        "truncate": good[:-1],
        "flip": good[:-1] + bytes([good[-1] ^ 1]),
        "garbage": b"no array",
        "pickle": saved(np.save, np.array([{}], dtype=object), allow_pickle=True),
        "empty": b"",
    }
    file.unlink() if harm == "lose" else file.write_bytes(bad[harm])
    for _ in range(2):
        tiny.agrees(fresh(tmp_path))
    assert len(decodings) == 2
    assert file.read_bytes() == good


def test_where_nothing_can_be_kept_it_works_and_says_so(tiny, tmp_path, caplog, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    tiny.write(tmp_path, "mosaics")
    monkeypatch.setattr(np, "save", full)
    with caplog.at_level(logging.WARNING):
        tiny.agrees(fresh(tmp_path))
    assert "decoded at each start" in caplog.text
    assert "No space left" in caplog.text
    assert not list(tmp_path.rglob(".decoding-*"))


def test_what_is_decoded_wrongly_is_not_kept(tiny, tmp_path, kept, monkeypatch):
    tiny.write(tmp_path, "mosaics")
    tiles = images._tiles
    monkeypatch.setattr(images, "_tiles", lambda mosaic: tiles(mosaic) ^ 1)
    with one_sentence("another x_train"):
        fresh(tmp_path)
    assert not kept.exists()


@pytest.mark.parametrize("harm", ["truncate", "garbage", "flip"])
@pytest.mark.parametrize("file", ["train-01.webp", "test-00.webp", "labels.npz", "train", "test"])
def test_a_damaged_file_is_named(tiny, tmp_path, file, harm):
    """A pickle, too, before it is opened: it could run any code."""
    form, folder = ("mosaics", "") if "." in file else ("pickles", "cifar-100-python")
    tiny.write(tmp_path, form)
    path = tmp_path / folder / file
    good = path.read_bytes()
    bad = {"truncate": good[:-200], "garbage": b"not a picture"}
    path.write_bytes(bad.get(harm, good[:-1] + bytes([good[-1] ^ 1])))
    with one_sentence(f"CIFAR-100 file {str(path)!r} is damaged", "data-dir"):
        fresh(tmp_path)


def test_a_whole_form_is_read_though_another_is_there_in_part(tiny, tmp_path):
    tiny.write(tmp_path, "mosaics")
    tiny.write(tmp_path, "pickles")
    (tmp_path / "labels.npz").unlink()
    tiny.agrees(fresh(tmp_path))


@pytest.mark.slow
def test_the_real_data_are_the_official_files_bit_for_bit(cifar_dir):
    """The binary form, made of what was decoded, has the MD5s that other libraries list."""
    official = {
        "train": "6172c7755cfe09b2fe270c85cebc1b15",
        "test": "4499cfba6c016c1be1438163640a0898",
    }
    held = images.find(data.CIFAR100, data.data_root(cifar_dir))
    coarse = np.load(held["labels.npz"])
    loaded = fresh(cifar_dir)
    for part, md5 in official.items():
        x, y = getattr(loaded, f"x_{part}"), getattr(loaded, f"y_{part}")
        columns = [coarse[f"{part}_coarse"][:, None], y[:, None], x.reshape(-1, 3072)]
        assert hashlib.md5(np.concatenate(columns, axis=1).tobytes()).hexdigest() == md5
        assert np.bincount(y).tolist() == [{"train": 500, "test": 100}[part]] * 100
