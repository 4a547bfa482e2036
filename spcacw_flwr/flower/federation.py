"""A federation of real silos: what lies where on its hosts, and the Flower commands that run there.

A server's directory holds its certificate and key, ``ca.crt``, the SuperLink's database, and
``flower/``, its Flower home. A silo's directory holds its key, ``ca.crt``, ``node.toml`` (which
silo it is, and where its data are) and a Flower home of its own. Nothing in one directory refers to
another, so that each may be moved to a host of its own.

:class:`Federation` is all of it on one machine, every host a directory, talking over the loopback
interface. It runs the very commands that ``spcacw deploy server`` and ``spcacw deploy silo`` run on
hosts of their own; only the addresses differ.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError, names_in, numbers_in
from spcacw_flwr.config.keys import MOST_SILOS, STREAM
from spcacw_flwr.engine import checkpoint
from spcacw_flwr.engine.directory import write_atomically
from spcacw_flwr.engine.recorder import as_toml
from spcacw_flwr.flower import audit, certificates, members, node, policy, processes
from spcacw_flwr.flower.launch import CONNECTION, Died, Link, Show, follow
from spcacw_flwr.flower.processes import Program, Say, end, free_port, keep, listens, program_runs
from spcacw_flwr.silos.setting import Setting, write_silo

DATA, RUN_FILE = "data", "run.toml"
THREADS = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
"""Several silos share one machine here: threads of PyTorch would wait for each other."""
LOOPBACK = "127.0.0.1:0"
"""Where silos on this machine open their streams: any free port."""
ATTEMPTS = 5
"""How often a run is submitted whose ServerApp dies without a word."""
LONGEST_PAUSE = 60.0
"""Seconds between two tries to reach a server."""
SERVERAPP = "flwr-serverapp"
NODE_FILE, OLD_KEY = "node.toml", "silo-old.pub"
PATHS = ("data-dir", "root-certificates", "policy")
"""Keys of a node's config that are paths, relative to its directory."""
RESERVED = "'\"\n"
"""What a text in a node's config may not hold: Flower's command line has no way to quote it."""


@dataclass(frozen=True)
class Place:
    """A host of the federation."""

    directory: Path

    @property
    def home(self) -> Path:
        """Its Flower home."""
        return self.directory / "flower"

    def _file(self, name: str, advice: str) -> str:
        path = self.directory / name
        if not path.is_file():
            raise SpcacwError(f"{path} is missing: {advice}")
        return str(path)


@dataclass(frozen=True)
class Server(Place):
    """The host of the SuperLink and of the ServerApp, which learns for the target."""

    port: int

    @property
    def members(self) -> members.Members:
        """Who may take part."""
        return members.Members(self.directory)

    def note(self, event: str, **fields: Any) -> None:
        """Add a line to its audit log."""
        if log := audit.of_home(str(self.home)):
            log.note(event, **fields)

    def check_certificates(self, say: Say) -> None:
        """Say until when its certificates are valid; SpcacwError if one is not, or is another's."""
        for name, remedy in (
            (certificates.CA_CERTIFICATE, certificates.NEW_AUTHORITY),
            (certificates.SERVER_CERTIFICATE, certificates.RENEW),
        ):
            say(certificates.term(Path(self._own(name)), remedy))
        certificates.in_use(self.directory)

    def _own(self, name: str) -> str:
        made = "is no server's directory; make one with 'spcacw deploy ca'."
        return self._file(name, f"{self.directory} {made}")

    def superlink(self, host: str) -> list[str]:
        """Return the command of the SuperLink: TLS, registered keys only, a lasting database."""
        return [
            str(processes.PROGRAMS / "flower-superlink"), "--host", host, "--port", str(self.port),
            "--ssl-ca-certfile", self._own(certificates.CA_CERTIFICATE),
            "--ssl-certfile", self._own(certificates.SERVER_CERTIFICATE),
            "--ssl-keyfile", self._own(certificates.SERVER_KEY),
            "--enable-supernode-auth", "--database", str(self.directory / "state.db"),
            "--isolation", "process",
            "--superexec-auth-secret-file", self._own(certificates.SERVER_SECRET),
        ]  # fmt: skip

    def superexec(self) -> list[str]:
        """Return the command that runs the ServerApp, which outlives a crash of the SuperLink."""
        return [
            str(processes.PROGRAMS / "flower-superexec"), "--runtime-api-address", self.address,
            "--root-certificates", self._own(certificates.CA_CERTIFICATE),
            "--superexec-auth-secret-file", self._own(certificates.SERVER_SECRET),
        ]  # fmt: skip

    @property
    def address(self) -> str:
        """Where programs of the same host find the SuperLink."""
        return f"127.0.0.1:{self.port}"

    def link(self) -> Link:
        """Return the SuperLink as Flower's CLI on this host reaches it."""
        authority = self._own(certificates.CA_CERTIFICATE)
        self.home.mkdir(exist_ok=True)
        return Link(self.home, self.address, **{"root-certificates": authority})

    def streaming(self, flat: dict[str, Any], address: str) -> dict[str, Any]:
        """Return run-config keys by which silos answer in streams to this host, with TLS.

        Keys that choose another exchange, or name a certificate, are left as they are.
        """
        if flat.get("exchange", STREAM) != STREAM or flat.get("stream-certificate"):
            return flat
        return flat | {
            "exchange": STREAM, "stream-address": address,
            "stream-certificate": self._own(certificates.SERVER_CERTIFICATE),
            "stream-key": self._own(certificates.SERVER_KEY),
        }  # fmt: skip


@dataclass(frozen=True)
class Silo(Place):
    """The host of a silo: its SuperNode, its key, its data."""

    @property
    def public_key(self) -> Path:
        """What the server registers."""
        return self.directory / certificates.SILO_PUBLIC_KEY

    def make(self, silo: int, authority: Path, data: str, **more: Any) -> None:
        """Make its key, its copy of ``ca.crt``, and ``node.toml``: which silo this node holds.

        ``more`` is what else its app is to know.
        """
        content = certificates.authority_in(authority)
        certificates.make_silo_key(self.directory, f"{members.FOR}{silo}")
        write_atomically(self.directory / certificates.CA_CERTIFICATE, content)
        table = {
            "silos": str(silo), "root-certificates": certificates.CA_CERTIFICATE, "data-dir": data,
        }  # fmt: skip
        write_atomically(self.directory / NODE_FILE, tomli_w.dumps(table | more).encode())

    def node_config(self) -> dict[str, Any]:
        """Return what ``node.toml`` says, its paths absolute, and where the site's policy is.

        SpcacwError if one of both cannot be read, has an unknown key or a wrong value, names no
        silo, or holds what Flower cannot be told.
        """
        path = self.directory / NODE_FILE
        self._file(NODE_FILE, "make a silo's directory with 'spcacw deploy key'.")
        table = node.checked_file(path, node.KNOWN, "The node config")
        if not numbers_in(table.get("silos", ""), MOST_SILOS):
            raise SpcacwError(f'{path} names no silo: write silos = "0", say, into it.')
        if (self.directory / policy.FILE).exists():
            table.setdefault("policy", policy.FILE)
        for name in PATHS:
            if name in table:
                table[name] = str((self.directory / table[name]).resolve())
        for name, value in table.items():
            if isinstance(value, str) and set(value) & set(RESERVED):
                raise SpcacwError(
                    f"{name} = {value!r} in {path} is not allowed: it must be a text without "
                    "quotes and line ends."
                )
        if "policy" in table:
            policy.load(Path(table["policy"]))
        return table

    def supernode(self, superlink: str, port: int) -> list[str]:
        """Return the command of the SuperNode; its own programs talk to it on ``port``."""
        advice = (
            "the key comes from 'spcacw deploy key', the certificate of the authority from "
            "whoever runs the server."
        )
        processes.host_and_port(superlink, "--superlink")
        key = self._file(certificates.SILO_KEY, advice)
        authority = self._file(certificates.CA_CERTIFICATE, advice)
        certificates.private_key(Path(key))
        certificates.authority_in(Path(authority))
        return [
            str(processes.PROGRAMS / "flower-supernode"), "--superlink", superlink,
            "--auth-supernode-private-key", key, "--root-certificates", authority,
            "--port", str(port), "--node-config", as_node_config(self.node_config()),
        ]  # fmt: skip

    def rotate(self) -> None:
        """Give the silo a new key, for which the old one vouches in the audit log.

        The old public key is kept as ``silo-old.pub``. SpcacwError if the silo runs.
        """
        key = Path(self._file(certificates.SILO_KEY, "make it with 'spcacw deploy key'."))
        new, _ = key.with_suffix(".new"), self._file(certificates.SILO_PUBLIC_KEY, "it is needed.")
        if processes.family(self.home):
            raise SpcacwError(f"{self.directory} runs: end its 'spcacw deploy silo' first.")
        if not new.exists():  # else a change of the key was cut short
            certificates.make_private_key(new)
        comment = members.comment_in(self.public_key)
        log = audit.Log(self.directory / audit.LOG, key)
        log.announce(new)
        for path, of in ((self.directory / OLD_KEY, key), (self.public_key, new)):
            write_atomically(path, f"{certificates.public_text(of, comment)}\n".encode())
        new.replace(key)
        log.take(key)

    def wait_for(self, superlink: str, say: Say) -> None:
        """Wait until the SuperLink shows the certificate that it should; say why it does not.

        SpcacwError if its key is not one that the site's policy names.
        """
        pause, authority = processes.PATIENCE, self.directory / certificates.CA_CERTIFICATE
        own = certificates.term(authority, "ask the server's owner for another")
        while True:
            try:
                certificate = certificates.served(superlink, authority)
                shown = certificates.fingerprint(certificate)
                why = self._skewed(superlink)
            except (OSError, ValueError) as error:
                why = (
                    f"{superlink} cannot be reached ({certificates.why_unknown(error)}): check the "
                    f"address, and that {authority} is that of its server."
                )
            if why:
                say(f"{why} The next try is in {pause:g} s.")
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            site = self.node_config().get("policy")
            known = names_in(policy.load(Path(site)).targets) if site else []
            if known and shown not in known:
                raise SpcacwError(
                    f"The key of {superlink}, {shown}, is not in 'targets' of {site}."
                )
            say(own)
            say(certificates.term_of(certificate, f"The certificate of {superlink}", ""))
            return

    def _skewed(self, superlink: str) -> str:
        """Say, if it is so, that Flower will not take what this host signs at this time."""
        theirs = certificates.clock_of(superlink, self.directory / certificates.CA_CERTIFICATE)
        ahead = (certificates.now() - theirs).total_seconds() if theirs else 0.0
        # The other clock is told in whole seconds, rounded down.
        if -TIMESTAMP_TOLERANCE < ahead < SYSTEM_TIME_TOLERANCE + 1:
            return ""
        return (
            f"The clock of this host is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} "
            f"that of {superlink}, and Flower would take it for an old message sent again: set "
            "the clocks of both."
        )


def as_node_config(table: dict[str, Any]) -> str:
    """Return a table as Flower's option --node-config takes it."""
    texts = {name: f"'{v}'" if isinstance(v, str) else str(v).lower() for name, v in table.items()}
    return " ".join(f"{name}={text}" for name, text in texts.items())


def export(setting: Setting, target: int, directory_of: Callable[[int], Path]) -> None:
    """Write each silo's data into ``directory_of(silo)``; of test data only the target's.

    SpcacwError if the data cannot be had, or the setting augments them anew for each mini-batch.
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
    """Return the configuration of the same training on exported files."""
    files = {
        "setting": "files", "data-dir": "", "silos": setting.num_silos, "silo": "",
        "classes": setting.num_classes, "input-shape": ",".join(map(str, setting.input_shape)),
    }  # fmt: skip
    return Config.from_flat(config.to_flat() | files)


def lay_out(root: Path, config: Config, setting: Setting) -> Config:
    """Make the directories of all hosts, with the silos' data, and ``run.toml``; return it."""
    server = Server(root / "server", 0)
    certificates.make_authority(root / "ca")
    certificates.make_server(root / "ca", server.directory)
    authority = root / "ca" / certificates.CA_CERTIFICATE
    places = [Silo(root / f"silo-{silo}") for silo in range(setting.num_silos)]
    for silo, place in enumerate(places):
        group = setting.groups[silo]
        place.make(silo, authority, DATA, **({} if group is None else {"group": group}))
    export(setting, config.run.target, lambda silo: places[silo].directory / DATA)
    flat = server.streaming(exported(config, setting).to_flat(), LOOPBACK)
    write_atomically(root / RUN_FILE, as_toml(flat).encode())
    return Config.from_flat(flat)


def start_server(server: Server, host: str, say: Say, as_json: bool = False) -> list[Program]:
    """Start SuperLink and SuperExec; with ``as_json`` their logs are JSON objects."""
    server.check_certificates(say)
    commands = {"superlink.log": server.superlink(host), "serverapp.log": server.superexec()}
    superlink, superexec = (
        Program(command, server.home, server.directory / log, as_json=as_json)
        for log, command in commands.items()
    )
    superlink.version = partial(certificates.in_use, server.directory)
    return [superlink.start(say, server.port), superexec.start(say)]


def silo_program(
    place: Silo, superlink: str, port: int, more: Mapping[str, str] | None = None,
    as_json: bool = False,
) -> Program:  # fmt: skip
    """Return a silo's SuperNode, whose own processes find it on ``port``."""
    command, log = place.supernode(superlink, port), place.directory / "silo.log"
    return Program(command, place.home, log, more or {}, as_json, patient=True)


def register(server: Server, public_keys: Sequence[Path], say: Say) -> list[str]:
    """Admit silos by their public keys, each once, and return their nodes' ids.

    The running SuperLink keeps them in its database; ``registered/`` in the server's directory
    shows who was admitted. SpcacwError if there is no such key, or the SuperLink refuses it.
    """
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
        node = str(link.cli(*arguments)["node-id"])
        server.members.admit(node, text)
        server.note(audit.ADMITTED, node=node, key=text)
        return node

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # Flower's command mostly imports
        return list(pool.map(admit, public_keys))


def revoke(server: Server, public_key: Path, say: Say) -> str:
    """Shut a silo out by its public key, for ever, and return its node's id.

    A run that is on goes on without it. SpcacwError if the key is not one that was admitted.
    """
    key, text = members.key_in(public_key)
    states = members.REGISTERED, members.REVOKED
    node = next((at[key] for at in map(server.members.nodes, states) if key in at), None)
    if node is None:
        raise SpcacwError(
            f"{public_key} is no key that {server.directory} has admitted: they are in "
            f"{server.directory / members.REGISTERED}."
        )
    if not server.members.revoked(int(node)):
        server.members.shut_out(node)  # first: the ServerApp ends its stream
        server.note(audit.REVOKED, node=node, key=text)
    arguments = ["supernode", "unregister", node, CONNECTION]
    say(processes.shown(["flwr", *arguments], server.home))
    server.link().cli(*arguments)
    return node


class Federation:
    """The processes of a federation of so many silos that was laid out in a directory."""

    def __init__(self, root: Path, num_silos: int, say: Say = lambda _: None) -> None:
        root = root.resolve()
        self.server = Server(root / "server", free_port())
        self.silos = [Silo(root / f"silo-{silo}") for silo in range(num_silos)]
        self._say = say
        self._kept: list[Program] = []

    @contextmanager
    def running(self) -> Iterator[Federation]:
        """Run server and silos for the duration of the block; then nothing is left of them."""
        try:
            self._kept = start_server(self.server, "127.0.0.1", self._say)
            register(self.server, [place.public_key for place in self.silos], self._say)
            for place in self.silos:
                program = silo_program(place, self.server.address, free_port(), THREADS)
                self._kept.append(program.start(self._say))
            yield self
        finally:
            end(*(place.home for place in self.silos))  # first, so that they can take their leave
            end(self.server.home)

    def train(self, config: Config, show: Show) -> None:
        """Train on these silos; see :func:`train`."""
        train(self.server, config, show, self._kept, self._say)


def train(
    server: Server, config: Config, show: Show, kept: Sequence[Program] = (),
    say: Say = lambda _: None,
) -> None:  # fmt: skip
    """Submit a run to a server and follow it to its end, keeping its programs alive.

    A run whose directory has a checkpoint goes on from it; so does one whose ServerApp is killed.
    SpcacwError if training did not finish.
    """
    output = Path(config.run.output)

    def training() -> bool:
        keep(kept, say)
        return program_runs(SERVERAPP, server.home)

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
                if attempt + 1 == ATTEMPTS or not checkpoint.exists(output / checkpoint.DIRECTORY):
                    raise
                say("The ServerApp died; the run goes on from its last checkpoint.")
                deadline = time.monotonic() + processes.START_SECONDS
                while not listens(server.address) and time.monotonic() < deadline:
                    keep(kept, say)  # the SuperLink died too
                    time.sleep(processes.POLL_SECONDS)
            else:
                return


@contextmanager
def alone(server: Server) -> Iterator[None]:
    """Keep other runs from a server; SpcacwError if one is on."""
    server.home.mkdir(exist_ok=True)
    deadline = time.monotonic() + processes.STOP_SECONDS
    with (server.home / "run.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            while program_runs(SERVERAPP, server.home):  # nobody waits for it, or it ends just now
                if time.monotonic() > deadline:
                    raise BlockingIOError
                time.sleep(processes.POLL_SECONDS)
        except BlockingIOError:
            raise SpcacwError(
                f"A run is on at {server.directory}, and silos answer one run at a time: wait for "
                "its end, or end it with Ctrl-C where it was started."
            ) from None
        yield


def going_on(config: Config) -> Config:
    """Return the configuration of a run that goes on, if its directory has a checkpoint."""
    output = config.run.output
    resumes = checkpoint.exists(Path(output) / checkpoint.DIRECTORY)
    return Config.from_flat(config.to_flat() | {"resume": output if resumes else ""})
