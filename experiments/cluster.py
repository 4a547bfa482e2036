"""Runs as tasks of a Ray cluster: Ray places them, and a run's files come back to this machine.

A node of the cluster needs this package, and the data at the same path. A task takes a core, or
its share of a GPU. If its node is lost, the task starts again on another. It leaves nothing behind.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray
import torch

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine import checkpoint
from spcacw_flwr.engine.directory import write_atomically
from spcacw_flwr.engine.simulate import simulate

CONNECT_SECONDS = 5.0
LOCAL = "local"
"""The address that starts a cluster of this machine alone."""


def away(flat: Mapping[str, Any]) -> dict[str, bytes]:
    """Run a flat configuration on this node; return the run's files by name."""
    torch.set_num_threads(1)
    with TemporaryDirectory() as place:
        directory = Path(place) / "run"
        with suppress(SpcacwError):  # the run's status has the reason
            simulate(Config.from_flat({**flat, "output": str(directory), "threads": 1}))
        files = [path for path in directory.rglob("*") if path.is_file()]
        named = {path.relative_to(directory): path.read_bytes() for path in files}
        return {str(name): c for name, c in named.items() if name.parts[0] != checkpoint.DIRECTORY}


class Cluster:
    """A Ray cluster that executes calls and runs.

    ``devices`` are those of a node: ``("cuda", "cuda")`` lets two runs share a GPU. SpcacwError if
    there is no cluster at the address.
    """

    def __init__(self, address: str, devices: tuple[str, ...] = ("cpu",)) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if not ray.is_initialized():
            try:
                if address != LOCAL:  # Ray itself would try for minutes
                    host, _, port = address.rpartition(":")
                    socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
                ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
            except (OSError, ValueError, RuntimeError) as error:
                raise SpcacwError(f"There is no Ray cluster at {address!r}: {error}.") from error
        gpus = 0 if devices[0] == "cpu" else 1 / len(devices)
        self.device = devices[0].partition(":")[0]
        self._task = ray.remote(num_cpus=0 if gpus else 1, num_gpus=gpus, max_retries=-1)(_call)
        total = ray.cluster_resources()
        self.places = int(total.get("GPU", 0) / gpus if gpus else total.get("CPU", 0))
        if not self.places:
            raise SpcacwError(f"The Ray cluster at {address!r} has no {self.device.upper()}.")
        self._refs: list[Any] = []

    def submit(self, call: Callable[..., Any], /, *args: Any) -> Future[Any]:
        """Return the future of a call that some node makes."""
        self._refs.append(self._task.remote(call, *args))
        return self._refs[-1].future()

    def run(self, flat: Mapping[str, Any]) -> Away:
        """Start a run; its ``output`` is its directory on this machine."""
        return Away(self.submit(away, {**flat, "device": self.device}), Path(flat["output"]), self)

    def shutdown(self, cancel_futures: bool = True) -> None:
        """Cancel the tasks that have not ended."""
        for ref in self._refs:
            ray.cancel(ref, force=True)
        self._refs.clear()


def _call(call: Callable[..., Any], *args: Any) -> Any:
    return call(*args)


class Away:
    """A run on some node, with the interface of a process."""

    exitcode = None

    def __init__(self, future: Future[dict[str, bytes]], home: Path, cluster: Cluster) -> None:
        self._future, self._home, self._cluster = future, home, cluster
        self.sentinel, ended = os.pipe()
        future.add_done_callback(lambda _: os.close(ended))

    def is_alive(self) -> bool:
        """Whether the run has not ended."""
        return not self._future.done()

    def join(self, timeout: float | None = None) -> None:
        """If the run has ended, write its files into its directory on this machine."""
        if self._future.done() and self.sentinel >= 0:
            os.close(self.sentinel)
            self.sentinel = -1
            if (error := self._future.exception()) is not None:
                raise SpcacwError(f"The Ray cluster lost a run: {error}.") from error
            for name, content in self._future.result().items():
                (self._home / name).parent.mkdir(parents=True, exist_ok=True)
                write_atomically(self._home / name, content)

    def terminate(self) -> None:
        """Cancel all runs of the cluster: the next sweep makes them anew."""
        self._cluster.shutdown()

    kill = terminate
