"""Start ``flwr run`` so that it works, wait for its end, and report truthfully how it ended.

Plain ``flwr run .`` installs dependencies on every run, keeps a SuperLink running for ever in the
directory where it was first started, and exits with 0 even when the run failed. Here each run gets
its own SuperLink, on a free port, in a neutral directory with its own Flower home. All of it is
gone afterwards.
"""

import importlib
import json
import logging
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

import spcacw_flwr
from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.directory import STOP, write_atomically
from spcacw_flwr.engine.recorder import as_toml
from spcacw_flwr.engine.simulate import SMALL_ROUND
from spcacw_flwr.flower import processes
from spcacw_flwr.flower.processes import Program, environment, free_port, listens, named

log = logging.getLogger(__name__)
ROOMS = ("spcacw_flwr", "baselines", "partitions")
"""The parts of the package that the Flower app ships."""
CONNECTION = "spcacw"
ENDED = ("finished", "failed")
HOME = "spcacw-"
"""How the names of temporary Flower homes begin."""
MORE = "For more information, visit"
"""Flower's messages end with these words and the address of a page."""
Show = Callable[[dict[str, Any]], None]


def nobody(address: str) -> str:
    """Return that no SuperLink is there, and what to do."""
    return f"nothing listens at {address}: start 'spcacw deploy server', or give its --port."


class Died(SpcacwError):
    """A run ended without saying how: its process is gone."""


def write_app(directory: Path) -> None:
    """Lay out the Flower app: its manifest and the packages that it ships, nothing else.

    The manifest is in the installed package, or at a checkout's root.
    """
    package = Path(spcacw_flwr.__file__).parent
    manifests = [at / "pyproject.toml" for at in (package, package.parent)]
    manifest = next((path for path in manifests if path.is_file()), None)
    if manifest is None:
        raise SpcacwError(f"pyproject.toml is missing beside {package}: install the project again.")
    directory.mkdir()
    shutil.copy(manifest, directory)
    ignore = shutil.ignore_patterns("__pycache__", "*.toml", "experiments", *ROOMS[1:])
    for room in ROOMS:
        name = room if room == "spcacw_flwr" else f"spcacw_flwr.{room}"
        source = importlib.import_module(name).__path__[0]
        shutil.copytree(source, directory / room, ignore=ignore)


class Link:
    """A SuperLink as Flower's CLI knows it: the connection CONNECTION in ``home``/config.toml.

    ``how`` has the settings by which it is reached at its ``address``.
    """

    def __init__(self, home: Path, address: str, **how: Any) -> None:
        import tomli_w  # a machine that only runs the in-process engine may lack it

        self.home, self.address = home, address
        connection = {"default": CONNECTION, CONNECTION: {"address": address, **how}}
        content = tomli_w.dumps({"superlink": connection}).encode()
        write_atomically(home / "config.toml", content)  # others may be reading it

    def cli(self, *arguments: str) -> dict[str, Any]:
        """Run ``flwr … --format json`` and return its answer.

        SpcacwError, with the command's own words, if it fails.
        """
        done = self._flwr(*arguments, "--format", "json")
        said: dict[str, Any] = {}
        with suppress(json.JSONDecodeError):
            said = dict(json.loads(done.stdout))
        if done.returncode == 0 and said.get("success", True) and said:
            return said
        words = said.get("error-message") or done.stderr or done.stdout
        words = words.partition(MORE)[0].strip() or f"exit {done.returncode}"
        raise SpcacwError(f"'flwr {arguments[0]}' failed: {words.splitlines()[-1]}")

    def _flwr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Flower's command against this SuperLink; a hang counts as a failure."""
        command = [str(processes.PROGRAMS / "flwr"), *arguments]
        if not listens(self.address):  # Flower would try for half a minute
            return subprocess.CompletedProcess(command, 1, "", nobody(self.address))
        try:
            return subprocess.run(
                command, cwd=self.home, env=environment(self.home), capture_output=True,
                text=True, timeout=processes.START_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            said = f"no answer within {processes.START_SECONDS:g} s"
            return subprocess.CompletedProcess(command, 1, "", said)

    def submit(self, config: Config, *more: str) -> str:
        """Write the app again, submit a run of it, and return the run's id."""
        (Path(config.run.output) / "status.json").unlink(missing_ok=True)  # of a run that goes on
        app, overrides = self.home / "app", self.home / "run.toml"
        shutil.rmtree(app, ignore_errors=True)
        write_app(app)
        overrides.write_text(as_toml(config.to_flat()), encoding="utf-8")
        said = self.cli("run", str(app), CONNECTION, "--run-config", str(overrides), *more)
        return str(said["run-id"])

    def save_log(self, run_id: str, path: Path) -> None:
        """Save the app's log, if there is room; how the run ended is reported in any case."""
        done = self._flwr("log", run_id, CONNECTION, "--show")
        try:
            write_atomically(path, (done.stdout + done.stderr).encode())
        except OSError as error:
            log.warning("What the app logged is lost: %s.", error)


def end_left() -> None:
    """End the SuperLinks of launchers that were killed: nothing else would."""
    for lock in Path(tempfile.gettempdir()).glob(f"{HOME}*/{processes.LOCK}"):
        with suppress(OSError, SpcacwError):  # another user's, or in use
            if lock.parent.lstat().st_uid == os.getuid():
                with processes.owning(lock.parent):
                    shutil.rmtree(lock.parent, ignore_errors=True)


@contextmanager
def flower(log: Path) -> Iterator[Link]:
    """Run a SuperLink that simulates nodes, for the block; its output goes to the file ``log``."""
    end_left()
    with (
        tempfile.TemporaryDirectory(prefix=HOME, ignore_cleanup_errors=True) as name,
        processes.owning(Path(name)),
    ):
        home, port = Path(name), free_port()
        command = [
            str(processes.PROGRAMS / "flower-superlink"), "--insecure", "--host", "127.0.0.1",
            "--port", str(port), "--simulation",
        ]  # fmt: skip
        Program(command, home, log).start(port=port)
        yield Link(home, f"127.0.0.1:{port}", insecure=True)


def run(config: Config, num_silos: int, show: Show) -> None:
    """Run the app under Ray until it has ended; ``show`` gets its status, poll by poll.

    ``config.run.output`` must be an absolute directory that exists. SpcacwError if training did
    not finish: the sentence says why.
    """
    if config.run.node_gpus > (gpus := torch.cuda.device_count()):
        raise SpcacwError(
            f"node-gpus = {config.run.node_gpus:g} is more than this machine has ({gpus}): leave "
            "it out, or give each node a share."
        )
    directory = Path(config.run.output)
    # Messages take most of a perceptron's small round: with one node there are the fewest.
    small = config.training.model == "mlp" and num_silos * config.samples_per_round <= SMALL_ROUND
    nodes = config.run.nodes or (1 if small else min(num_silos, os.cpu_count() or 1))
    with flower(directory / "flower.log") as link:
        run_id = link.submit(
            config, "--federation-config", f"num-supernodes={nodes} "
            f"client-resources-num-cpus=1 client-resources-num-gpus={config.run.node_gpus}",
        )  # fmt: skip

        def simulating() -> bool:
            return listens(link.address) and bool(named("flwr-simulation", link.home))

        follow(link, run_id, directory, show, simulating, patience=0)


def read_status(directory: Path) -> dict[str, Any]:
    """Return the status that the run has written; empty before it has written one."""
    try:
        return dict(json.loads((directory / "status.json").read_text()))
    except FileNotFoundError:
        return {}


def follow(
    link: Link, run_id: str, directory: Path, show: Show, running: Callable[[], bool],
    patience: float = processes.START_SECONDS,
) -> None:  # fmt: skip
    """Show a run's status until it has ended or ``running`` says that its process is gone.

    When training has finished, that process has ``patience`` seconds to end. The app's log is left
    in ``directory``, next to its results. SpcacwError if training did not finish: the sentence says
    why. Died if the app itself did not say why.
    """
    try:
        try:
            status = _watch(directory, show, running)
        except KeyboardInterrupt:
            _let_stop(link, directory)
            raise
        deadline = time.monotonic() + patience
        while status.get("state") == "finished" and time.monotonic() < deadline and running():
            time.sleep(processes.POLL_SECONDS)
    finally:
        if listens(link.address):
            link.save_log(run_id, directory / "run.log")
    if status.get("state") == "failed":
        raise SpcacwError(status["error"])
    if status.get("state") != "finished":
        raise Died(f"The run ended before training was done: see the logs in {directory}.")


def _watch(directory: Path, show: Show, running: Callable[[], bool]) -> dict[str, Any]:
    """Show the run's status until it has ended or its process is gone; return the last one."""
    seen, deadline = False, time.monotonic() + processes.START_SECONDS
    while (status := read_status(directory)).get("state") not in ENDED:
        show(status)
        alive = running()
        seen = seen or alive
        if not alive and (seen or time.monotonic() > deadline):
            break
        time.sleep(processes.POLL_SECONDS)
    status = read_status(directory)
    show(status)
    return status


def _let_stop(link: Link, directory: Path) -> None:
    """Ask the ServerApp to end after its round, with a checkpoint, and give it a moment."""
    deadline = time.monotonic() + processes.STOP_SECONDS
    if read_status(directory).get("state") == "training":
        (directory / STOP).touch()
        while time.monotonic() < deadline and listens(link.address):
            if read_status(directory).get("state") in ENDED:
                break
            time.sleep(processes.POLL_SECONDS)
        (directory / STOP).unlink(missing_ok=True)
