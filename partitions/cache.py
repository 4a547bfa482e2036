"""Decode a data set once: its arrays are kept on disk, and mapped into memory at the next start.

A cache entry is a directory of .npy files with a manifest of their checksums; its name carries a
checksum of the source, so that a changed source is decoded afresh. It lies beside the data or,
where those may not be written to, in ``~/.cache/spcacw/decoded``. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

log = logging.getLogger(__name__)

Arrays = Mapping[str, NDArray[Any]]

BESIDE = ".spcacw-decoded"
ELSEWHERE = "~/.cache/spcacw/decoded"
_MANIFEST = "manifest.json"
# Another process may be decoding; that takes seconds, or minutes on a busy machine.
_LOCK_TIMEOUT_S = 600.0


def checksum(paths: Sequence[Path]) -> str:
    """Return one SHA-256 of files: of their names and contents, in order."""
    total = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            total.update(
                f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode()
            )
    return total.hexdigest()


def decoded(name: str, source: str, root: Path, decode: Callable[[], Arrays]) -> Arrays:
    """Return the arrays of a data set, from its cache entry or by decoding it now.

    Parameters
    ----------
    name : str
        Of the data set.
    source : str
        Checksum of its source.
    root : Path
        The directory that the data are in.
    decode : callable
        Makes the arrays; what it raises is passed on, and leaves no entry.

    Returns
    -------
    Mapping of str to array
        They cannot be written to, and take no memory until they are looked at.
    """
    place = cache_directory(root)
    entry = place / f"{name}-{source[:16]}"
    arrays = _read(entry)
    if arrays is not None:
        return arrays
    try:
        place.mkdir(parents=True, exist_ok=True)
        lock = FileLock(place / f".{name}.lock", timeout=_LOCK_TIMEOUT_S)
        lock.acquire()
    except OSError as error:  # a lock that takes too long is one, too
        log.warning(
            "%s is decoded anew at each start, for %s cannot be used: %s", name, place, error
        )
        return decode()
    try:
        return _read(entry) or _fill(entry, decode())  # another process may have been faster
    finally:
        lock.release()


def cache_directory(root: Path) -> Path:
    """Return where the entries of data in ``root`` lie.

    A directory without any permission to write counts as read-only even for the superuser, who
    could write there but was told not to.
    """
    writable = root.is_dir() and os.access(root, os.W_OK) and root.stat().st_mode & 0o222
    return root / BESIDE if writable else Path(ELSEWHERE).expanduser()


def _read(entry: Path) -> Arrays | None:
    """Map the arrays of an entry into memory; None if it is absent or damaged."""
    try:
        manifest = json.loads((entry / _MANIFEST).read_text())
        if all(checksum([entry / f"{key}.npy"]) == digest for key, digest in manifest.items()):
            return {key: np.load(entry / f"{key}.npy", mmap_mode="r") for key in manifest}
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("%s cannot be read (%s) and is made again", entry, error)
        return None
    log.warning("%s is damaged and is made again", entry)
    return None


def _fill(entry: Path, arrays: Arrays) -> Arrays:
    """Write an entry that appears in one step; where the disk refuses, do without."""
    try:
        scratch = Path(tempfile.mkdtemp(prefix=".decoding-", dir=entry.parent))
        try:
            for key, array in arrays.items():
                np.save(scratch / f"{key}.npy", array, allow_pickle=False)
            digests = {key: checksum([scratch / f"{key}.npy"]) for key in arrays}
            (scratch / _MANIFEST).write_text(json.dumps(digests, indent=1))
            shutil.rmtree(entry, ignore_errors=True)
            scratch.chmod(0o755)  # mkdtemp lets nobody else in
            scratch.rename(entry)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        log.warning("%s could not be written (%s): it is decoded at each start", entry, error)
    for array in arrays.values():
        array.flags.writeable = False
    return arrays
