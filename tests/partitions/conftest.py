"""Real MNIST where the machine has it, and a tiny stand-in with its own shapes and checksums."""

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest

from partitions import SETTINGS, PartitionKeys, make_setting, sources


@pytest.fixture(scope="session")
def mnist_dir(mnist):
    return str(mnist)


@pytest.fixture
def make(request):
    """Make a setting under its own defaults, with some keys changed."""

    def build(name, seed=0, **changes):
        if name.startswith("mnist"):
            changes.setdefault("data_dir", request.getfixturevalue("mnist_dir"))
        fields = PartitionKeys.__dataclass_fields__
        own = {k: v for k, v in SETTINGS[name].defaults.items() if k in fields}
        return make_setting(name, PartitionKeys(**{**own, **changes}), seed)

    return build


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
        self.stems = list(sources.MNIST_SHAPES)
        self.raw = {s: idx(a) for s, a in zip(self.stems, self.arrays, strict=True)}
        self.gz = {f"{s}.gz": gzip.compress(content) for s, content in self.raw.items()}
        self.md5s = {name: hashlib.md5(content).hexdigest() for name, content in self.gz.items()}

    def write(self, root, files):
        folder = Path(root) / "MNIST" / "raw"
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        return folder

    def agrees(self, loaded):
        return all(np.array_equal(a, b) for a, b in zip(loaded, self.arrays, strict=True))


@pytest.fixture
def tiny(monkeypatch):
    """Let the reader expect the tiny files; whatever would reach the network fails the test."""
    made = Tiny()
    shapes = dict(zip(made.stems, made.shapes, strict=True))
    monkeypatch.setattr(sources, "MNIST_SHAPES", shapes)
    monkeypatch.setattr(sources, "_md5s", lambda: made.md5s)

    def forbidden(*_, **__):
        raise AssertionError("the test wanted no download")

    monkeypatch.setattr("torchvision.datasets.MNIST", forbidden)
    return made
