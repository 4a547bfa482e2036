"""Images as arrays: scikit-learn's embedded digits, MNIST and CIFAR-100.

MNIST (LeCun, Cortes & Burges) and CIFAR-100 (Krizhevsky, "Learning Multiple Layers of Features from
Tiny Images", 2009) are data sets of the paper (Kiselman & Levy, SP-CACW, arXiv 2606.29322).
Pillow is imported where it is used, because its import takes a second.
"""

import hashlib
import io
import logging
import os
import pickle
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.config.declare import SpcacwError

from .data import CIFAR100, MNIST, cache_root, content, data_root, find, read

SIDE = 32

DECODED = {
    "x_train": "de64658905c6b161606e3649ddafce7cf86c7634a0cf9116d518e64ef46a33c5",
    "y_train": "9f11b9f97aad759ba6df0a33e3218b01d8deaf4ed3a14aa1185d69b9ad7ebcb3",
    "x_test": "83c56492b2c11211ad1bb2dbd4f2eef4170a0441e41a41f3039c3144b1f5a511",
    "y_test": "4dad7d09c7c97d33f6cb928d705cf4196221316fd6e31bdd978a08ed9103ee0b",
}
"""SHA-256 of the arrays of CIFAR-100; every form of the data gives the same arrays."""

log = logging.getLogger(__name__)


class Images(NamedTuple):
    """Pixels (n, …) and labels (n,). Those of MNIST and CIFAR-100 are read-only uint8."""

    x_train: NDArray[Any]
    y_train: NDArray[Any]
    x_test: NDArray[Any]
    y_test: NDArray[Any]


@lru_cache(maxsize=1)
def load_digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return scikit-learn's digits: images (1797, 1, 8, 8) in [0, 1] and labels (1797,).

    The arrays are kept for the life of the process and are read-only.
    """
    # Not by the package itself, because its import would take a fifth of a run's time.
    table = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    held = np.loadtxt(str(table), delimiter=",", dtype=np.float32)
    x = held[:, :64].reshape(-1, 1, 8, 8) / np.float32(16)  # grey levels are whole numbers 0 … 16
    y = held[:, 64].astype(np.int64)
    x.flags.writeable = y.flags.writeable = False
    return x, y


@lru_cache(maxsize=2)
def load_mnist(data_dir: str = "") -> Images:
    """Return MNIST, images (60000, 28, 28) and (10000, 28, 28), kept for the life of the process.

    :func:`data.find` looks for its files; SpcacwError if one is damaged or cannot be had.
    """
    return Images(*map(_idx, read(MNIST, data_dir).values()))


def _idx(held: bytes) -> NDArray[np.uint8]:
    """Decode an idx file: 3 bytes of magic, the number of axes, the size of each, the values."""
    axes = held[3]
    shape = np.frombuffer(held, ">u4", axes, 4)
    return np.frombuffer(held, np.uint8, offset=4 + 4 * axes).reshape(shape)


@lru_cache(maxsize=2)
def load_cifar100(data_dir: str = "") -> Images:
    """Return CIFAR-100, images (50000, 3, 32, 32) and (10000, 3, 32, 32), with its fine labels.

    As :func:`load_mnist`. The decoded arrays are kept in the cache and mapped into memory.
    """
    paths, folder = find(CIFAR100, data_root(data_dir)), cache_root() / "decoded" / "cifar100"
    try:
        return _checked(Images(*(np.load(folder / f"{name}.npy", "r") for name in DECODED)))
    except (OSError, EOFError, ValueError, SpcacwError) as error:
        log.debug("CIFAR-100 is decoded afresh: %s", error)
    images = _checked(_decode(paths))
    try:
        _keep(images, folder)
    except OSError as error:
        log.warning("CIFAR-100 is decoded at each start, because it cannot be kept: %s", error)
    return images


def _checked(images: Images) -> Images:
    for name, array in images._asdict().items():
        if hashlib.sha256(array).hexdigest() != DECODED[name]:
            raise SpcacwError(f"CIFAR-100 was decoded to another {name}: is Pillow in order?")
        array.flags.writeable = False
    return images


def _keep(images: Images, folder: Path) -> None:
    """Write the arrays; each file appears in one step."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".decoding-") as scratch:
        for name, array in images._asdict().items():
            np.save(f"{scratch}/{name}.npy", array, allow_pickle=False)
            os.replace(f"{scratch}/{name}.npy", folder / f"{name}.npy")


def _decode(paths: Mapping[str, Path]) -> Images:
    held = {name: content(CIFAR100, path) for name, path in paths.items()}
    arrays: dict[str, NDArray[np.uint8]] = {}
    for part in ("train", "test"):
        if part in held:  # a pickle can run any code; its digest shows that it is official
            entry = pickle.loads(held[part], encoding="latin1")
            x = entry["data"].reshape(-1, 3, SIDE, SIDE)
            y = np.array(entry["fine_labels"], np.uint8)
        else:
            x = np.concatenate([_tiles(held[name]) for name in held if name.startswith(part)])
            y = np.load(io.BytesIO(held["labels.npz"]))[f"{part}_fine"]
        arrays |= {f"x_{part}": np.ascontiguousarray(x), f"y_{part}": y}
    return Images(**arrays)


def _tiles(mosaic: bytes) -> NDArray[np.uint8]:
    """Cut a picture into its tiles, row by row: (n, 3, 32, 32)."""
    from PIL import Image

    pixels = np.asarray(Image.open(io.BytesIO(mosaic)).convert("RGB"))
    tiles = pixels.reshape(len(pixels) // SIDE, SIDE, -1, SIDE, 3)
    return tiles.transpose(0, 2, 4, 1, 3).reshape(-1, 3, SIDE, SIDE)
