"""Real processes, killed for real: what a run survives, and how it ends when it cannot.

One federation with TLS and keys, its silos answering in streams. Each silo's directory lies where
no other would look, so that a silo that works has only its own data.
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
from spcacw_flwr.engine import checkpoint
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.engine.state import giving
from spcacw_flwr.flower import certificates, launch
from spcacw_flwr.flower.federation import (
    THREADS,
    Federation,
    Silo,
    lay_out,
    register,
    silo_program,
)
from spcacw_flwr.flower.processes import end, family, free_port, listens
from spcacw_flwr.silos.setup import checked_setting
from tests.test_end_to_end import metrics
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


def earned(method: Any) -> float:
    """The weight of silo 1 over its share of all answers, which each round without it lessens."""
    reports = method.bias.reports
    return float(method.alpha[1] * reports[0] / reports[1])


@pytest.fixture(scope="module")
def run(federation, config, root):
    """A run that is on, until somebody ends it."""
    with Run(federation, config, root / "long", **LONG).going_on() as found:
        found.wait_for_epochs(5)
        yield found


def test_a_run_goes_on_without_a_silo_until_it_is_back(federation, run, tmp_path):
    """Silo 1 is killed and comes back; meanwhile silo 2 is late, and somebody claims to be 3."""
    thief = stranger(federation, tmp_path / "thief", 3)
    (node,) = register(federation.server, [thief.public_key], print)
    claim = silo_program(thief, federation.server.address, free_port())
    with ended(claim.home):
        run.wait_for_epochs(40)  # after fewer its weight is too uncertain to last
        kill(federation.silos[1].home)
        run.wait_for_epochs(2)
        before = run.state()
        claim.start()
        run.wait_for_epochs(5)
        after = run.state()
        # Not heard, not blamed: its bias estimate stays what it was, and it keeps the weight that
        # its evidence earned. How many rounds pass meanwhile is the machine's speed, so no fixed
        # weight will do: in process, up to 200 epochs without it leave 1.0 to 1.4 of what it
        # earned; a silo that is blamed has nothing left.
        old, new = before.bias, after.bias
        assert (new.reports > old.reports).tolist() == [True, False, True, True]
        assert torch.equal(new.estimate[1], old.estimate[1])
        assert not torch.equal(new.estimate[3], old.estimate[3])
        assert earned(after) > 0.5 * earned(before) > 0

        (late,) = processes(federation.silos[2].home, "flwr-clientapp")
        late.send_signal(signal.SIGSTOP)
        run.wait_for_epochs(3)
        heard = run.reports(2)
        run.wait_for_epochs(3)
        assert run.reports(2) == heard
        late.send_signal(signal.SIGCONT)
        wait_until(lambda: run.reports(2) > heard + 8)
        assert late.is_running()  # the same process: only its stale answer was thrown away

        known = run.reports(1)
        wait_until(lambda: run.reports(1) > known + 8)
        run.wait_for_epochs(20)
        assert earned(run.state()) > 0.5 * earned(before)  # heard again, and still not blamed
    said = log_of(run)
    assert f"Node {node} does not take part" in said
    assert "did not answer within 3 s" in said


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
