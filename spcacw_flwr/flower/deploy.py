"""``spcacw deploy``: a federation of real silos, with one command for each step of a person.

Each command prints the Flower command that it runs. ``demo`` runs all of them on one machine.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from spcacw_flwr.config.config import Config, absolute, flat_keys
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.keys import STREAM
from spcacw_flwr.console import end_like_ctrl_c, new_console, one_sentence
from spcacw_flwr.engine.directory import claim_directory, run_directory, write_atomically
from spcacw_flwr.engine.recorder import as_toml
from spcacw_flwr.flower import certificates, federation, joining, processes
from spcacw_flwr.flower.federation import LOOPBACK, RUN_FILE
from spcacw_flwr.flower.hosts import OLD_KEY, Server, Silo
from spcacw_flwr.flower.launch import nobody
from spcacw_flwr.flower.monitor import Monitor, serve
from spcacw_flwr.flower.processes import Program, connected, free_port, host_and_port, listens
from spcacw_flwr.report.terminal import reported
from spcacw_flwr.silos.setting import Setting, prepare
from spcacw_flwr.silos.setup import checked_setting

app = typer.Typer(
    no_args_is_help=True, help="Run a federation of real silos.", add_completion=False,
    pretty_exceptions_enable=False,
)  # fmt: skip
console = new_console()
say = partial(console.print, soft_wrap=True)
"""Prints a Flower command, ready to be copied, or a sentence, above the display of ``reported``."""
CLOSED = "No program of it calls anybody else: no telemetry, no update check, no download."
PORT = 9092
ANY_ADDRESS = "0.0.0.0"
ServerDirectory = Annotated[Path, typer.Argument(help="the server's directory")]
SiloDirectory = Annotated[Path, typer.Argument(help="the silo's directory")]
Port = Annotated[int, typer.Option(min=1, max=65535, help="port of the SuperLink")]
Keys = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="any run-config key")
]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="a TOML file of run-config keys")]
Metrics = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="where Prometheus finds /metrics; empty: nowhere")
]
JsonLogs = Annotated[bool, typer.Option("--json-logs", help="each line of the logs is JSON")]
SiloData = Annotated[str, typer.Option(help="where its data are, relative to the directory")]
DataDirectory = Annotated[Path | None, typer.Option(help="directory of the data sets")]


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Make a function a command, whose user's errors are printed as one sentence."""
    return app.command()(one_sentence()(function))


@command
def ca(
    directory: Annotated[Path, typer.Argument(help="where to make ca/ and server/")],
    host: Annotated[
        list[str] | None, typer.Option(help="name or address by which silos reach the server")
    ] = None,
) -> None:
    """Make a certificate authority, and the server's directory with its certificate."""
    authority, hosts = directory / "ca", tuple(host or ())
    certificates.named(hosts)  # if one is wrong, end before anything is made
    certificates.make_authority(authority)
    certificates.make_server(authority, directory / "server", hosts)
    say(
        f"{authority / certificates.CA_CERTIFICATE} is for every silo; "
        f"{authority / certificates.CA_KEY} is needed again only to renew the server's "
        f"certificate, which is valid for {certificates.SERVER_DAYS} days: keep it offline."
    )
    shown = (directory / "server" / certificates.SERVER_CERTIFICATE).read_bytes()
    say(f"For 'targets' in a silo's policy, the server's key is {certificates.fingerprint(shown)}.")


@command
def renew(
    authority: Annotated[Path, typer.Argument(help="the directory ca/")],
    certificate: Annotated[Path, typer.Argument(help="server.crt, or a copy of it")],
) -> None:
    """Renew a server's certificate for the same key and names; a running server picks it up."""
    certificates.renew(authority, certificate)
    say(certificates.term(certificate, ""))


@command
def key(
    directory: SiloDirectory,
    silo: Annotated[int, typer.Option(min=0, help="number of the silo")],
    authority: Annotated[
        Path, typer.Option("--ca", help="the ca.crt that the server's owner sent")
    ],
    data: SiloData = "data",
) -> None:
    """Make a silo's directory: its key, node.toml, and its copy of ca.crt."""
    place = Silo(directory)
    place.make(silo, authority, data)
    say(f"Send {place.public_key} to the server's owner; {certificates.SILO_KEY} stays here.")


@command
def server(
    directory: ServerDirectory,
    port: Port = PORT,
    metrics: Metrics = "",
    json_logs: JsonLogs = False,
) -> None:
    """Run the SuperLink, and the process that runs the ServerApp, until Ctrl-C."""
    place = Server(directory.resolve(), port)
    place.superlink(ANY_ADDRESS)  # end before anything is made in what is no server's directory
    start = partial(federation.start_server, place, ANY_ADDRESS, say, json_logs)
    until_ctrl_c(place.home, start, metrics, lambda: listens(place.address))


@command
def silo(
    directory: SiloDirectory,
    superlink: Annotated[str, typer.Option(help="host:port of the SuperLink")],
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="a port of this host for the node; 0: any free")
    ] = 0,
    metrics: Metrics = "",
    json_logs: JsonLogs = False,
) -> None:
    """Run a silo's SuperNode until Ctrl-C; it tries again until it is let in."""
    place, port = Silo(directory.resolve()), port or free_port()
    program = federation.silo_program(place, superlink, port, as_json=json_logs)

    def start() -> list[Program]:
        place.wait_for(superlink, say)
        return [program.start(say)]

    until_ctrl_c(place.home, start, metrics, lambda: connected(place.home, superlink))


def until_ctrl_c(
    home: Path, start: Callable[[], list[Program]], metrics: str, ready: Callable[[], bool]
) -> None:
    """Start a host's programs, restart those that end, and at last end all that they started.

    Its figures are at the address ``metrics``, if there is one; ``ready`` says whether it can work.
    """
    end_like_ctrl_c()
    programs: list[Program] = []
    with processes.owning(home):
        if metrics:
            monitor = Monitor(
                home, lambda: bool(programs) and all(one.runs for one in programs), ready
            )
            serve(metrics, monitor)
            say(f"http://{metrics}/metrics has figures; so have /healthz and /readyz.")
        programs += start()
        say(CLOSED)
        for program in programs:
            say(f"{program.name} runs; its log is {program.log}.")
        while True:
            processes.keep(programs, say)
            time.sleep(processes.POLL_SECONDS)


@command
def register(
    directory: ServerDirectory,
    public_keys: Annotated[list[Path], typer.Argument(help="silo.pub of each silo to be admitted")],
    port: Port = PORT,
) -> None:
    """Admit silos by their public keys; the server must be running."""
    nodes = federation.register(Server(directory.resolve(), port), public_keys, say)
    for path, node in zip(public_keys, nodes, strict=True):
        say(f"{path} is node {node}.")


@command
def revoke(
    directory: ServerDirectory,
    public_key: Annotated[Path, typer.Argument(help="silo.pub of the silo to be shut out")],
    port: Port = PORT,
) -> None:
    """Shut a silo out for ever by its public key; the server must be running."""
    node = federation.revoke(Server(directory.resolve(), port), public_key, say)
    say(f"Node {node} is shut out; a run that is on goes on without it.")


@command
def rotate(directory: SiloDirectory) -> None:
    """Give a silo a new key while it does not run; its number, data and audit log stay."""
    place = Silo(directory.resolve())
    place.rotate()
    say(
        f"Send {place.public_key} to the server's owner for 'register', and {OLD_KEY} beside it "
        "for 'revoke'."
    )


@command
def invite(
    directory: ServerDirectory,
    silo: Annotated[list[int], typer.Option(min=0, help="number of the silo that may join")],
    host: Annotated[
        str, typer.Option(help="by which silos reach the server; by default its certificate's name")
    ] = "",
    port: Port = PORT,
    join_port: Annotated[
        int, typer.Option(min=1, max=65535, help="where silos join")
    ] = joining.PORT,
    minutes: Annotated[float, typer.Option(min=0, help="how long the tokens are good")] = 60.0,
) -> None:
    """Let silos join, each by a one-time token, and wait; the server must be running."""
    end_like_ctrl_c()
    place = Server(directory.resolve(), port)
    place.check_certificates(say)
    if not listens(place.address):
        raise SpcacwError(f"No silo can join: {nobody(place.address)}")
    named = [host, *certificates.hosts_of(directory / certificates.SERVER_CERTIFICATE)]
    host = next(filter(None, named), "127.0.0.1")
    host = f"[{host}]" if ":" in host else host
    desk = joining.Desk(place, silo, f"{host}:{join_port}", f"{host}:{port}", minutes, say)
    with desk.open(join_port):
        for number, token in desk.tokens.items():
            say(f"Silo {number}, for {minutes:g} minutes: spcacw deploy join my-silo {token}")
        desk.wait()


@command
def join(
    directory: SiloDirectory,
    token: Annotated[str, typer.Argument(help="what 'spcacw deploy invite' printed")],
    data: SiloData = "data",
) -> None:
    """Make a silo's directory, and have its key admitted by a token."""
    superlink = joining.join(Silo(directory), token, data)
    say(f"Its key is admitted. Start it: spcacw deploy silo {directory} --superlink {superlink}")


@command
def export(
    directory: Annotated[Path, typer.Argument(help="where to write a directory for each silo")],
    config: ConfigFile = None,
    data_dir: DataDirectory = None,
    set_: Keys = None,
) -> None:
    """Write each silo's share of a setting into a file of its own, and run.toml next to them."""
    resolved, setting = checked(config, set_, data_dir)
    target = resolved.run.target
    federation.export(setting, target, lambda i: directory / f"silo-{i}" / "data")
    flat = federation.exported(resolved, setting).to_flat()
    write_atomically(directory / RUN_FILE, as_toml(flat).encode())
    say(f"{setting.num_silos} silos and {RUN_FILE} are in {directory}.")


@command
def run(
    directory: ServerDirectory,
    output: Annotated[Path, typer.Option(help="directory of the results, on this host")],
    stream: Annotated[
        str, typer.Option(help="host:port of this host where silos open their streams")
    ] = LOOPBACK,
    config: ConfigFile = None,
    port: Port = PORT,
    set_: Keys = None,
) -> None:
    """Train on the silos of a running server, on the server's host, and wait."""
    end_like_ctrl_c()
    host_and_port(stream, "--stream")
    place = Server(directory.resolve(), port)
    flat = flat_keys(config, set_, {"output": absolute(str(output))})
    resolved = claimed(Config.from_flat(place.streaming(flat, stream)))
    with reported(console, Path(resolved.run.output), "The same command") as show:
        federation.train(place, resolved, show)


@command
def demo(
    directory: Annotated[Path, typer.Argument(help="new, or one that a demo has left")],
    config: ConfigFile = None,
    data_dir: DataDirectory = None,
    set_: Keys = None,
) -> None:
    """Set up a federation of real silos on this machine, train on it, and end it."""
    end_like_ctrl_c()
    root = directory.resolve()
    if (root / RUN_FILE).exists():
        known = flat_keys(root / RUN_FILE, set_, {})
        resolved = Config.from_flat(Server(root / "server", 0).streaming(known, LOOPBACK))
    else:
        resolved = federation.lay_out(root, *checked(config, set_, data_dir))
    say(CLOSED)
    output = root / "results"
    resolved = claimed(Config.from_flat(resolved.to_flat() | {"output": str(output)}))
    with (
        federation.Federation(root, resolved.partition.silos, say).running() as running,
        reported(console, output, f"'spcacw deploy demo {directory}'") as show,
    ):
        running.train(resolved, show)


def checked(
    config: Path | None, set_: list[str] | None, data_dir: Path | None
) -> tuple[Config, Setting]:
    """Return a configuration and its setting, with the data on this host."""
    where = {"data-dir": data_dir and absolute(str(data_dir))}
    resolved = Config.from_flat({"exchange": STREAM} | flat_keys(config, set_, where))
    setting = checked_setting(resolved)
    prepare(setting)
    return resolved, setting


def claimed(config: Config) -> Config:
    """Claim the output directory; return a configuration that goes on with its run if it can.

    SpcacwError if the directory cannot be written, or its run has finished or is not ``resume``.
    """
    run_directory(config)
    resolved, output = federation.going_on(config), Path(config.run.output)
    if (output / "summary.json").exists():
        raise SpcacwError(f"The run in {output} has finished: name another directory.")
    claim_directory(output, bool(resolved.run.resume))
    return resolved
