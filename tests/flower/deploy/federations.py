"""A small federation of real processes, and what its runs leave on disk."""

from __future__ import annotations

import json
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import torch

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine import checkpoint
from spcacw_flwr.engine.state import giving
from spcacw_flwr.flower import launch
from spcacw_flwr.flower.deploy.federation import Federation, lay_out
from spcacw_flwr.flower.deploy.places import Silo
from spcacw_flwr.flower.processes import family
from spcacw_flwr.silos.setup import checked_setting
from tests.watching import wait_until

SILOS = 4
KEYS = {
    "cluster-sizes": "2,2", "samples-per-silo": 100, "compare-alone": False, "node-timeout": 240.0,
    "round-timeout": 3.0, "half-life": 5.0, "cross-fit": 2, "checkpoint-every": 4,
}  # fmt: skip
"""Silos 0 and 1 are alike, and share the weight for ever; four rounds an epoch."""

"""In a checkpoint: b̂ (M, d), and how often each silo was heard."""


def laid_out(root: Path, **keys: object) -> Config:
    """A federation's directories, made in ``root``."""
    config = Config.from_flat(KEYS | keys)
    return lay_out(root, config, checked_setting(config))


def scattered(root: Path, elsewhere: Callable[[str], Path]) -> Federation:
    """The federation of ``root``, each silo's directory moved to where no other would look."""
    federation = Federation(root, SILOS)
    for silo, place in enumerate(federation.silos):
        moved = elsewhere(f"host-{silo}") / "silo"
        place.directory.rename(moved)
        federation.silos[silo] = Silo(moved)
    return federation


class Run:
    """A training that goes on in the background, seen through what it leaves on disk."""

    def __init__(
        self, federation: Federation, config: Config, output: Path, **keys: object
    ) -> None:
        self.federation, self.output = federation, output
        output.mkdir(exist_ok=True)
        self.config = Config.from_flat(config.to_flat() | {"output": str(output)} | keys)
        self.error: BaseException | None = None
        self.stop = False
        self.thread = threading.Thread(target=self._train)

    def _show(self, status: dict) -> None:
        if self.stop:
            raise KeyboardInterrupt

    def _train(self) -> None:
        try:
            self.federation.train(self.config, self._show)
        except BaseException as error:
            self.error = error

    @contextmanager
    def going_on(self) -> Iterator[Run]:
        self.thread.start()
        try:
            yield self
        finally:
            self.stop = True
            self.thread.join(timeout=120)

    @property
    def status(self) -> dict:
        return launch.read_status(self.output)

    @property
    def epoch(self) -> int:
        return self.status.get("epoch", 0)

    def wait_for_epochs(self, more: int, seconds: float = 240) -> None:
        """Wait until so many more epochs are over."""
        goal = self.epoch + more
        wait_until(lambda: self.epoch >= goal or self.error, seconds)
        assert self.error is None, self.error

    def finish(self, seconds: float = 240) -> BaseException | None:
        """Wait until the run has ended; return what ended it early."""
        self.thread.join(timeout=seconds)
        assert not self.thread.is_alive()
        return self.error

    def state(self) -> Any:
        """The method as the last checkpoint has it, which may be written anew just now."""
        while True:
            with suppress(SpcacwError, OSError, RuntimeError):  # of a file that is gone
                path = checkpoint.load(self.output / checkpoint.DIRECTORY)[1]
                with giving(defaultdict(lambda: None)):
                    return torch.load(path, weights_only=False)["method"]

    def reports(self, silo: int) -> int:
        """How many answers of a silo the method has used."""
        return int(self.state().folds[0].bias.reports[silo])

    def metrics(self) -> list[dict]:
        lines = (self.output / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


def processes(home: Path, program: str) -> list[psutil.Process]:
    """The living processes of a Flower home whose program has this name."""
    return [p for p in family(home) if any(program in part for part in p.cmdline()[:2])]


def kill(home: Path, program: str = "") -> None:
    """Kill by SIGKILL: a program, or everything of that host."""
    victims = processes(home, program)
    assert victims
    for victim in victims:
        victim.send_signal(signal.SIGKILL)
    psutil.wait_procs(victims, timeout=10)
