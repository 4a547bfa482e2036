"""Checkpoints of a run: their content, when they are made, and how a run goes on from one.

A checkpoint is made between two rounds, when no request is open. It holds every object that the
run named when it started (``{"method": method, …}``). It also holds what identifies the run: the
resolved configuration, the model's tensors, the silos' descriptions of themselves, versions.

A directory ``checkpoint`` holds ``checkpoint.json`` and the file of states that it names
(:mod:`spcacw_flwr.engine.state`), each with its checksum. Both are written next to the old files
and flushed to the disk. The new checkpoint replaces the old one when the JSON file is renamed; the
old states are deleted after that. A crash at any moment leaves a complete checkpoint.
"""

import dataclasses
import hashlib
import json
import logging
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spcacw_flwr import __version__
from spcacw_flwr.config.config import Config, flattened, read_toml
from spcacw_flwr.config.declare import Scarce, SpcacwError
from spcacw_flwr.engine import state
from spcacw_flwr.engine.directory import lengths, write_atomically
from spcacw_flwr.silos.protocol import Federation

log = logging.getLogger(__name__)

FORMAT = 7
DIRECTORY, NOTES = "checkpoint", "checkpoint.json"
FREE = (
    "engine", "nodes", "node-gpus", "device", "threads", "output", "resume", "data-dir",
    "compare-alone", "tensorboard", "mlflow", "wandb", "node-timeout", "round-timeout",
    "checkpoint-every", "exchange", "stream-address", "stream-certificate", "stream-key",
)  # fmt: skip
"""Keys that set where and how fast a run computes, or its extra outputs."""
SECONDS, SHARE = 10.0, 0.05
"""With ``checkpoint-every = 0``: least seconds between two, and their largest share of the time."""
ROOM = 2 * 2
"""Free space needed, in sizes of the first checkpoint: two that may each double in size."""


def save(directory: Path, states: bytes, content: Mapping[str, Any]) -> None:
    """Replace the checkpoint in ``directory``.

    Raises OSError if the disk is full or cannot be written. The old checkpoint is then kept.
    """
    directory.mkdir(exist_ok=True)
    digest = _digest(states)
    name = f"{digest[:16]}.pt"
    write_atomically(directory / name, states, flush=True)
    text = json.dumps({**content, "format": FORMAT, "state": name, "state_sha256": digest})
    notes = f'{{"sha256": "{_digest(text.encode())}", "content": {text}}}\n'
    write_atomically(directory / NOTES, notes.encode(), flush=True)
    for old in directory.iterdir():
        if old.name not in (name, NOTES):
            old.unlink()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def exists(directory: Path) -> bool:
    """Return whether ``directory`` holds a checkpoint, complete or not."""
    return (directory / NOTES).exists()


def load(directory: Path) -> tuple[dict[str, Any], Path]:
    """Return the content of the checkpoint in ``directory``, and the path of its file of states.

    Raises SpcacwError if a file is missing, cut off or altered, or if another version of this
    package wrote it.
    """
    notes = directory / NOTES
    with _intact(notes):
        whole = json.loads(notes.read_text(encoding="utf-8"))
        content = dict(whole["content"])
        if _digest(json.dumps(whole["content"]).encode()) != whole["sha256"]:
            raise ValueError("its checksum is another")
    for what, here in (("format", FORMAT), ("version", __version__)):
        if content[what] != here:
            raise SpcacwError(
                f"The checkpoint {notes} has {what} {content[what]}, and this spcacw-flwr has "
                f"{here}: go on with the one that wrote it."
            )
    path = directory / content["state"]
    with _intact(path):
        if _digest(path.read_bytes()) != content["state_sha256"]:
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


def identity_of(federation: Federation) -> dict[str, list[list[Any]]]:
    """Return the names and shapes of the model's tensors, and the silos' descriptions, for JSON.

    A silo's description is its number of samples, and a digest of everything it reports.
    """
    shapes = federation.layout.shapes if federation.layout else ()
    return {
        "model": [[name, list(shape)] for name, shape in shapes],
        "silos": [[info.size, _digest(repr(info).encode())[:8]] for info in federation.silos],
    }


def differing_keys(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a phrase for each key that must not change but did; ``epochs`` may grow."""
    phrases = []
    for name in dict.fromkeys((*before, *now)):
        old, new = before.get(name), now.get(name)
        if old == new or name in FREE or (name == "epochs" and old and new and new > old):
            continue
        phrases.append(f"{name} was {json.dumps(old)} and is {json.dumps(new)}")
    return phrases


def differing_identity(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a phrase for the first tensor of the model, and for the first silo, that differ."""

    def of_tensor(_: int, old: list[Any], new: list[Any]) -> str:
        return f"the model's tensor {old[0]} {old[1]} is {new[0]} {new[1]} now"

    def of_silo(silo: int, old: list[Any], new: list[Any]) -> str:
        if old[0] != new[0]:
            return f"silo {silo} had {old[0]} training samples and has {new[0]}"
        return f"silo {silo} tells other label counts or groups"

    phrases = []
    for what, phrase, count in (
        ("model", of_tensor, "the model had {} tensors and has {}"),
        ("silos", of_silo, "there were {} silos and are {}"),
    ):
        pairs = enumerate(zip(before[what], now[what], strict=False))
        found = [phrase(k, old, new) for k, (old, new) in pairs if old != new][:1]
        counts = len(before[what]), len(now[what])
        phrases += found or ([count.format(*counts)] if counts[0] != counts[1] else [])
    return phrases


class Keeper:
    """Keeps the checkpoint of the run in ``home``.

    ``objects`` maps names to fresh objects with state; ``objects["method"]`` is the method.
    Raises SpcacwError if a part of their state cannot be saved.
    """

    def __init__(
        self, home: Path, config: Config, federation: Federation, objects: Mapping[str, Any]
    ) -> None:
        self.home, self.directory = home, home / DIRECTORY
        self.config, self.federation = config, federation
        self.objects = dict(objects)
        self.inputs = state.inputs_of(config, federation)
        self.device = str(objects["method"].parameters.device)
        self._bytes = len(state.save(self.objects, self.inputs))
        self._written, self._cost = time.perf_counter(), 0.0

    def check_room(self) -> None:
        """Check, before training, that checkpoints can be written; SpcacwError if not."""
        try:
            self.directory.mkdir(exist_ok=True)
            (self.directory / "part").write_bytes(b"")
            (self.directory / "part").unlink()
            free = shutil.disk_usage(self.directory).free
        except OSError as error:
            raise SpcacwError(f"{self.directory} cannot be written: {error}.") from error
        if free < ROOM * self._bytes:
            raise Scarce(
                f"output = '{self.home}' has room for {free / 1e6:.0f} MB, and checkpoints want "
                f"{ROOM * self._bytes / 1e6:.0f} MB: free some, name another directory, or set "
                "checkpoint-every = -1 to go without them."
            )

    def due(self, round_: int, rounds: int) -> bool:
        """Return whether to make a checkpoint after round t of ``rounds``."""
        if round_ == rounds:
            return True
        if every := self.config.run.checkpoint_every:
            return round_ % every == 0
        waited = time.perf_counter() - self._written
        ends_epoch = round_ % self.federation.rounds_per_epoch == 0
        return ends_epoch and waited >= max(SECONDS, self._cost / SHARE)

    def save(self, round_: int, history: Mapping[str, Any], notes: Mapping[str, Any]) -> None:
        """Make the checkpoint after round t; if that fails, warn, and keep the old one.

        ``history`` is saved like an object. ``notes`` are saved as JSON, unchanged.
        """
        start = time.perf_counter()
        try:
            states = state.save(self.objects | {"history": history}, self.inputs)
            save(self.directory, states, {
                "version": __version__, "round": round_, "config": self.config.to_flat(),
                **identity_of(self.federation), "lengths": lengths(self.home), **notes,
                "device": self.device,
            })  # fmt: skip
        except (OSError, SpcacwError) as error:
            log.warning("Round %s goes on without a checkpoint (%s).", round_, error)
        finally:
            self._written = time.perf_counter()
            self._cost = self._written - start

    def resume(self) -> dict[str, Any] | None:
        """Restore the objects from the checkpoint and return its other content.

        Return None if the run ended before its first checkpoint.

        Raises SpcacwError if the checkpoint is damaged or belongs to another run. The objects are
        then unchanged.
        """
        if not exists(self.directory):
            # The run starts again. A user's own app learns the number of epochs late.
            epochs = {"epochs": self.config.run.epochs}
            self._see_same(unfinished(self.home) | epochs, [])
            return None
        content, path = load(self.directory)
        others = differing_identity(content, identity_of(self.federation))
        self._see_same(content["config"], others)
        if (before := content["config"]["epochs"]) != self.config.run.epochs:
            self._see_growing(before)
        devices = {content["device"]: self.device}
        return content | state.load(path, self.objects, self.inputs, devices)

    def _see_same(self, config: Mapping[str, Any], others: list[str]) -> None:
        before = Config.from_flat(config).to_flat()  # an older version had fewer keys
        if phrases := [*differing_keys(before, self.config.to_flat()), *others]:
            raise SpcacwError(
                f"The run in {self.home} is another: {'; '.join(phrases)}. Going on, epochs may "
                f"grow, and these may differ: {', '.join(FREE)}."
            )

    def _see_growing(self, before: int) -> None:
        """Check that a fresh method has the same state for the old and new number of epochs."""
        method = self.objects["method"]
        run = dataclasses.replace(self.config.run, epochs=before)
        shorter = dataclasses.replace(self.config, run=run)
        made = type(method)(shorter, self.federation, method.parameters)
        inputs = state.inputs_of(shorter, self.federation)
        if state.save({"method": method}, self.inputs) != state.save({"method": made}, inputs):
            raise SpcacwError(
                f"epochs was {before} and is {self.config.run.epochs}: what "
                f"{self.config.run.method} does depends on how many epochs there are, so it cannot "
                "go on for more; start the run anew in another directory."
            )


def unfinished(home: Path) -> dict[str, Any]:
    """Return the keys in config.toml of a run that ended before its first checkpoint.

    Raises SpcacwError if there is no such run.
    """
    keys = read_toml(home / "config.toml", f"{home} holds no run to go on with:")
    if keys.get("checkpoint-every", -1) == -1 or (home / "summary.json").exists():
        raise SpcacwError(f"The run in {home} left no checkpoint: there is no going on from it.")
    return flattened(keys)
