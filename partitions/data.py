"""The data sets: their files, the places of these files, and checks of their content.

Nothing is written into the directory that the user names: torchvision downloads into
:func:`cache_root`. We do not read files with torchvision, because its import takes seconds and it
unpacks .gz files next to the originals.
"""

import contextlib
import gzip
import hashlib
import io
import logging
import lzma
import os
import socket
import tempfile
import urllib.request
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from filelock import FileLock
from platformdirs import user_cache_dir

from spcacw_flwr.config.declare import SpcacwError

CACHE, OFFLINE = "SPCACW_CACHE_DIR", "SPCACW_OFFLINE"
"""Environment variables of a host: where to keep replaceable data; whether to stay offline.

They are not keys: a run's target must not choose where a silo writes, or make it go online."""
_UNPACK = {".gz": gzip.decompress, ".xz": lzma.decompress}
_ENDS = (*_UNPACK, "")  # if several exist, the last is used
# torchvision sets no time limit, and would hang for minutes behind a firewall that drops packets.
_NETWORK_TIMEOUT_S = 10.0
# Another process may be downloading 169 MB over a slow line; after this time we stop with an error.
_LOCK_TIMEOUT_S = 600.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Form:
    """Files that belong together, and the folders of a data directory where they may lie."""

    folders: tuple[str, ...]
    digests: Mapping[str, str]
    """The digest of each file, named without .gz or .xz."""


@dataclass(frozen=True)
class DataSet:
    """A data set, and its forms in the order in which they are looked for."""

    title: str
    what: str
    """What the user can put into the data directory."""
    loader: str
    """The class of torchvision.datasets that downloads the last form into the first of its folders,
    or the https folder that has its files; empty if it cannot be downloaded."""
    forms: tuple[Form, ...]


# SHA-256, or MD5, of the content of each file, unpacked.
_IDX = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
_MOSAICS = {  # lossless, 5,000 images each in 50 rows of 100, in the official order
    "train-00.webp": "0a41a2688f47aff8119684285158da91dcff2e5c9b52acf26e2b106a33474459",
    "train-01.webp": "0183365cd1afdbb4523c219273e0c5ec2bae814c6f66cc4e663f7d2b766ce6f6",
    "train-02.webp": "5b54d695e73bc105e1223e954d2ef38894102ce3e27c53070e012d81dababff4",
    "train-03.webp": "9420bc42f5b7ad7c0e4c63fa9f9889578708563599dff69dd4b1fbcaf1a6fb16",
    "train-04.webp": "23ac9a221e0bee37e5802e66ccc737c33dedb4bcac2ea96465dfd1953b7f1581",
    "train-05.webp": "a26f91ddb54c1883bebefe1c8808a5d9eddf87ab96739d6a92985413323f1580",
    "train-06.webp": "903062d9f836aef1af4daef55682ecd78d8cb61d70200487961fd553e03ea09b",
    "train-07.webp": "ad76a99595bf996dc54ed66280b1e3e9472b163928053ff8c426c596ad433421",
    "train-08.webp": "e5306a0a00be9ee1968e09ad2e452ba00b81b00589e3707e27b07b6468930b38",
    "train-09.webp": "74bd3a7750ac7332c9fa4a27d374f3121d9cbea4f2134858014ed49b5d043e2d",
    "test-00.webp": "9a46ce43b63e67d9ffa12400f6770d177a09a36af4b4ef7f6b0dbbc766ea545d",
    "test-01.webp": "2f95adbd7188b7106b5df1693ce772fe30fa067765876e2d3675e0022f3d5ba8",
    "labels.npz": "6db459cf5605b59782f3d2edcce3bb2a1ef004d3c0c52b96bac42a6eb3873c92",
}
_PICKLES = {  # the official files, with the MD5 that torchvision lists
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
}
_PLAYS = {  # in ASCII, without byte-order mark, with LF line ends
    "pg100.txt": "7ccfc8be7735eec8be6c834944e32abe9ee965173f411339892123ef82b8b6c4"
}
_HOSPITALS = {  # in the order of the silos
    "processed.cleveland.data": "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
    "processed.hungarian.data": "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
    "processed.switzerland.data": (
        "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314"
    ),
    "processed.va.data": "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
}
_FIELDS = {"LandmineData.mat": "2163ab20a80e33a8b65593c48cf283c540599dcb291105e63fa4af2ce24c2bea"}

MNIST = DataSet(
    "MNIST",
    "its four idx files (unpacked, or as .gz) in MNIST/raw",
    "MNIST",
    (Form(("MNIST/raw", "mnist/MNIST/raw"), _IDX),),
)
CIFAR100 = DataSet(
    "CIFAR-100",
    "torchvision's cifar-100-python",
    "CIFAR100",
    (
        Form(("", "cifar100"), _MOSAICS),
        Form(("cifar-100-python", "cifar100/cifar-100-python"), _PICKLES),
    ),
)
# "Copyright 1990-1993 by World Library, Inc.", for personal use: users must get it themselves.
SHAKESPEARE = DataSet(
    "Shakespeare",
    "Project Gutenberg's #100, the edition posted on September 1, 2011, as pg100.txt.xz, "
    "pg100.txt.gz or pg100.txt",
    "",
    (Form(("", "shakespeare"), _PLAYS),),
)

HEART = DataSet(
    "UCI heart disease",
    "processed.cleveland.data, processed.hungarian.data, processed.switzerland.data and "
    "processed.va.data",
    "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/",
    (Form(("heart", ""), _HOSPITALS),),
)
# No licence is stated: users must get it themselves.
LANDMINE = DataSet(
    "Landmine", "LandmineData.mat of Xue et al., 2007,", "", (Form(("", "landmine"), _FIELDS),)
)


def cache_root() -> Path:
    """Return this host's folder for downloads and decoded data; by default the platform's cache."""
    place = os.environ.get(CACHE) or user_cache_dir("spcacw", appauthor=False)
    return Path(place).expanduser().resolve()


def data_root(data_dir: str) -> Path:
    """Return the directory that ``data_dir`` names, or that of downloads if it is empty."""
    return Path(data_dir).expanduser().resolve() if data_dir else cache_root() / "data"


def find(data: DataSet, root: Path) -> dict[str, Path]:
    """Return the path of each file of the first complete form in ``root``, perhaps .gz or .xz.

    If ``root`` has none, search the directory of downloads; if that has none, download the data.

    Raises
    ------
    SpcacwError
        A form is incomplete, or there is none and the data cannot be downloaded.
    """
    store = data_root("")
    return _find(data, root) or _find(data, store) or _download(data, root, store)


def _find(data: DataSet, root: Path) -> dict[str, Path] | None:
    partial = ""
    for form in data.forms:
        for place in (root / folder for folder in form.folders):
            either = [(name, place / f"{name}{end}") for name in form.digests for end in _ENDS]
            there = {name: path for name, path in either if path.is_file()}
            lacking = ", ".join(name for name in form.digests if name not in there)
            if not lacking:
                return there
            if there and not partial:
                partial = f"{str(place)!r} has {data.title} only in part, without {lacking}"
    if partial:
        raise SpcacwError(
            f"{partial}: put the rest there, or set the config key data-dir to a directory that "
            "holds all of it."
        )
    return None


def read(data: DataSet, data_dir: str) -> dict[str, bytes]:
    """Return the content of each file; :func:`find` searches :func:`data_root` for it."""
    return {name: content(data, path) for name, path in find(data, data_root(data_dir)).items()}


def content(data: DataSet, path: Path) -> bytes:
    """Return the unpacked content of a file; SpcacwError if its digest is wrong."""
    name = path.stem if path.suffix in _UNPACK else path.name
    (want,) = (form.digests[name] for form in data.forms if name in form.digests)
    kind = "md5" if len(want) == 32 else "sha256"
    held, how = b"", f"the {kind} of its content is not {want}"
    try:
        held = _UNPACK.get(path.suffix, bytes)(path.read_bytes())
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        how = str(error)
    if name.endswith(".txt"):  # Gutenberg's own file has a byte-order mark and CRLF
        held = held.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n")
    if hashlib.new(kind, held, usedforsecurity=False).hexdigest() != want:
        raise SpcacwError(
            f"The {data.title} file {str(path)!r} is damaged or another edition ({how}): delete it "
            "or put an intact copy in its place, or set the config key data-dir to another "
            "directory."
        )
    return held


def _download(data: DataSet, root: Path, store: Path) -> dict[str, Path]:
    """Download the last form of ``data`` once, even if many processes ask for it at a time."""
    reason = ""
    try:
        if data.loader and os.environ.get(OFFLINE):
            raise OSError(f"{OFFLINE} is set, as it is wherever silos are real or a run goes on")
        if data.loader:
            store.mkdir(parents=True, exist_ok=True)
            with FileLock(store / f".{data.title}.lock", timeout=_LOCK_TIMEOUT_S):
                if (found := _find(data, store)) is None:
                    log.info("Downloading %s into %s", data.title, store)
                    _fetch(data, store)
                    found = _find(data, store)
            if found:
                return found
    # torchvision raises RuntimeError; urllib, sockets, the lock and the disk raise OSErrors.
    except (RuntimeError, OSError, HTTPException) as error:
        last = (str(error) or type(error).__name__).strip().splitlines()[-1].rstrip(".")
        reason = f" and could not be downloaded into {str(store)!r} ({last})"
    raise SpcacwError(
        f"{data.title} is not in {str(root)!r}{reason}: put {data.what} there, or set the config "
        "key data-dir to the directory that holds it."
    )


def _fetch(data: DataSet, store: Path) -> None:
    """Download without progress bars, and with a time limit on the network."""
    loader, form = data.loader, data.forms[-1]
    folder = form.folders[0]
    before, silence = socket.getdefaulttimeout(), io.StringIO()
    socket.setdefaulttimeout(_NETWORK_TIMEOUT_S)
    try:
        with (
            tempfile.TemporaryDirectory(dir=store, prefix=".download-") as scratch,
            contextlib.redirect_stderr(silence),
            contextlib.redirect_stdout(silence),
        ):
            if "://" in loader:
                _fetch_files(loader, form.digests, Path(scratch) / folder)
            else:
                from torchvision import datasets

                getattr(datasets, loader)(scratch, download=True)
            (store / folder).parent.mkdir(parents=True, exist_ok=True)
            (Path(scratch) / folder).rename(store / folder)  # all files appear in one step
    finally:
        socket.setdefaulttimeout(before)


def _fetch_files(url: str, digests: Mapping[str, str], folder: Path) -> None:
    folder.mkdir()
    for name, want in digests.items():
        with urllib.request.urlopen(url + name) as reply:
            held = reply.read()
        if hashlib.sha256(held).hexdigest() != want:
            raise OSError(f"{url}{name} is another file than it was")
        (folder / name).write_bytes(held)
