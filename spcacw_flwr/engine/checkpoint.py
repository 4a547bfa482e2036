"""A checkpoint on disk: the state of objects, notes in JSON, and checksums of both.

A directory ``checkpoint`` holds ``checkpoint.json`` and the file of states that it names. Both
are written beside the ones before and flushed to the disk; the rename of the JSON file is the
moment at which the new checkpoint replaces the old, which is deleted only then. A crash at any
moment leaves a complete checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.silos.layout import Layout
from spcacw_flwr.silos.protocol import SiloInfo

FORMAT = 2
DIRECTORY, NOTES = "checkpoint", "checkpoint.json"
FREE = (
    "engine", "nodes", "node-gpus", "device", "threads", "output", "resume", "data-dir",
    "compare-alone", "tensorboard", "node-timeout", "round-timeout", "checkpoint-every", "exchange",
    "stream-address", "stream-certificate", "stream-key",
)  # fmt: skip
"""Keys that say where and how fast a run is made, or what is made beside it."""


def package_version() -> str:
    """Return the version of this package; empty in a checkout that is not installed."""
    try:
        return version("spcacw-flwr")
    except PackageNotFoundError:
        return ""


def save(directory: Path, write: Callable[[IO[bytes]], None], content: Mapping[str, Any]) -> None:
    """Replace the checkpoint in ``directory``; ``write`` writes the state into a file.

    Raises
    ------
    OSError
        If the disk is full or cannot be written; the checkpoint before is still there.
    """
    directory.mkdir(exist_ok=True)
    part = directory / "part"
    try:
        with part.open("wb+") as file:
            try:
                write(file)
            except RuntimeError as error:  # what PyTorch makes of a full disk
                raise OSError(str(error.__context__ or error).partition("\n")[0]) from error
            file.flush()
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        name = f"{digest[:16]}.pt"
        os.replace(part, directory / name)
        text = json.dumps({**content, "format": FORMAT, "state": name, "state_sha256": digest})
        with part.open("w", encoding="utf-8") as file:
            file.write(json.dumps({"sha256": _digest(text)})[:-1] + f', "content": {text}}}\n')
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, directory / NOTES)
        _flush(directory)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    for old in directory.glob("*.pt"):
        if old.name != name:
            old.unlink()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _flush(directory: Path) -> None:
    """Let the renames reach the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def exists(directory: Path) -> bool:
    """Say whether there is a checkpoint, whole or not, in ``directory``."""
    return (directory / NOTES).exists()


def load(directory: Path) -> tuple[dict[str, Any], Path]:
    """Return the content of the checkpoint in ``directory``, and its file of states.

    Raises
    ------
    SpcacwError
        If a file is missing, cut off or altered, or of another version of this package.
    """
    notes = directory / NOTES
    with _intact(notes):
        whole = json.loads(notes.read_text(encoding="utf-8"))
        content = dict(whole["content"])
        if _digest(json.dumps(whole["content"])) != whole["sha256"]:
            raise ValueError("its checksum is another")
    for what, here in (("format", FORMAT), ("version", package_version())):
        if content[what] != here:
            raise SpcacwError(
                f"The checkpoint {notes} has {what} {content[what]}, and this spcacw-flwr has "
                f"{here}: go on with the one that wrote it."
            )
    path = directory / content["state"]
    with _intact(path), path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != content["state_sha256"]:
            raise ValueError("its checksum is another")
    return content, path


@contextmanager
def _intact(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpcacwError(
            f"The checkpoint's file {path} is damaged ({error}): there is no going on from it; "
            "start the run anew in another directory."
        ) from error


def of_model(layout: Layout | None) -> list[list[Any]]:
    """Return names and shapes of the model's tensors, as JSON."""
    return [[name, list(shape)] for name, shape in layout.shapes] if layout else []


def of_silos(silos: Iterable[SiloInfo]) -> list[list[Any]]:
    """Return each silo's number of samples, and a digest of all that it told, as JSON."""
    return [[info.size, _digest(repr(info))[:8]] for info in silos]


def differing_keys(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a phrase for each key that must not change and did; ``epochs`` may grow."""
    phrases = []
    for name in dict.fromkeys((*before, *now)):
        old, new = before.get(name), now.get(name)
        if old == new or name in FREE or (name == "epochs" and old and new and new > old):
            continue
        phrases.append(f"{name} was {json.dumps(old)} and is {json.dumps(new)}")
    return phrases


def differing_model(before: list[list[Any]], now: list[list[Any]]) -> list[str]:
    """Return a phrase for the first tensor of the model that was another."""
    for old, new in zip(before, now, strict=False):
        if old != new:
            return [f"the model's tensor {old[0]} {old[1]} is {new[0]} {new[1]} now"]
    if len(before) != len(now):
        return [f"the model had {len(before)} tensors and has {len(now)}"]
    return []


def differing_silos(before: list[list[Any]], now: list[list[Any]]) -> list[str]:
    """Return a phrase for the first silo that held other data."""
    for silo, (old, new) in enumerate(zip(before, now, strict=False)):
        if old[0] != new[0]:
            return [f"silo {silo} had {old[0]} training samples and has {new[0]}"]
        if old != new:
            return [f"silo {silo} tells other label counts or groups"]
    if len(before) != len(now):
        return [f"there were {len(before)} silos and are {len(now)}"]
    return []
