"""Start ``flwr run`` so that it works, wait, and say truthfully how it ended.

Plain ``flwr run .`` installs dependencies on every run, keeps a SuperLink running for ever in the
directory where it was first started, and exits with 0 when the run failed. Here each run gets a
SuperLink of its own, on a free port, in a neutral directory with a Flower home of its own, and all
of it is gone afterwards.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import spcacw_flwr
from spcacw_flwr.core import stop
from spcacw_flwr.core.artefacts import as_toml
from spcacw_flwr.core.config import Config
from spcacw_flwr.keys import SpcacwError

ENVIRONMENT = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""What Flower and Ray need in order to use the installed packages and no network."""
PROGRAMS = Path(sys.executable).parent
PACKAGES = ("spcacw_flwr", "baselines", "partitions")
START_SECONDS = 60.0
STOP_SECONDS = 10.0
POLL_SECONDS = 0.25
ENDED = ("finished", "failed")


def app_manifest() -> Path:
    """Return the app's pyproject.toml: in the installed package, or at a checkout's root."""
    package = Path(spcacw_flwr.__file__).parent
    for path in (package / "pyproject.toml", package.parent / "pyproject.toml"):
        if path.is_file():
            return path
    raise SpcacwError(f"pyproject.toml is missing beside {package}: install the project again.")


def write_app(directory: Path) -> None:
    """Lay out the Flower app: its manifest and the packages that it ships, nothing else."""
    directory.mkdir()
    shutil.copy(app_manifest(), directory / "pyproject.toml")
    root = Path(spcacw_flwr.__file__).parent.parent
    for package in PACKAGES:
        ignore = shutil.ignore_patterns("__pycache__", "*.toml")
        shutil.copytree(root / package, directory / package, ignore=ignore)


def free_port() -> int:
    """Return a port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Flower:
    """A private SuperLink in simulation mode, and the CLI calls that talk to it."""

    home: Path
    environment: dict[str, str]
    process: subprocess.Popen[bytes]
    address: str

    def cli(self, *arguments: str) -> dict[str, Any]:
        """Run ``flwr … --format json`` and return what it says.

        Raises
        ------
        SpcacwError
            If the command fails, with what it said.
        """
        done = self._flwr(*arguments, "--format", "json")
        said: dict[str, Any] = {}
        with suppress(json.JSONDecodeError):
            said = dict(json.loads(done.stdout))
        if done.returncode == 0 and said.get("success", True) and said:
            return said
        words = said.get("error-message") or done.stderr or done.stdout or f"exit {done.returncode}"
        raise SpcacwError(f"'flwr {arguments[0]}' failed: {words.strip().splitlines()[-1]}")

    def start(self, config: Config, num_silos: int) -> str:
        """Submit the run and return its id."""
        overrides = self.home / "run.toml"
        overrides.write_text(as_toml(config.to_flat()), encoding="utf-8")
        nodes = config.run.nodes or num_silos
        said = self.cli(
            "run", str(self.home / "app"), "spcacw", "--run-config", str(overrides),
            "--federation-config", f"num-supernodes={nodes} client-resources-num-cpus=1 "
            f"client-resources-num-gpus={config.run.node_gpus}",
        )  # fmt: skip
        return str(said["run-id"])

    def family(self) -> list[psutil.Process]:
        """Return the living processes of this SuperLink, orphans too: all inherit its home."""
        home, members = str(self.home), []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                ours = process.environ().get("FLWR_HOME") == home
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    members.append(process)
        return members

    def alive(self) -> bool:
        """Say whether the SuperLink itself is alive."""
        return self.process.poll() is None

    def simulating(self) -> bool:
        """Say whether the process that runs ServerApp and silos is alive."""
        names = []
        for member in self.family():
            with suppress(psutil.Error):
                names.append(member.name())
        return any(name.startswith("flwr-simulation") for name in names)

    def stop(self) -> None:
        """End the SuperLink and everything it started (its children outlive it by themselves)."""
        for ending in (psutil.Process.terminate, psutil.Process.kill):
            family = self.family()
            for member in family:
                with suppress(psutil.Error):
                    ending(member)
            psutil.wait_procs(family, timeout=STOP_SECONDS)

    def _flwr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Flower's command against this SuperLink; a hang counts as a failure."""
        command = [str(PROGRAMS / "flwr"), *arguments]
        try:
            return subprocess.run(
                command, cwd=self.home, env=self.environment, capture_output=True, text=True,
                timeout=START_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            said = f"no answer within {START_SECONDS:g} s"
            return subprocess.CompletedProcess(command, 1, "", said)

    def save_log(self, run_id: str, path: Path) -> None:
        """Keep what the app logged."""
        done = self._flwr("log", run_id, "spcacw", "--show")
        path.write_text(done.stdout + done.stderr, encoding="utf-8")

    def status(self, run_id: str) -> str:
        """Return Flower's word for the run, such as ``running`` or ``finished:completed``."""
        said = self.cli("ls", "--run-id", run_id)
        return str(said["runs"][0]["status"])


@contextmanager
def flower(log: Path, simulation: bool = True) -> Iterator[Flower]:
    """Run a SuperLink for the duration of the block, its words in the file ``log``.

    It simulates nodes, or waits for real ones.
    """
    import tomli_w  # a machine that only runs the in-process engine may lack it

    with tempfile.TemporaryDirectory(prefix="spcacw-", ignore_cleanup_errors=True) as name:
        home, port = Path(name), free_port()
        write_app(home / "app")
        address = f"127.0.0.1:{port}"
        connection = {"default": "spcacw", "spcacw": {"address": address, "insecure": True}}
        (home / "config.toml").write_text(tomli_w.dumps({"superlink": connection}))
        environment = os.environ | ENVIRONMENT | {"FLWR_HOME": str(home)}
        # Flower finds its own helper programs by name: those of this environment come first.
        environment["PATH"] = f"{PROGRAMS}{os.pathsep}{environment.get('PATH', '')}"
        program = str(PROGRAMS / "flower-superlink")
        with log.open("wb") as out:
            process = subprocess.Popen(
                [program, "--insecure", "--host", "127.0.0.1", "--port", str(port),
                 *(["--simulation"] if simulation else [])],
                cwd=home, env=environment, stdout=out, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
            link = Flower(home, environment, process, address)
            try:
                _wait_for_port(process, port, log)
                yield link
            finally:
                link.stop()
                process.wait()


def _wait_for_port(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(POLL_SECONDS)
    raise SpcacwError(f"Flower's SuperLink did not start on port {port}: see {log}.")


def read_status(directory: Path) -> dict[str, Any]:
    """Return the run's own word of where it is; empty before it has said anything."""
    try:
        return dict(json.loads((directory / "status.json").read_text()))
    except FileNotFoundError:
        return {}


def run(config: Config, num_silos: int, show: Callable[[dict[str, Any]], None]) -> None:
    """Run the app under Ray until it has ended; ``show`` gets each change of its status.

    ``config.run.output`` must be an absolute directory that exists.

    Raises
    ------
    SpcacwError
        If training did not finish: the sentence says why.
    """
    directory = Path(config.run.output)
    (directory / "status.json").unlink(missing_ok=True)  # of a run that goes on
    with flower(directory / "flower.log") as link:
        run_id = link.start(config, num_silos)
        try:
            try:
                status = _watch(link, directory, show)
            except KeyboardInterrupt:
                _let_stop(link, directory)
                raise
            word = _final_word(link, run_id) if status.get("state") == "finished" else "dead"
        finally:
            if link.alive():
                link.save_log(run_id, directory / "run.log")
    if status.get("state") == "failed":
        raise SpcacwError(status["error"])
    if word != "finished:completed":
        raise SpcacwError(
            f"The simulation ended ({word}) before training was done: see run.log and flower.log "
            f"in {directory}."
        )


def _watch(link: Flower, directory: Path, show: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Show the run's status until it has ended or its process is gone; return the last one."""
    seen, deadline = False, time.monotonic() + START_SECONDS
    while (status := read_status(directory)).get("state") not in ENDED:
        show(status)
        alive = link.alive() and link.simulating()
        seen = seen or alive
        if not alive and (seen or time.monotonic() > deadline):
            break
        time.sleep(POLL_SECONDS)
    status = read_status(directory)
    show(status)
    return status


def _let_stop(link: Flower, directory: Path) -> None:
    """Ask the ServerApp to end after its round, with a checkpoint, and give it a moment."""
    deadline = time.monotonic() + STOP_SECONDS
    if read_status(directory).get("state") == "training":
        (directory / stop.FILE).touch()
        while time.monotonic() < deadline and link.alive():
            if read_status(directory).get("state") in ENDED:
                break
            time.sleep(POLL_SECONDS)
        (directory / stop.FILE).unlink(missing_ok=True)


def _final_word(link: Flower, run_id: str) -> str:
    deadline = time.monotonic() + START_SECONDS
    while not (word := link.status(run_id)).startswith("finished"):
        if time.monotonic() > deadline:
            break
        time.sleep(POLL_SECONDS)
    return word
