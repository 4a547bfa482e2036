"""When a run is checkpointed, and how it goes on from there.

A checkpoint is made between two rounds, where no question is on its way. It holds every object that
the run named when it started (``{"method": method, …}``) and what identifies the run: resolved
configuration, the model's tensors, what the silos told of themselves, versions.
"""

from __future__ import annotations

import dataclasses
import io
import logging
import shutil
import time
import tomllib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from spcacw_flwr.config.config import Config, flattened
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine import checkpoint, state
from spcacw_flwr.engine.directory import lengths
from spcacw_flwr.silos.protocol import Federation

log = logging.getLogger(__name__)

SECONDS, SHARE = 10.0, 0.05
"""With ``checkpoint-every = 0``: least time between two checkpoints, and most of a run's time."""
ROOM = 2 * 2
"""Free space wanted, in first checkpoints: for two, which may grow to twice their first size."""


class Keeper:
    """Keeps the checkpoint of one run.

    Parameters
    ----------
    directory : Path
        The run's directory.
    config, federation
        Those of the run.
    objects : mapping
        What has state, by name; ``objects["method"]`` is the method. All fresh.

    Raises
    ------
    SpcacwError
        If an object has state that cannot be kept.
    """

    def __init__(
        self, directory: Path, config: Config, federation: Federation, objects: Mapping[str, Any]
    ) -> None:
        self.home, self.directory = directory, directory / checkpoint.DIRECTORY
        self.config, self.federation = config, federation
        self.objects = dict(objects)
        self.inputs = state.inputs_of(config, federation)
        self.device = str(objects["method"].parameters.device)
        self._bytes = len(_bytes_of(self.objects, self.inputs))
        self._written, self._cost = time.perf_counter(), 0.0

    def check_room(self) -> None:
        """See, before training, that checkpoints can be written; SpcacwError if not."""
        try:
            self.directory.mkdir(exist_ok=True)
            (self.directory / "part").write_bytes(b"")
            (self.directory / "part").unlink()
            free = shutil.disk_usage(self.directory).free
        except OSError as error:
            raise SpcacwError(f"{self.directory} cannot be written: {error}.") from error
        if free < ROOM * self._bytes:
            raise SpcacwError(
                f"output = '{self.home}' has room for {free / 1e6:.0f} MB, and checkpoints want "
                f"{ROOM * self._bytes / 1e6:.0f} MB: free some, name another directory, or set "
                "checkpoint-every = -1 to go without them."
            )

    def due(self, round_: int, rounds: int) -> bool:
        """Say whether a checkpoint is to be made after round t of ``rounds``."""
        if round_ == rounds:
            return True
        if every := self.config.run.checkpoint_every:
            return round_ % every == 0
        waited = time.perf_counter() - self._written
        ends_epoch = round_ % self.federation.rounds_per_epoch == 0
        return ends_epoch and waited >= max(SECONDS, self._cost / SHARE)

    def save(self, round_: int, history: Mapping[str, Any], notes: Mapping[str, Any]) -> bool:
        """Make the checkpoint after round t; if that fails, say so, and keep the one before.

        ``history`` is kept like an object, ``notes`` as they are.
        """
        start = time.perf_counter()
        try:
            objects = self.objects | {"history": history}
            checkpoint.save(self.directory, partial(state.save, objects, self.inputs), {
                "version": checkpoint.package_version(), "round": round_,
                "config": self.config.to_flat(), "model": checkpoint.of_model(
                    self.federation.layout), "silos": checkpoint.of_silos(self.federation.silos),
                "lengths": lengths(self.home), **notes, "objects": sorted(self.objects),
                "device": self.device,
            })  # fmt: skip
        except (OSError, SpcacwError) as error:
            log.warning("Round %s goes on without a checkpoint (%s).", round_, error)
            return False
        finally:
            self._written = time.perf_counter()
            self._cost = self._written - start
        return True

    def resume(self) -> dict[str, Any] | None:
        """Put the objects into the state of the checkpoint and return its other content.

        None if the run was ended before its first checkpoint.

        Raises
        ------
        SpcacwError
            If the checkpoint is damaged, or of another run; the objects are then as they were.
        """
        if not checkpoint.exists(self.directory):
            self._see_same(unfinished(self.home))
            return None
        content, path = checkpoint.load(self.directory)
        self._see_same(
            content["config"],
            checkpoint.differing_model(content["model"], checkpoint.of_model(
                self.federation.layout)),
            checkpoint.differing_silos(content["silos"], checkpoint.of_silos(
                self.federation.silos)),
        )  # fmt: skip
        if content["config"]["epochs"] != self.config.run.epochs:
            self._see_growing(content["config"]["epochs"])
        if content["objects"] != sorted(self.objects):
            raise SpcacwError(
                f"The checkpoint in {self.directory} holds {', '.join(content['objects'])}, and "
                f"this run has {', '.join(sorted(self.objects))}: go on with the version that "
                "wrote it."
            )
        devices = {content["device"]: self.device}
        return content | state.load(path, self.objects, self.inputs, devices)

    def _see_same(self, config: Mapping[str, Any], *more: list[str]) -> None:
        before = Config.from_flat(config).to_flat()  # of an older version, keys have moved
        phrases = checkpoint.differing_keys(before, self.config.to_flat())
        phrases += [phrase for some in more for phrase in some]
        if phrases:
            raise SpcacwError(
                f"The run in {self.home} is another: {'; '.join(phrases)}. Going on, epochs may "
                f"grow, and these may differ: {', '.join(checkpoint.FREE)}."
            )

    def _see_growing(self, before: int) -> None:
        """See that the method's state is the same, had it known of all epochs from the start."""
        method = self.objects["method"]
        run = dataclasses.replace(self.config.run, epochs=before)
        shorter = dataclasses.replace(self.config, run=run)
        made = type(method)(shorter, self.federation, method.parameters)
        inputs = state.inputs_of(shorter, self.federation)
        if _bytes_of({"method": method}, self.inputs) != _bytes_of({"method": made}, inputs):
            raise SpcacwError(
                f"epochs was {before} and is {self.config.run.epochs}: what "
                f"{self.config.run.method} does depends on how many epochs there are, so it cannot "
                "go on for more; start the run anew in another directory."
            )


def _bytes_of(objects: Mapping[str, Any], inputs: Mapping[str, Any]) -> bytes:
    """Return a state as it would be written; SpcacwError if it cannot be kept."""
    buffer = io.BytesIO()
    state.save(objects, inputs, buffer)
    return buffer.getvalue()


def unfinished(home: Path) -> dict[str, Any]:
    """Return the keys of a run that was ended before its first checkpoint, from config.toml.

    Raises
    ------
    SpcacwError
        If there is no such run.
    """
    path = home / "config.toml"
    try:
        keys = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise SpcacwError(f"{home} holds no run to go on with ({error}).") from error
    if keys.get("checkpoint-every", -1) == -1 or (home / "summary.json").exists():
        raise SpcacwError(f"The run in {home} left no checkpoint: there is no going on from it.")
    return flattened(keys)
