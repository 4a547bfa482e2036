"""Real MNIST where the machine has it, and a tiny stand-in with its own shapes and checksums."""

import gzip
import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.keys import PartitionKeys
from spcacw_flwr.partitions import data, images
from spcacw_flwr.silos.setup import setting_of
from tests.conftest import data_at


@pytest.fixture
def make(request):
    """Make a setting under its own defaults, with some keys changed."""

    def build(name, seed=0, target=0, **changes):
        places = {"mnist": "mnist", "cifar100": "cifar_dir", "shakespeare": "plays_dir",
                  "heart": "tables_dir", "landmine": "tables_dir"}  # fmt: skip
        place = places.get(name.split("-")[0])
        if place and "data_dir" not in changes:
            changes["data_dir"] = request.getfixturevalue(place)
        own = {k: changes.pop(k) for k in [*changes] if k not in PartitionKeys.__dataclass_fields__}
        keys = {"setting": name, "seed": seed, "target": target, **changes}
        return setting_of(Config.from_keys(**keys, **{name: own}))

    return build


def rows(x):
    """Samples as bytes, to compare sets of them."""
    return [row.numpy().tobytes() for row in x]


def idx(array):
    """Encode an idx file independently of the reader: magic, sizes, bytes."""
    sizes = b"".join(n.to_bytes(4, "big") for n in array.shape)
    return b"\0\0\x08" + bytes([array.ndim]) + sizes + array.tobytes()


class Tiny:
    """Five training and three test images of 2 × 2, as bytes of the four files."""

    shapes = ((5, 2, 2), (5,), (3, 2, 2), (3,))

    def __init__(self):
        sizes = [int(np.prod(shape)) for shape in self.shapes]
        self.arrays = [
            (np.arange(size) * 7 % 251 + i).astype(np.uint8).reshape(shape)
            for i, (size, shape) in enumerate(zip(sizes, self.shapes, strict=True))
        ]
        self.stems = list(data.MNIST.forms[0].digests)
        self.raw = {s: idx(a) for s, a in zip(self.stems, self.arrays, strict=True)}
        self.gz = {f"{s}.gz": gzip.compress(content) for s, content in self.raw.items()}

    def write(self, root, files):
        folder = Path(root) / "MNIST" / "raw"
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        return folder

    def agrees(self, loaded):
        return all(np.array_equal(a, b) for a, b in zip(loaded, self.arrays, strict=True))


@pytest.fixture
def expect(monkeypatch):
    """Let a module expect a data set whose forms hold these files, and no others."""

    def change(module, name, *forms):
        known = getattr(module, name)
        digests = [
            {file: hashlib.sha256(content).hexdigest() for file, content in files.items()}
            for files in forms
        ]
        own = (replace(a, digests=b) for a, b in zip(known.forms, digests, strict=True))
        monkeypatch.setattr(module, name, replace(known, forms=tuple(own)))

    return change


@pytest.fixture
def tiny(expect, offline):
    """Let the reader expect the tiny files, in an empty home."""
    made = Tiny()
    expect(images, "MNIST", made.raw)
    images.load_mnist.cache_clear()
    return made


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """A home directory of the session: what is decoded from read-only data goes there."""
    path = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(path))
        yield path
    shutil.rmtree(path)  # 184 MB of decoded CIFAR-100


@pytest.fixture(scope="session")
def cifar_dir(home):
    return data_at("cifar100/labels.npz", "cifar100/train-00.webp")


@pytest.fixture(scope="session")
def plays_dir(home):
    return data_at("shakespeare/pg100.txt.xz")


@pytest.fixture(scope="session")
def tables_dir():
    return data_at("heart/processed.va.data", "landmine/LandmineData.mat")
