"""Lay out and start a federation of real silos, admit and revoke silos, and train on them.

:class:`Federation` is all of it on one machine: every host is a directory (``hosts.py``), and hosts
talk over the loopback interface. It runs the same commands that ``spcacw deploy server`` and
``spcacw deploy silo`` run on hosts of their own; only the addresses differ.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine import checkpoint
from spcacw_flwr.engine.directory import write_atomically
from spcacw_flwr.engine.recorder import as_toml
from spcacw_flwr.flower import audit, certificates, members, processes
from spcacw_flwr.flower.hosts import Server, Silo
from spcacw_flwr.flower.launch import CONNECTION, Died, Show, follow
from spcacw_flwr.flower.processes import Program, Say, free_port, keep, listens, owning
from spcacw_flwr.silos.setting import Setting, write_silo

DATA, RUN_FILE = "data", "run.toml"
THREADS = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
"""Several silos share one machine here: more threads of PyTorch would wait for each other."""
LOOPBACK = "127.0.0.1:0"
"""Where silos on this machine open their streams: any free port."""
ATTEMPTS = 5
"""How often a run is submitted if its ServerApp dies without saying why."""
SERVERAPP, LAUNCHER = "flwr-serverapp", "flower-superexec"


def export(setting: Setting, target: int, directory_of: Callable[[int], Path]) -> None:
    """Write each silo's training data, and the target's test data, into ``directory_of(silo)``.

    SpcacwError if the data cannot be obtained, or the setting augments them for each mini-batch.
    """
    if setting.augments:
        raise SpcacwError(
            f"{setting.name} changes its images at random for each mini-batch, which files cannot: "
            f"set {setting.name}.augmentation = false."
        )
    for silo in range(setting.num_silos):
        test = setting.test(silo) if silo == target else None
        write_silo(directory_of(silo), silo, setting.train(silo), test)


def exported(config: Config, setting: Setting) -> Config:
    """Return the configuration of the same training on exported files.

    Numbers of samples stay, so that the same command can go on with a run. A user's own setting may
    have more samples: a number that would cut its files becomes 0, which means all.
    """
    sizes, trains = config.partition, map(setting.train, range(setting.num_silos))
    files = {
        "setting": "files", "data-dir": "", "silos": setting.num_silos, "silo": "",
        "classes": setting.num_classes, "input-shape": ",".join(map(str, setting.input_shape)),
    }  # fmt: skip
    if any(len(train.y) > sizes.samples_per_silo for train in trains):
        files["samples-per-silo"] = 0
    if len(setting.test(config.run.target).y) > sizes.test_samples:
        files["test-samples"] = 0
    return Config.from_flat(config.to_flat() | files)


def lay_out(root: Path, config: Config, setting: Setting) -> Config:
    """Make the directories of all hosts, with the silos' data, and ``run.toml``; return its keys.

    Those of the streams are added, which name files by their place: no file keeps them, so that
    ``root`` can be moved.
    """
    server = Server(root / "server", 0)
    certificates.make_authority(root / "ca")
    certificates.make_server(root / "ca", server.directory)
    authority = root / "ca" / certificates.CA_CERTIFICATE
    places = [Silo(root / f"silo-{silo}") for silo in range(setting.num_silos)]
    for silo, place in enumerate(places):
        group = setting.groups[silo]
        place.make(silo, authority, DATA, **({} if group is None else {"group": group}))
    export(setting, config.run.target, lambda silo: places[silo].directory / DATA)
    flat = exported(config, setting).to_flat()
    write_atomically(root / RUN_FILE, as_toml(flat).encode())
    return Config.from_flat(server.streaming(flat, LOOPBACK))


def start_server(server: Server, host: str, say: Say, as_json: bool = False) -> list[Program]:
    """Start SuperLink and SuperExec; with ``as_json`` their logs are JSON objects."""
    server.check_certificates(say)
    commands = {"superlink.log": server.superlink(host), "serverapp.log": server.superexec()}
    superlink, superexec = (
        Program(command, server.home, server.directory / log, as_json=as_json)
        for log, command in commands.items()
    )
    superlink.version = partial(certificates.in_use, server.directory)
    superlink.umask = 0o077  # for its database; the ServerApp writes results with the user's
    return [superlink.start(say, server.port), superexec.start(say)]


def silo_program(
    place: Silo, superlink: str, port: int, more: Mapping[str, str] | None = None,
    as_json: bool = False,
) -> Program:  # fmt: skip
    """Return a silo's SuperNode; its own processes find it on ``port``."""
    command, log = place.supernode(superlink, port), place.directory / "silo.log"
    return Program(
        command, place.home, log, more or {}, as_json, patient=True, launcher=LAUNCHER
    )  # fmt: skip


def register(server: Server, public_keys: Sequence[Path], say: Say) -> list[str]:
    """Admit silos by their public keys, each once, and return their nodes' ids.

    The running SuperLink keeps the keys in its database; ``registered/`` in the server's directory
    shows the admitted keys. SpcacwError if a file is no silo's public key (then no key is
    admitted), or the SuperLink refuses a key.
    """
    for path in public_keys:
        _see_public(path)
    known, out = (server.members.nodes(s) for s in (members.REGISTERED, members.REVOKED))
    link = server.link()

    def admit(path: Path) -> str:
        key, text = members.key_in(path)
        if key in out:
            raise SpcacwError(
                f"{path} was revoked: its silo gets a new key by 'spcacw deploy rotate'."
            )
        if key in known:
            return known[key]
        arguments = ["supernode", "register", str(path.resolve()), CONNECTION]
        say(processes.shown(["flwr", *arguments], server.home))
        try:
            node = str(link.cli(*arguments)["node-id"])
        except SpcacwError:  # an earlier command may have been cut short
            if not (node := server.registered(text)):
                raise
        server.note(audit.ADMITTED, node=node, key=text)
        server.members.admit(node, text)  # last: without it, the next command does all this again
        return node

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # Flower's command mostly imports
        return list(pool.map(admit, public_keys))


def _see_public(path: Path) -> None:
    _, text = members.key_in(path)
    try:
        if "PRIVATE KEY" in text:
            raise ValueError("it is a private key, which must never leave its host")
        if "CERTIFICATE" in text:
            raise ValueError("it is a certificate")
        certificates.public_key(text.encode())
    except ValueError as error:
        raise SpcacwError(f"{path} is no silo.pub: {error}.") from error


def revoke(server: Server, public_key: Path, say: Say) -> str:
    """Revoke a silo's public key for ever, and return its node's id.

    A run in progress goes on without the silo. SpcacwError if the key was never admitted.
    """
    key, text = members.key_in(public_key)
    states = members.REGISTERED, members.REVOKED
    node = next((at[key] for at in map(server.members.nodes, states) if key in at), None)
    if node is None:
        raise SpcacwError(
            f"{public_key} is no key that {server.directory} has admitted: they are in "
            f"{server.directory / members.REGISTERED}."
        )
    server.members.shut_out(node)  # first, so that the ServerApp ends its stream
    server.note(audit.REVOKED, node=node, key=text)
    arguments = ["supernode", "unregister", node, CONNECTION]
    say(processes.shown(["flwr", *arguments], server.home))
    server.link().cli(*arguments)
    return node


class Federation:
    """The processes of a federation of ``num_silos`` silos that was laid out in ``root``."""

    def __init__(self, root: Path, num_silos: int, say: Say = lambda _: None) -> None:
        root = root.resolve()
        self.server = Server(root / "server", free_port())
        self.silos = [Silo(root / f"silo-{silo}") for silo in range(num_silos)]
        self._say = say
        self._kept: list[Program] = []

    @contextmanager
    def running(self) -> Iterator[Federation]:
        """Run server and silos for the duration of the block; no process is left afterwards."""
        with owning(self.server.home, *(place.home for place in self.silos)):
            try:
                self._kept = start_server(self.server, "127.0.0.1", self._say)
                register(self.server, [place.public_key for place in self.silos], self._say)
                for place in self.silos:
                    program = silo_program(place, self.server.address, free_port(), THREADS)
                    self._kept.append(program.start(self._say))
                yield self
            finally:  # first the silos that have started, so that they can sign off
                processes.end(*(place.home for place in self.silos))

    def train(self, config: Config, show: Show) -> None:
        """Train on these silos; see :func:`train`."""
        train(self.server, config, show, self._kept, self._say)


def train(
    server: Server, config: Config, show: Show, kept: Sequence[Program] = (),
    say: Say = lambda _: None,
) -> None:  # fmt: skip
    """Submit a run to a server and follow it to its end; keep the programs ``kept`` alive.

    A run that is in the output directory goes on there, and so does a run whose ServerApp is
    killed. SpcacwError if training did not finish.
    """
    output = Path(config.run.output)

    def training() -> bool:
        keep(kept, say)
        return bool(processes.named(SERVERAPP, server.home))

    with alone(server):
        link = server.link()
        for attempt in range(ATTEMPTS):
            run_id = link.submit(going_on(config))
            try:
                follow(link, run_id, output, show, training)
            except KeyboardInterrupt:
                with suppress(SpcacwError):  # it may have ended by itself
                    link.cli("stop", run_id)
                raise
            except Died:
                begun = (output / "config.toml").exists()
                if attempt + 1 == ATTEMPTS or (begun and not going_on(config).run.resume):
                    raise
                say("The ServerApp died; the run goes on from its last checkpoint, or its start.")
                deadline = time.monotonic() + processes.START_SECONDS
                while not listens(server.address) and time.monotonic() < deadline:
                    keep(kept, say)  # the SuperLink died too
                    time.sleep(processes.POLL_SECONDS)
            else:
                return


@contextmanager
def alone(server: Server) -> Iterator[None]:
    """Keep other runs from a server; SpcacwError if a run is in progress there."""
    server.home.mkdir(exist_ok=True)
    deadline = time.monotonic() + processes.STOP_SECONDS
    words = (
        f"A run is on at {server.directory}, and silos answer one run at a time: wait for its end, "
        "or end it with Ctrl-C where it was started."
    )
    with processes.locked(server.home / "run.lock", words):
        while left := processes.named(SERVERAPP, server.home):  # it is ending, or left alone
            if time.monotonic() > deadline:
                raise SpcacwError(
                    f"A run whose command was killed is on at {server.directory}, and silos answer "
                    f"one run at a time: wait for its end, or end it with 'kill {left[0]}'."
                )
            time.sleep(processes.POLL_SECONDS)
        yield


def going_on(config: Config) -> Config:
    """Return the configuration, with ``resume`` set if its directory has a run that can go on."""
    resume, output = config.run.resume, Path(config.run.output)
    with suppress(SpcacwError):
        if not checkpoint.exists(output / checkpoint.DIRECTORY):
            checkpoint.unfinished(output)
        resume = str(output)
    return Config.from_flat(config.to_flat() | {"resume": resume})
