"""CIFAR-100: every form gives the same images, and what is wrong is named."""

import hashlib
import pickle
import shutil

import numpy as np
import pytest
from PIL import Image

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.partitions import cifar, cifar_forms, hub
from spcacw_flwr.partitions.cifar import load_cifar100

SIZES = {"train": 6, "test": 4}
PER_PART = 2


def sha(*arrays):
    return hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest()


class Tiny:
    """Six training and four test images in all forms, two to a mosaic."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.x = {s: rng.integers(0, 256, (n, 3, 32, 32), np.uint8) for s, n in SIZES.items()}
        self.fine = {s: rng.integers(0, 100, n).astype(np.uint8) for s, n in SIZES.items()}
        self.coarse = {s: rng.integers(0, 20, n).astype(np.uint8) for s, n in SIZES.items()}
        self.pickles = {
            s: pickle.dumps(
                {
                    "data": self.x[s].reshape(-1, 3072),
                    "fine_labels": self.fine[s].tolist(),
                    "coarse_labels": self.coarse[s].tolist(),
                }
            )
            for s in SIZES
        }

    def mosaics(self, root):
        for s, x in self.x.items():
            for part in range(len(x) // PER_PART):
                tiles = x[part * PER_PART : (part + 1) * PER_PART].transpose(0, 2, 3, 1)
                picture = Image.fromarray(np.concatenate(list(tiles), axis=1))
                picture.save(root / f"{s}-{part:02d}.webp", lossless=True)
        kinds = {"fine": self.fine, "coarse": self.coarse}
        np.savez(root / "labels.npz", **{f"{s}_{k}": v[s] for k, v in kinds.items() for s in SIZES})

    def binary(self, root):
        (root / "cifar-100-binary").mkdir()
        for s in SIZES:
            columns = [self.coarse[s][:, None], self.fine[s][:, None], self.x[s].reshape(-1, 3072)]
            content = np.concatenate(columns, axis=1).tobytes()
            (root / "cifar-100-binary" / f"{s}.bin").write_bytes(content)

    def python(self, root):
        (root / "cifar-100-python").mkdir()
        for s in SIZES:
            (root / "cifar-100-python" / s).write_bytes(self.pickles[s])

    def agrees(self, data):
        for s in SIZES:
            np.testing.assert_array_equal(getattr(data, f"x_{s}"), self.x[s])
            np.testing.assert_array_equal(getattr(data, f"y_{s}"), self.fine[s])


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    made = Tiny()
    parts = {s: n // PER_PART for s, n in SIZES.items()}
    for module in (cifar, cifar_forms):
        monkeypatch.setattr(module, "PER_PART", PER_PART)
    monkeypatch.setattr(cifar_forms, "PARTS", parts)
    names = [f"{s}-{p:02d}.webp" for s in parts for p in range(parts[s])]
    mosaics, *others = cifar_forms.FORMS
    shorter = cifar_forms.Form(mosaics.name, (*names, "labels.npz"), mosaics.read, mosaics.file_of)
    monkeypatch.setattr(cifar, "FORMS", (shorter, *others))
    monkeypatch.setattr(cifar, "LABELS", {s: sha(made.coarse[s], made.fine[s]) for s in SIZES})
    pixels = {s: [sha(x[i : i + PER_PART]) for i in range(0, len(x), 2)] for s, x in made.x.items()}
    monkeypatch.setattr(cifar, "PIXELS", pixels)
    md5s = {s: hashlib.md5(p).hexdigest() for s, p in made.pickles.items()}
    monkeypatch.setattr(cifar_forms, "PICKLE_MD5", md5s)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    cifar._load.cache_clear()
    yield made
    cifar._load.cache_clear()


@pytest.fixture
def offline(monkeypatch):
    def fail(*_, **__):
        raise ConnectionError("Couldn't reach the hub\nwith details")

    monkeypatch.setattr("datasets.load_dataset", fail)
    monkeypatch.setattr("spcacw_flwr.partitions.hub._resolve", lambda: None)


def fresh(root):
    """Load as a new process would."""
    cifar._load.cache_clear()
    return load_cifar100(str(root))


@pytest.mark.parametrize("form", ["mosaics", "binary", "python"])
@pytest.mark.parametrize("below", [".", "cifar100"])
def test_reads_every_form_here_or_in_cifar100(tiny, tmp_path, form, below):
    base = tmp_path / "data" / below
    base.mkdir(parents=True)
    getattr(tiny, form)(base)
    data = load_cifar100(str(tmp_path / "data"))
    tiny.agrees(data)
    assert load_cifar100(str(tmp_path / "data" / ".")) is data
    with pytest.raises(ValueError, match="read-only"):
        data.x_train[0] = 1
    tiny.agrees(fresh(tmp_path / "data"))


def test_a_second_start_decodes_nothing_and_a_changed_source_does(tiny, tmp_path, monkeypatch):
    tiny.mosaics(tmp_path)
    fresh(tmp_path)
    opened = []
    real = cifar_forms._mosaic
    monkeypatch.setattr(cifar_forms, "_mosaic", lambda path: opened.append(path) or real(path))
    tiny.agrees(fresh(tmp_path))
    assert not opened
    # The same pixels in another file: decoded again, and still right.
    with Image.open(tmp_path / "train-01.webp") as picture:
        picture.load()
        picture.save(tmp_path / "train-01.webp", lossless=True, method=0, quality=10)
    tiny.agrees(fresh(tmp_path))
    assert len(opened) == 5


@pytest.mark.parametrize(
    ("file", "harm", "words"),
    [
        ("train-01.webp", "pixel", ["train-01.webp", "train images 2 … 3"]),
        ("test-00.webp", "truncate", ["test-00.webp", "damaged"]),
        ("train-02.webp", "garbage", ["train-02.webp", "damaged"]),
        ("train-00.webp", "size", ["train-00.webp", "damaged"]),
        ("labels.npz", "truncate", ["labels.npz", "damaged"]),
        ("labels.npz", "label", ["labels.npz", "test labels are not the official", "4 labels"]),
        ("test-01.webp", "lose", ["test-01.webp", "lacking"]),
        ("labels.npz", "lose", ["labels.npz", "lacking"]),
    ],
)
def test_a_damaged_or_missing_file_is_named(tiny, tmp_path, offline, file, harm, words):
    if harm == "label":
        tiny.fine["test"][2] ^= 1
    if harm == "pixel":
        tiny.x["train"][3, 1, 5, 5] ^= 1
    tiny.mosaics(tmp_path)
    path = tmp_path / file
    if harm == "truncate":
        path.write_bytes(path.read_bytes()[:-200])
    elif harm == "garbage":
        path.write_bytes(b"not a picture")
    elif harm == "size":
        Image.new("RGB", (65, 32)).save(path, lossless=True)
    elif harm == "lose":
        path.unlink()
    with pytest.raises(SpcacwError) as caught:
        load_cifar100(str(tmp_path))
    for word in [*words, "data-dir"]:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob(".spcacw-decoded/cifar100-*"))


@pytest.mark.parametrize("harm", ["truncate", "record"])
def test_a_damaged_binary_is_named(tiny, tmp_path, harm):
    tiny.binary(tmp_path)
    path = tmp_path / "cifar-100-binary" / "test.bin"
    content = path.read_bytes()
    path.write_bytes(content[:-1] if harm == "truncate" else content[:-3074])
    with pytest.raises(SpcacwError, match=r"cifar-100-binary/test\.bin"):
        load_cifar100(str(tmp_path))


def test_only_the_official_pickle_is_ever_unpickled(tiny, tmp_path):
    tiny.python(tmp_path)
    path = tmp_path / "cifar-100-python" / "train"
    path.write_bytes(pickle.dumps({"data": None}))
    with pytest.raises(SpcacwError, match=r"cifar-100-python/train.*md5") as caught:
        load_cifar100(str(tmp_path))
    assert "damaged" in str(caught.value)


def test_the_pickles_md5s_are_torchvisions():
    from torchvision.datasets import CIFAR100

    known = dict(CIFAR100.train_list + CIFAR100.test_list)
    assert known == cifar_forms.PICKLE_MD5


def test_no_data_and_no_network_is_one_sentence(tiny, tmp_path, offline):
    with pytest.raises(SpcacwError) as caught:
        load_cifar100(str(tmp_path / "none"))
    for word in ["uoft-cs/cifar100", "Couldn't reach the hub", "cifar-100-python", "data-dir"]:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_from_the_hub_by_flwr_datasets(tiny, tmp_path, monkeypatch):
    """A directory of Parquet files, which load_dataset reads like a data set of the hub."""
    import datasets

    (tmp_path / "at-the-hub").mkdir()
    for s in SIZES:
        pictures = [Image.fromarray(x.transpose(1, 2, 0)) for x in tiny.x[s]]
        table = {"img": pictures, "fine_label": tiny.fine[s], "coarse_label": tiny.coarse[s]}
        features = datasets.Features(
            img=datasets.Image(),
            fine_label=datasets.ClassLabel(num_classes=100),
            coarse_label=datasets.ClassLabel(num_classes=20),
        )
        split = datasets.Dataset.from_dict(table, features=features)
        split.to_parquet(tmp_path / "at-the-hub" / f"{s}-0.parquet")
    monkeypatch.setattr(hub, "CIFAR100", str(tmp_path / "at-the-hub"))
    tiny.agrees(fresh(tmp_path / "data"))
    assert (tmp_path / "data" / "hub").is_dir()
    # The second start needs neither the hub nor what was fetched.
    shutil.rmtree(tmp_path / "at-the-hub")
    shutil.rmtree(tmp_path / "data" / "hub")
    tiny.agrees(fresh(tmp_path / "data"))


@pytest.mark.slow
def test_the_real_data_are_the_official_files_bit_for_bit(cifar_dir):
    _, form = cifar.find(cifar.data_root(cifar_dir))
    base = cifar.data_root(cifar_dir) / "cifar100"
    official = {
        "train": "6172c7755cfe09b2fe270c85cebc1b15",
        "test": "4499cfba6c016c1be1438163640a0898",
    }
    data = load_cifar100(cifar_dir)
    for name, md5 in official.items():
        split = form.read(base, name)
        columns = [split.coarse[:, None], split.fine[:, None], split.x.reshape(-1, 3072)]
        content = np.concatenate(columns, axis=1).tobytes()
        assert hashlib.md5(content).hexdigest() == md5
        np.testing.assert_array_equal(getattr(data, f"x_{name}"), split.x)
        each = {"train": 500, "test": 100}[name]
        assert np.bincount(getattr(data, f"y_{name}")).tolist() == [each] * 100


def test_a_second_start_on_the_real_data_decodes_nothing(cifar_dir, monkeypatch):
    first = fresh(cifar_dir)
    monkeypatch.setattr(cifar, "_decode", lambda *_: pytest.fail("decoded again"))
    again = fresh(cifar_dir)
    assert again is not first
    np.testing.assert_array_equal(again.y_test, first.y_test)
