"""CIFAR-100 from a directory or the hub, decoded once and checked pixel by pixel.

CIFAR-100 (Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009) is the data
set of the paper's latent clusters (Kiselman & Levy, SP-CACW, arXiv 2606.29322). Whatever form it
comes in, the decoded images and labels must be the official ones, in the official order.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.config.declare import SpcacwError

from . import hub
from .cache import Arrays, checksum, decoded
from .cifar_forms import FORMS, PER_PART, Form, Split
from .sources import data_root

# SHA-256 of the pixels (n, 3, 32, 32) of each 5,000 images in the official order, and of the coarse
# and then the fine labels. Together they are the official train.bin and test.bin, bit for bit: the
# tests put them together (md5 6172c7755cfe09b2fe270c85cebc1b15, 4499cfba6c016c1be1438163640a0898).
PIXELS: dict[str, tuple[str, ...]] = {
    "train": (
        "a2a49d7588afcaa0cd7f89b95516b70a8c60eb941a20c517c3cf7ce3d211338d",
        "0844b0e5cfcab89a13eecff5059976c8b60e701d6743d171ba6c5aa0e5e3da4c",
        "7fab87cfc46fee0e5e6f8714c1fe2e12e28df39c0e65d5d8e3f3545a8612462a",
        "15897f11eb0baae1d5e3afff74d110c626d4998930e7909b7b34bdf9c995fa81",
        "afc7ebe7803b660e9a634fc3859a78db78303f7f3ecca73d73afa1a7985ea553",
        "3d38fc16274db5cc06820fe6e386409df296b1ccbcd4cafc53d9b7a2b9344042",
        "ed9db2036f9d711efd2e600859794f41e1a2bcb2150b1ad92f5b46db2315a381",
        "52c6f5c8b2c8bce040dd2fa1e3bf9c9f9ad72a6f43a901de4b4ca638f049a24f",
        "bca7489596afc392094b0a7323c31b0396960bb18af3e14656767aee728e0032",
        "cfb475df17ab0c47d3ceb420175557db7d4976617416bbde72f4e1a41d33667e",
    ),
    "test": (
        "7573024b706bcda4270160e95151c122467db61f37be8ac0aeab15356702d8dd",
        "62c7b8be3c3147593f0f03c6a1a3e0d14b19a69b3c18cd496650012472ccf750",
    ),
}
LABELS = {
    "train": "9aca576c8861cfcc0e808abd6d64fa6339b2e46cbe1bd0425145461894029508",
    "test": "5264cdf995cc50c8e81f0ec6d5d7240914cd5777d02c21e372eeb576655c7dc0",
}


@dataclass(frozen=True)
class Cifar100:
    """uint8 images (50000, 3, 32, 32) and (10000, 3, 32, 32), and their fine labels."""

    x_train: NDArray[np.uint8]
    y_train: NDArray[np.uint8]
    x_test: NDArray[np.uint8]
    y_test: NDArray[np.uint8]


def load_cifar100(data_dir: str = "") -> Cifar100:
    """Return CIFAR-100 from ``data_dir``, fetching it from the hub if it is absent.

    Parameters
    ----------
    data_dir : str
        Holds one of the forms of ``cifar_forms``, here or in ``cifar100/``; it may be read-only.
        Empty: ``~/.cache/spcacw/data``.

    Returns
    -------
    Cifar100
        Kept for the life of the process; the arrays cannot be written to.

    Raises
    ------
    SpcacwError
        A file is damaged or lacks, or the data are absent and cannot be fetched.
    """
    return _load(data_root(data_dir))


@lru_cache(maxsize=2)
def _load(root: Path) -> Cifar100:
    found = find(root)
    if found is None:
        with contextlib.suppress(OSError):  # if it cannot be made, fetching says so
            root.mkdir(parents=True, exist_ok=True)
        source = hashlib.sha256("".join([hub.CIFAR100, *LABELS.values()]).encode()).hexdigest()
        arrays = decoded("cifar100-hub", source, root, lambda: _decode(*_from_hub(root)))
    else:
        base, form = found
        source = checksum([base / name for name in form.files])
        arrays = decoded(
            "cifar100", source, base, lambda: _decode(form.reader(base), form.blame(base))
        )
    return Cifar100(**arrays)


def find(root: Path) -> tuple[Path, Form] | None:
    """Return the first complete form and its directory; None if there is no trace of any.

    Raises SpcacwError, naming the missing files, if a form is there only in part.
    """
    partial = ""
    for base in (root, root / "cifar100"):
        for form in FORMS:
            lacking = [name for name in form.files if not (base / name).is_file()]
            if not lacking:
                return base, form
            if len(lacking) < len(form.files) and not partial:
                partial = (
                    f"{', '.join(lacking)} lacking of CIFAR-100 as {form.name} in {str(base)!r}"
                )
    if partial:
        raise SpcacwError(
            f"There is {partial}: put the rest there, or point the config key data-dir elsewhere."
        )
    return None


def _from_hub(root: Path) -> tuple[Callable[[str], Split], Callable[[str, int | None], str]]:
    instead = (
        f"put CIFAR-100 into {str(root / 'cifar100')!r} (cifar-100-python/ as torchvision has it, "
        "cifar-100-binary/, or WebP mosaics), or set the config key data-dir to its directory"
    )
    splits = hub.fetch(hub.CIFAR100, ("train", "test"), root, instead)

    def read(name: str) -> Split:
        split = splits[name]
        fine, coarse = hub.labels(split, "fine_label"), hub.labels(split, "coarse_label")
        return Split(hub.images(split, "img"), fine, coarse)

    return read, lambda name, part: f"{hub.CIFAR100} of the hub, {name} split, in {root / 'hub'}"


def _decode(read: Callable[[str], Split], blame: Callable[[str, int | None], str]) -> Arrays:
    """Read and check both splits; the coarse labels are only checked."""
    arrays: dict[str, NDArray[np.uint8]] = {}
    for name in ("train", "test"):
        split = read(name)
        check(name, split, blame)
        arrays |= {f"x_{name}": split.x, f"y_{name}": split.fine}
    return arrays


def check(name: str, split: Split, blame: Callable[[str, int | None], str]) -> None:
    """Raise SpcacwError, naming the file, unless the split is the official one."""
    if hashlib.sha256(split.coarse.tobytes() + split.fine.tobytes()).hexdigest() != LABELS[name]:
        counts = np.bincount(split.fine, minlength=100)
        raise _damaged(
            blame(name, None),
            f"its {name} labels are not the official ones ({len(split.fine)} labels, from "
            f"{counts.min()} to {counts.max()} of a class)",
        )
    parts = [split.x[i : i + PER_PART] for i in range(0, len(split.x), PER_PART)]
    for part, expected in enumerate(PIXELS[name]):
        got = parts[part].tobytes() if part < len(parts) else b""
        if hashlib.sha256(got).hexdigest() != expected:
            first, last = part * PER_PART, (part + 1) * PER_PART - 1
            how = f"{name} images {first} … {last} are not the official ones"
            raise _damaged(blame(name, part), how)


def _damaged(file: str, how: str) -> SpcacwError:
    return SpcacwError(
        f"CIFAR-100 is damaged: {file}: {how}; delete it or put an intact copy in its place, or "
        "point the config key data-dir at another directory."
    )
