"""The forms in which a directory may hold CIFAR-100, and how each is read.

- lossless WebP mosaics: ``train-00.webp`` … ``test-01.webp``, 5,000 images each, tiles row by row
  in the official order, with ``labels.npz``;
- ``cifar-100-binary/``: the official records of coarse label, fine label, red, green, blue;
- ``cifar-100-python/``: the official pickles, as torchvision lays them out.
"""

from __future__ import annotations

import hashlib
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.config.declare import SpcacwError

PER_PART = 5000
"""Images in a mosaic."""

PARTS = {"train": 10, "test": 2}
SIDE = 32
_RECORD = 2 + 3 * SIDE * SIDE  # coarse label, fine label, three planes

# md5 of the official pickles, as torchvision lists them.
PICKLE_MD5 = {
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
}


@dataclass(frozen=True)
class Split:
    """The training or test images (n, 3, 32, 32), with their fine and coarse labels, as uint8."""

    x: NDArray[np.uint8]
    fine: NDArray[np.uint8]
    coarse: NDArray[np.uint8]


@dataclass(frozen=True)
class Form:
    """One form: its files below a directory, how to read a split, and which file holds a part."""

    name: str
    files: tuple[str, ...]
    read: Callable[[Path, str], Split]
    file_of: Callable[[str, int | None], str]
    """The file of a split's part (None: of its labels)."""

    def reader(self, base: Path) -> Callable[[str], Split]:
        """Return what reads a split of this form in ``base``."""
        return partial(self.read, base)

    def blame(self, base: Path) -> Callable[[str, int | None], str]:
        """Return what names the file of a part of a split in ``base``."""
        return lambda split, part: repr(str(base / self.file_of(split, part)))


def unreadable(path: Path, error: object) -> SpcacwError:
    """Return the sentence for a file that cannot be read as what it should be."""
    return SpcacwError(
        f"The CIFAR-100 file {str(path)!r} is damaged ({error}): delete it or put an intact copy "
        "in its place, or point the config key data-dir at another directory."
    )


def _mosaic(path: Path) -> NDArray[np.uint8]:
    """Cut a mosaic into its tiles, row by row: (n, 3, 32, 32)."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))
        down, across = pixels.shape[0] // SIDE, pixels.shape[1] // SIDE
        tiles = pixels.reshape(down, SIDE, across, SIDE, 3)
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
        raise unreadable(path, error) from error
    return tiles.transpose(0, 2, 4, 1, 3).reshape(-1, 3, SIDE, SIDE)


def _read_mosaics(base: Path, split: str) -> Split:
    path = base / "labels.npz"
    try:
        with np.load(path) as arrays:
            fine, coarse = arrays[f"{split}_fine"], arrays[f"{split}_coarse"]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise unreadable(path, error) from error
    parts = [_mosaic(base / _mosaic_name(split, part)) for part in range(PARTS[split])]
    return Split(np.concatenate(parts), fine, coarse)


def _mosaic_name(split: str, part: int | None) -> str:
    return "labels.npz" if part is None else f"{split}-{part:02d}.webp"


def _read_binary(base: Path, split: str) -> Split:
    path = base / _binary_name(split)
    content = np.frombuffer(path.read_bytes(), dtype=np.uint8)
    if len(content) % _RECORD or not len(content):
        raise unreadable(path, f"its {len(content)} bytes are no whole number of {_RECORD}")
    records = content.reshape(-1, _RECORD)
    images = records[:, 2:].reshape(-1, 3, SIDE, SIDE)
    return Split(np.ascontiguousarray(images), records[:, 1].copy(), records[:, 0].copy())


def _binary_name(split: str, part: int | None = None) -> str:
    return f"cifar-100-binary/{split}.bin"


def _read_pickles(base: Path, split: str) -> Split:
    path = base / _pickle_name(split)
    content = path.read_bytes()
    # A pickle can run any code, so only the one official file is ever opened as a pickle.
    got = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if got != PICKLE_MD5[split]:
        raise unreadable(path, f"its md5 is {got}, not {PICKLE_MD5[split]}")
    held = pickle.loads(content, encoding="latin1")
    images = np.ascontiguousarray(held["data"]).reshape(-1, 3, SIDE, SIDE)
    fine, coarse = (np.array(held[f"{kind}_labels"], np.uint8) for kind in ("fine", "coarse"))
    return Split(images, fine, coarse)


def _pickle_name(split: str, part: int | None = None) -> str:
    return f"cifar-100-python/{split}"


FORMS: tuple[Form, ...] = (
    Form(
        "WebP mosaics",
        (*(_mosaic_name(s, part) for s in PARTS for part in range(PARTS[s])), "labels.npz"),
        _read_mosaics,
        _mosaic_name,
    ),
    Form("cifar-100-binary", tuple(map(_binary_name, PARTS)), _read_binary, _binary_name),
    Form("cifar-100-python", tuple(map(_pickle_name, PARTS)), _read_pickles, _pickle_name),
)
"""In the order in which they are looked for."""
