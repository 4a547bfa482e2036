"""Real processes, killed for real: what a run survives, and how it ends when it cannot.

One federation with TLS and keys, its silos answering in streams. Each silo's directory lies where
no other would look, so that a silo that works has only its own data. And one without keys, whose
silos answer by messages.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.registry import METHODS
from spcacw_flwr.engine import checkpoint
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.engine.state import giving
from spcacw_flwr.flower import certificates, launch
from spcacw_flwr.flower.federation import THREADS, Federation, lay_out, silo_program
from spcacw_flwr.flower.hosts import Silo
from spcacw_flwr.flower.processes import PROGRAMS, Program, end, family, free_port, listens, owning
from spcacw_flwr.silos.setup import checked_setting
from tests.test_end_to_end import EVERY, assert_same_training, flwr_run, metrics
from tests.watching import wait_until

pytestmark = pytest.mark.slow

LONG = {"epochs": 100_000}
SILOS = 4
KEYS = {
    "cluster-sizes": "2,2", "samples-per-silo": 100, "compare-alone": False, "node-timeout": 240.0,
    "round-timeout": 3.0, "weight-decay": 0.05, "beta": 0.02, "checkpoint-every": 4,
}  # fmt: skip
"""Silos 0 and 1 are alike, and share the weight for ever; four rounds an epoch."""


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

    def wait_for_epochs(self, more: int) -> None:
        """Wait until so many more epochs are over."""
        goal = self.status.get("epoch", 0) + more
        wait_until(lambda: self.status.get("epoch", 0) >= goal or self.error)
        assert self.error is None, self.error

    def finish(self) -> BaseException | None:
        """Wait until the run has ended; return what ended it early."""
        self.thread.join(timeout=240)
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
        return int(self.state().bias.reports[silo])


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


def log_of(run: Run) -> str:
    """What a run that is on has logged so far."""
    path = run.output.with_suffix(".log")
    run.federation.server.link().save_log(run.status["flower_run"], path)
    return path.read_text()


@pytest.fixture(scope="module", autouse=True)
def beats(tmp_path_factory):
    """Nodes that say that they live as often as Flower allows.

    It misses a node after two beats: after 20 seconds here, and a minute by default.
    """
    place = tmp_path_factory.mktemp("beats")
    (place / "sitecustomize.py").write_text(
        "import flwr.common.constant as of\n"
        "of.HEARTBEAT_DEFAULT_INTERVAL = of.HEARTBEAT_MIN_INTERVAL\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        paths = filter(None, [place, os.environ.get("PYTHONPATH")])
        patch.setitem(THREADS, "PYTHONPATH", os.pathsep.join(map(str, paths)))
        yield


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("federation")


@pytest.fixture(scope="module")
def config(root) -> Config:
    """That of a run on the federation, whose directories are made in ``root``."""
    config = Config.from_flat(KEYS | {"exchange": "stream"})
    return lay_out(root, config, checked_setting(config))


@pytest.fixture(scope="module")
def federation(root, config, tmp_path_factory):
    found = Federation(root, SILOS)
    for silo, place in enumerate(found.silos):
        moved = tmp_path_factory.mktemp(f"host-{silo}") / "silo"
        found.silos[silo] = Silo(place.directory.rename(moved))
    homes = [found.server.home, *(place.home for place in found.silos)]
    with found.running():
        assert len(family(*homes)) > SILOS
        yield found
    assert family(*homes) == []


def stranger(federation, directory, silo: int = 1) -> Silo:
    """A silo's directory that the federation knows nothing of, its key not registered."""
    place, data = Silo(directory), federation.silos[silo].directory / "data"
    place.make(silo, federation.server.directory / "ca.crt", str(data))
    return place


@contextmanager
def ended(*homes):
    """End what runs in these Flower homes, whatever happens."""
    try:
        yield
    finally:
        end(*homes)


def test_only_nodes_with_a_registered_key_and_the_right_authority_join(federation, tmp_path):
    """Three that must not: an unknown key, another authority, and plaintext."""
    address = federation.server.address
    unknown, wrong, plain = (stranger(federation, tmp_path / n) for n in ("key", "ca", "plain"))
    certificates.make_authority(tmp_path / "other")
    (wrong.directory / "ca.crt").write_bytes((tmp_path / "other" / "ca.crt").read_bytes())
    programs = [silo_program(place, address, free_port()) for place in (unknown, wrong, plain)]
    command = programs[2].command
    for option in ("--root-certificates", "--auth-supernode-private-key"):
        at = command.index(option)
        del command[at : at + 2]
    command.append("--insecure")
    with ended(*(program.home for program in programs)):
        for program in programs:
            program.start()
        said = [program.log.read_text for program in programs]
        wait_until(lambda: "Failed to initialize the connection" in said[0]())
        wait_until(lambda: "certificate" in said[1]().lower())
        time.sleep(3)
        for program in programs:
            assert "SuperNode ID" not in program.log.read_text()
    link = federation.server.link()
    nodes = {str(node["node-id"]) for node in link.cli("supernode", "list")["nodes"]}
    assert nodes == {path.stem for path in (federation.server.directory / "registered").iterdir()}


@pytest.fixture(scope="module")
def run(federation, config, root):
    """A run that is on, until somebody ends it."""
    with Run(federation, config, root / "long", **LONG).going_on() as found:
        found.wait_for_epochs(5)
        yield found


def test_without_the_target_a_run_ends_with_everything_saved(federation, run):
    run.wait_for_epochs(3)
    kill(federation.silos[0].home)
    error = run.finish()
    assert "Target silo 0 did not answer" in str(error)
    assert run.status["state"] == "failed"
    assert run.status["error"] == str(error)
    assert len(metrics(run.output)) >= 3
    assert (run.output / "checkpoint").is_dir()
    assert (run.output / "model.safetensors").is_file()


def test_superlink_and_serverapp_may_die(federation, config, root):
    """The run ends where an undisturbed one does."""
    server = federation.server
    with Run(federation, config, root / "run", epochs=120).going_on() as run:
        run.wait_for_epochs(3)
        kill(server.home, "flower-superlink")
        wait_until(lambda: processes(server.home, "flower-superlink") and listens(server.address))
        run.wait_for_epochs(3)
        kill(server.home, "flwr-serverapp")
        wait_until(lambda: processes(server.home, "flwr-serverapp"))
        assert run.finish() is None
    lines = metrics(run.output)
    assert [line["epoch"] for line in lines] == list(range(1, 121))
    undisturbed = simulate(Config.from_flat(KEYS | {"epochs": 120}))
    found = load_file(run.output / "model.safetensors")
    for name, part in undisturbed.parameters.items():
        torch.testing.assert_close(found[name], part, rtol=1e-2, atol=1e-3)
    assert lines[-1]["accuracy"] == pytest.approx(undisturbed.accuracy[-1], abs=0.6)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A SuperLink that looks for tasks often, and nodes that hold some silos each, without keys."""
    logs, nodes = tmp_path_factory.mktemp("plain"), []
    os.environ["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "0.05"
    home, port = logs / "home", free_port()
    superlink = [PROGRAMS / "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", port]
    with owning(home):
        Program([*map(str, superlink)], home, logs / "superlink.log").start(port=port)
        link = launch.Link(home, f"127.0.0.1:{port}", insecure=True)
        for silos in ("0,1,2,3", "4,5,6"):
            command = [
                str(PROGRAMS / "flower-supernode"), "--insecure", "--superlink", link.address,
                "--port", str(free_port()), "--node-config", f'silos="{silos}"',
            ]  # fmt: skip
            nodes.append(Program(command, link.home, logs / f"node-{silos[0]}.log").start())
        yield link
    for node in nodes:
        node.process.wait(timeout=30)


@pytest.mark.parametrize("method", METHODS if EVERY else ["fedfomo"])
def test_real_nodes_follow_the_in_process_trajectory_by_messages(plain, method, tmp_path):
    """One round, as a message takes seconds; fedfomo asks for gradients, and losses at own models.

    ``SPCACW_METHODS=all`` runs every method.
    """
    torch.set_num_threads(1)
    keys = {"samples-per-silo": 32, "epochs": 1, "compare-alone": False, "method": method}
    flwr_run(plain, tmp_path / "run", keys)
    assert_same_training(tmp_path / "run", simulate(Config.from_flat(keys)))
