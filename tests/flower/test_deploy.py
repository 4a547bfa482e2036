"""The commands of each host, without Flower, and what docs/deploy.md says of them."""

import csv
import json
import os
import re
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import threading
import tomllib
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import pytest
import typer
from flwr.common.config import parse_config_args

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.recorder import as_toml
from spcacw_flwr.flower import certificates, federation
from spcacw_flwr.flower.certificates import fingerprint
from spcacw_flwr.flower.deploy import app as commands
from spcacw_flwr.flower.deploy import claimed, until_ctrl_c
from spcacw_flwr.flower.hosts import Server, Silo
from spcacw_flwr.flower.launch import Died, end_left
from spcacw_flwr.flower.processes import (
    ADMIT,
    LOCK,
    Program,
    family,
    free_port,
    keep,
    listens,
    named,
    owning,
)
from spcacw_flwr.partitions.files import silo_file
from spcacw_flwr.silos.setup import checked_setting
from tests.conftest import one_sentence, ran
from tests.watching import wait_until

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deploy.md").read_text()
BLOCKS = "\n".join(re.findall(r"```bash\n(.*?)```", PAGE, re.S)).replace("\\\n", " ")
COMMANDS = [line for line in BLOCKS.splitlines() if line.startswith("spcacw deploy")]
BINARY = bytes(range(256))
BROKEN = {
    "good": "other", "garbage-ca": "ca.crt", "garbage-key": "silo.key",
    "garbage-node": "node.toml", "typo": "other",
}  # fmt: skip
"""Directories of silos, and the file of each that is no text."""
RESULTS = ROOT / "experiments" / "results"


deploy = partial(ran, "deploy")


@pytest.fixture
def authority(tmp_path):
    deploy("ca", tmp_path / "fed", "--host", "fl.example.org")
    return tmp_path / "fed" / "ca" / "ca.crt"


@pytest.fixture
def place(authority, tmp_path):
    """The directory of silo 0."""
    found = Silo(tmp_path / "silo")
    found.make(0, authority, "data")
    return found


def said_by(place: Silo, superlink: str, most: int = 9) -> list[str]:
    """What a silo says while it waits for its server: all of it, or so many sentences."""
    said: list[str] = []

    class Enough(Exception):
        pass

    def say(text: str) -> None:
        said.append(text)
        if len(said) == most:
            raise Enough

    with suppress(Enough):
        place.wait_for(superlink, say)
    return said


def test_a_run_whose_whole_server_died_waits_until_it_listens_again(tmp_path, monkeypatch):
    """Or Flower's command would find nobody, and the run would end there."""
    server, tries = Server(tmp_path, free_port()), []

    up: list[socket.socket] = []

    def listen() -> None:
        up.append(socket.create_server(("127.0.0.1", server.port)))

    class Line:
        def submit(self, config: Config) -> str:
            tries.append(not tries or listens(server.address))
            return "1"

    def follow(*_: object) -> None:
        if len(tries) == 1:
            threading.Timer(1, listen).start()
            raise Died("all of it")

    monkeypatch.setattr(Server, "link", lambda self: Line())
    monkeypatch.setattr(federation, "follow", follow)
    monkeypatch.setattr(federation.checkpoint, "exists", lambda path: True)
    federation.train(server, Config.from_flat({"output": str(tmp_path)}), print)
    up[0].close()
    assert tries == [True, True]


def config_of(output: Path, **keys: object) -> Config:
    return Config.from_flat({"output": str(output), **keys})


@pytest.mark.parametrize(
    ("every", "more", "resumes"), [(0, "", True), (-1, "", False), (0, "summary.json", False)]
)
def test_a_run_that_ended_before_its_first_checkpoint_goes_on(every, more, resumes, tmp_path):
    config = config_of(tmp_path / "out", **{"checkpoint-every": every})
    assert claimed(config).run.resume == ""
    (tmp_path / "out" / "config.toml").write_text(as_toml(config.to_flat()))
    if more:
        (tmp_path / "out" / more).touch()
    assert federation.going_on(config).run.resume == (config.run.output if resumes else "")
    if resumes:
        assert claimed(config).run.resume == config.run.output


def test_a_run_that_is_named_to_go_on_is_not_forgotten(tmp_path):
    with one_sentence("differ: a run goes on in its own directory"):
        claimed(config_of(tmp_path / "out", resume=str(tmp_path)))
    with one_sentence(f"resume = '{tmp_path}' holds no run"):
        claimed(config_of(tmp_path, resume=str(tmp_path)))


@pytest.mark.parametrize(("begun", "every", "times"), [(0, 0, 5), (1, 0, 5), (1, -1, 1)])
def test_a_serverapp_that_dies_before_its_first_checkpoint_is_submitted_again(
    begun, every, times, tmp_path, monkeypatch
):
    config, tries = config_of(tmp_path, **{"checkpoint-every": every}), []

    class Line:
        def submit(self, config: Config) -> str:
            tries.append(config.run.resume)
            if begun:
                (tmp_path / "config.toml").write_text(as_toml(config.to_flat()))
            return "1"

    def follow(*_: object) -> None:
        raise Died("all of it")

    monkeypatch.setattr(Server, "link", lambda self: Line())
    monkeypatch.setattr(federation, "follow", follow)
    monkeypatch.setattr(federation, "listens", lambda address: True)
    with pytest.raises(Died):
        federation.train(Server(tmp_path, 0), config, print)
    assert tries == ["", *[str(tmp_path) if begun else ""] * (times - 1)]


def test_each_threat_is_stopped_by_what_a_test_shows_or_by_nothing():
    """A row of the table names tests by their sentences; they are in the files that it links."""
    table = PAGE.partition("| who | may try to |")[2].partition("\n\n")[0].splitlines()[2:]
    for row in table:
        *_, stops, shown = row.strip("| ").split(" | ")
        found = re.findall(r"\[([^]]+)\]\(\.\./(tests/[\w/]+\.py)\)", shown)
        assert found or ("nothing" in stops and shown == "–"), row
        for sentence, path in found:
            name = f"def test_{sentence.replace(' ', '_')}("
            assert name in (ROOT / path).read_text(), sentence
    assert len(table) > 20


def test_a_server_and_a_silo_are_made_on_hosts_of_their_own(authority, tmp_path):
    silo = tmp_path / "elsewhere" / "my silo"
    data = "/srv/a b/c#=d"
    said = deploy("key", silo, "--silo", 3, "--ca", authority, "--data", data)
    assert f"Send {silo / 'silo.pub'} to the server's owner" in said
    assert (silo / "ca.crt").read_bytes() == authority.read_bytes()
    with (silo / "node.toml").open("a") as file:
        file.write("group = 1.0\nprivacy-seeded = true\n")
    command = Silo(silo).supernode("fl.example.org:9092", 9094)
    assert command[command.index("--auth-supernode-private-key") + 1] == str(silo / "silo.key")
    text = command[command.index("--node-config") + 1]
    assert parse_config_args([text]) == {
        "silos": "3", "root-certificates": str(silo / "ca.crt"), "data-dir": data, "group": 1.0,
        "privacy-seeded": True,
    }  # fmt: skip
    server = Server(tmp_path / "fed" / "server", 9092)
    superlink = server.superlink("0.0.0.0")
    assert "--enable-supernode-auth" in superlink
    assert "--insecure" not in superlink
    assert "--superexec-auth-secret-file" in superlink
    flat = server.streaming({}, "fl.example.org:9093")
    assert flat["stream-certificate"] == str(tmp_path / "fed" / "server" / "server.crt")
    assert server.streaming({"exchange": "message"}, "") == {"exchange": "message"}
    assert server.streaming(flat, "other:1") == flat


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("silos = ", "cannot be read"),
        ("group = 1", "names no silo"),
        ("silos = '3'\ndata-dir = \"it's\"", "must be a text without quotes"),
        ("silos = 3", "silos = 3 is not allowed: it must be a text"),
        ("silos = '3'\nprivcy-noise = 1.0", "no key 'privcy-noise' .*did you mean privacy-noise"),
        ("silos = '3'\nprivacy-noise = 'lots'", r"must be a number in \[0, "),
        ("silos = '3'\nprivacy-noise = 1e308", "of a size between"),
        ("silos = '3'\ngroup = [1]", "must be a number"),
        ("silos = '3'\npolicy = 'none.toml'", "Without its policy a silo tells nothing"),
        ("silos = '3' # \xb2", "cannot be read"),
    ],
)
def test_a_node_config_that_cannot_be_used_is_refused(text, words, tmp_path):
    (tmp_path / "node.toml").write_text(text, encoding="latin1")
    with pytest.raises(SpcacwError, match=words):
        Silo(tmp_path).node_config()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ca", "."], "ca.key exists already"),
        (["ca", "new", "--host", ""], "neither an address nor a host name"),
        (["ca", "new", "--host", "spital.zürich"], "neither an address nor a host name"),
        (["key", "silo", "--silo", "0", "--ca", "none.crt"], "none.crt holds no certificate"),
        (["key", "silo", "--silo", "0", "--ca", "server/server.key"], "holds no certificate"),
        (["server", "nothing"], "nothing/ca.crt is missing"),
        (["register", "server", "none.pub"], "none.pub cannot be read"),
        (["revoke", "server", "good/silo.pub"], "is no key that"),
        (["register", "server", "binary"], "binary cannot be read"),
        (["register", "server", "empty"], "empty is no silo.pub: "),
        (
            ["register", "server", "good/silo.pub", "good/silo.key"],
            "good/silo.key is no silo.pub: it is a private key, which must never leave its host.",
        ),
        (["register", "server", "server/server.key"], "is no silo.pub: it is a private key"),
        (["register", "server", "server/server.crt"], "is no silo.pub: it is a certificate"),
        (["register", "server", "good/node.toml"], "good/node.toml is no silo.pub: "),
        (["silo", "good", "--superlink", "localhost"], "is not of the form host:port"),
        (["silo", "good", "--superlink", ":9092"], "is not of the form host:port"),
        (["silo", "good", "--superlink", "localhost:99999"], "is not of the form host:port"),
        (["silo", "garbage-ca", "--superlink", "h:1"], "garbage-ca/ca.crt holds no certificate"),
        (["silo", "garbage-key", "--superlink", "h:1"], "silo.key holds no key"),
        (["silo", "garbage-node", "--superlink", "h:1"], "garbage-node/node.toml cannot be read"),
        (["silo", "typo", "--superlink", "h:1"], "did you mean privacy-noise"),
        (["run", "server", "--output", "out", "--stream", "there"], "--stream = 'there'"),
        (["silo", "nothing", "--superlink", "h:1"], "nothing/silo.key is missing"),
        (["run", "nothing", "--output", "out"], "nothing/server.crt is missing"),
        (["run", "server", "--output", "out", "--set", "epoch=1"], "did you mean epochs"),
        (["demo", "demo", "--set", "setting=digit"], "digits-relabel"),
        (["demo", "demo", "--set", "setting=mnist-relabel", "--data-dir", "none"], "data-dir"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, words, authority, monkeypatch, offline):
    monkeypatch.chdir(authority.parent.parent)
    Path("binary").write_bytes(BINARY)
    Path("empty").touch()
    for name, file in BROKEN.items():
        Silo(Path(name)).make(0, authority, "data")
        Path(name, file).write_bytes(BINARY)
    Path("typo", "node.toml").write_text("silos = '0'\nprivcy-noise = 1.0")
    said = deploy(*arguments, code=1)
    assert said.startswith("spcacw:")
    assert words in said
    assert not Path("nothing").exists()
    assert not Path("new").exists()


@pytest.mark.parametrize("arguments", [
    ["register", "server", "good/silo.pub"], ["run", "server", "--output", "out"],
    ["invite", "server", "--silo", "0"], ["revoke", "server", "good/silo.pub"],
])  # fmt: skip
def test_a_server_on_another_port_is_said_at_once(arguments, authority, monkeypatch):
    monkeypatch.chdir(authority.parent.parent)
    server = Server(authority.parent.parent / "server", free_port())
    Silo(Path("good")).make(0, authority, "data")
    if arguments[0] == "revoke":
        server.members.admit("7", Path("good/silo.pub").read_text())
    said = deploy(*arguments, "--port", server.port, code=1)
    told = f"nothing listens at {server.address}: start 'spcacw deploy server', or give its --port."
    assert told in " ".join(said.split())


@pytest.mark.parametrize(
    "arguments", [["server", "s", "--port", "99999"], ["key", "s", "--silo=-1"]]
)
def test_a_number_out_of_range_is_named(arguments):
    assert "is not in the range" in deploy(*arguments, code=2)


def test_a_port_that_is_taken_is_not_waited_for(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        program = Program(["/bin/sleep", "60"], tmp_path / "home", tmp_path / "log")
        with pytest.raises(SpcacwError, match="is another program's"):
            program.start(port=other.getsockname()[1])
    assert program.process is None


def served(server: Path) -> tuple[grpc.Server, str]:
    """A server with TLS, and where it listens."""
    pair = (server / "server.key").read_bytes(), (server / "server.crt").read_bytes()
    found = grpc.server(ThreadPoolExecutor(1))
    port = found.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    found.start()
    return found, f"127.0.0.1:{port}"


def test_a_silo_says_why_it_cannot_reach_its_server(place, tmp_path, monkeypatch):
    """Nobody there, no such host, another authority's server; then its own, which policy names."""
    monkeypatch.setattr("spcacw_flwr.flower.processes.PATIENCE", 0.01)
    deploy("ca", tmp_path / "other")
    (other, address), (own, right) = (served(tmp_path / x / "server") for x in ("other", "fed"))
    for superlink, why in (
        (f"127.0.0.1:{free_port()}", "refused"), ("no..host:1", "cannot be reached"),
        (address, "certificate verify failed"),
    ):  # fmt: skip
        said = said_by(place, superlink, 3)
        assert all(why in text for text in said)
        pauses = [float(re.search(r"in (\S+) s\.", text)[1]) for text in said]
        assert pauses == [0.01, 0.02, 0.04]
    assert [re.sub(r"until .*", "until", text) for text in said_by(place, right)] == [
        f"{place.directory / 'ca.crt'} is valid until",
        f"The certificate of {right} is valid until",
    ]
    key = fingerprint((tmp_path / "fed" / "server" / "server.crt").read_bytes())
    (place.directory / "policy.toml").write_text(f"targets = '{key}'")
    assert len(said_by(place, right)) == 2
    (place.directory / "policy.toml").write_text(f"targets = '{'0' * 64}'")
    with pytest.raises(SpcacwError, match=f"The key of {right}, {key}, is not in 'targets'"):
        said_by(place, right, 1)
    for one in (other, own):
        one.stop(0)


@pytest.fixture
def shown(authority):
    """The address of a web server with the server's certificate; its errors say what time it is."""
    context, place = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), authority.parents[1] / "server"
    context.load_cert_chain(place / "server.crt", place / "server.key")
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as listener:
        listener.socket = context.wrap_socket(listener.socket, server_side=True)
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{listener.server_address[1]}"
        listener.shutdown()


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (86_400, "is 864.. s ahead of that of"), (-86_000, "is 8.... s behind that of"),
        (8, "is . s ahead of"), (-310, "is 3.. s behind"), (0, ""), (-200, ""),
    ],
)  # fmt: skip
def test_a_silo_whose_clock_flower_would_refuse_says_so(seconds, words, shown, place, monkeypatch):
    now = certificates.now
    monkeypatch.setattr(certificates, "now", lambda: now() + timedelta(seconds=seconds))
    said = said_by(place, shown, 1 if words else 9)
    if words:
        assert re.search(f"^The clock of this host {words}", said[0])
        assert "set the clocks of both. The next try is in 5 s." in said[0]
    else:
        assert len(said) == 2


@pytest.mark.parametrize(
    ("days", "words"),
    [
        (5, "its certificate is not valid yet by this host's clock, 2[^;]* UTC; set the clock"),
        (-900, "has expired by this host's clock, .* renews it with 'spcacw deploy renew'"),
    ],
)
def test_a_certificate_out_of_its_time_is_said_with_what_to_do(
    days, words, authority, place, tmp_path, monkeypatch
):
    now = certificates.now
    with monkeypatch.context() as patch:
        patch.setattr(certificates, "now", lambda: now() + timedelta(days=days))
        patch.setattr(certificates, "term", lambda *given: "")  # the authority is younger
        certificates.make_server(authority.parent, tmp_path / "server")
    listener, address = served(tmp_path / "server")
    (said,) = said_by(place, address, 1)
    assert re.search(words, said)
    listener.stop(0)


def test_a_server_whose_certificate_has_expired_does_not_start(authority, monkeypatch):
    now = certificates.now
    monkeypatch.setattr(certificates, "now", lambda: now() + timedelta(days=900))
    said = deploy("server", authority.parents[1] / "server", "--port", free_port(), code=1)
    assert "renew it with 'spcacw deploy renew'" in said


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("\n\033[91mERROR\033[0m: Exit Code: 305\nNo connection.\n[code: 2005] No.\n\nBye\n",
         "No connection. [code: 2005] No."),
        ("Exit Code: 305\n[code: 2004] Failed to activate SuperNode.\n\n", ADMIT),
    ],
)  # fmt: skip
def test_why_a_program_ended_is_said_in_its_words_at_the_end_of_its_log(words, why, tmp_path):
    """The log of a program that has run for long is long."""
    program = Program(["true"], tmp_path, tmp_path / "log")
    with program.log.open("wb") as file:
        file.seek(1 << 26)
        file.write(words.encode())
    tracemalloc.start()
    assert program.last_words == f" ({why})"
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_a_program_whose_json_log_was_moved_away_is_started_again(tmp_path, monkeypatch):
    """Its new log is not there at once."""
    monkeypatch.setattr("spcacw_flwr.flower.processes.PATIENCE", 0.0)
    program = Program(
        ["/bin/true"], tmp_path / "home", tmp_path / "log", as_json=True, patient=True
    ).start()
    program.process.wait()
    wait_until(program.log.exists)
    program.log.rename(tmp_path / "log.1")
    said = []
    keep([program], said.append)
    assert said == [f"true ended and was started again; its log is {program.log}"]


def test_exported_silos_are_what_their_config_says(tmp_path):
    deploy("export", tmp_path, "--set", "cluster-sizes=2,1", "--set", "samples-per-silo=64")
    config = Config.from_flat(tomllib.loads((tmp_path / "run.toml").read_text()))
    assert (config.run.setting, config.partition.silos) == ("files", 3)
    assert (config.transport.exchange, config.partition.input_shape) == ("stream", "1,8,8")
    for silo in range(3):
        assert silo_file(tmp_path / f"silo-{silo}" / "data", silo).is_file()


def test_a_federation_that_was_laid_out_may_be_moved(tmp_path):
    config = Config.from_keys(exchange="stream", cluster_sizes="1,1", samples_per_silo=64)
    resolved = federation.lay_out(tmp_path / "here", config, checked_setting(config))
    assert Path(resolved.transport.stream_key).is_file()
    for path in (tmp_path / "here").rglob("*.toml"):
        assert str(tmp_path) not in path.read_text(), path


def test_a_program_that_dies_is_started_again_unless_it_cannot_run(tmp_path, monkeypatch):
    program = Program(["/bin/sleep", "60"], tmp_path / "home", tmp_path / "log")
    program.start()
    process = program.process
    wait_until(lambda: family(program.home), 10)  # its environment may not be there at once
    assert [member.pid for member in family(program.home)] == [process.pid]
    assert named("sleep", program.home) == [process.pid]
    assert not program.keep()
    process.kill()
    process.wait()
    with pytest.raises(SpcacwError, match="sleep cannot run: see"):
        program.keep()
    monkeypatch.setattr("spcacw_flwr.flower.processes.SHORTEST_LIFE", 0.0)
    assert program.keep()
    assert program.process is not process
    program.process.kill()
    program.process.wait()
    program.patient = True
    monkeypatch.setattr("spcacw_flwr.flower.processes.PATIENCE", 0.5)
    assert not program.keep()
    wait_until(program.keep, 5)
    program.process.kill()
    program.process.wait()


@pytest.mark.parametrize("macos", [True, False])
def test_a_program_is_known_by_its_script_and_so_is_its_launcher(macos, tmp_path, monkeypatch):
    """On macOS such a process has the name of the interpreter. A dead one has its name only."""
    if macos:
        monkeypatch.setattr("psutil.Process.name", lambda process: "python3.11")
    script, launcher = tmp_path / "flower-supernode", tmp_path / "flower-superexec"
    script.write_text(f"#!/bin/sh\n{launcher} &\nexec sleep 60\n")
    launcher.write_text(f"#!{sys.executable}\nimport time\n\ntime.sleep(60)\n")
    for path in (script, launcher):
        path.chmod(0o700)
    program = Program(
        [str(script)], tmp_path / "home", tmp_path / "log", patient=True, launcher=launcher.name
    )
    with owning(program.home):
        program.start()
        (pid,) = wait_until(lambda: named(launcher.name, program.home), 10)
        if macos:
            assert not program.keep()  # it must be seen alive
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not program.keep() and not program.runs, 10)


def test_a_shell_with_the_hosts_flower_home_is_none_of_its_programs(place):
    """A user who looks at a host by Flower's own commands exports it."""
    shell = subprocess.Popen(["/bin/sleep", "60"], env={"FLWR_HOME": str(place.home)})
    with owning(place.home):
        assert family(place.home) == []
    assert shell.poll() is None
    shell.kill()
    shell.wait()


def test_a_killed_launchers_programs_are_ended_and_a_living_ones_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left, alive = tmp_path / "spcacw-left", tmp_path / "spcacw-alive"
    for home in (left, alive):
        home.mkdir()
    (left / LOCK).touch()
    with sleeping(left) as orphan, owning(alive), sleeping(alive) as program:
        end_left()
        assert not orphan.runs
        assert program.runs
    assert [left.exists(), alive.exists()] == [False, True]


@contextmanager
def sleeping(home: Path):
    """A program of a host, in the background."""
    program = Program(["/bin/sleep", "60"], home, home.parent / "log").start()
    wait_until(lambda: family(home), 10)
    try:
        yield program
    finally:
        program.process.kill()
        program.process.wait()


@pytest.mark.parametrize("command", ["server", "silo", "demo"])
def test_a_second_command_leaves_the_host_that_runs_alone(command, authority, place, monkeypatch):
    monkeypatch.setattr("spcacw_flwr.flower.processes.keep", lambda *_: pytest.fail("it runs"))
    host = {"server": Server(authority.parents[1] / "server", 0), "silo": place}.get(command)
    whole = federation.Federation(authority.parents[1], 1)
    for runs in [host] if host else [whole.server, whole.silos[0]]:
        runs.directory.mkdir(exist_ok=True)
        with owning(runs.home), sleeping(runs.home) as program:
            with one_sentence(f"Another command runs the host in {runs.directory}", "Ctrl-C"):
                if host:
                    until_ctrl_c(runs.home, list, "", lambda: True)
                else:
                    with whole.running():
                        pytest.fail("it runs")
            assert program.runs


def test_a_host_ends_what_a_killed_command_has_left_and_at_ctrl_c_its_own(place, monkeypatch):
    """The lock is gone with that command, and no program has it."""
    monkeypatch.setattr(Silo, "wait_for", lambda *given: None)
    monkeypatch.setattr(Silo, "supernode", lambda *given: ["/bin/sleep", "60"])
    code = (
        "import sys; from pathlib import Path; from spcacw_flwr.flower.processes import *\n"
        "with owning(home := Path(sys.argv[1])):\n"
        "    Program(['/bin/sleep', '60'], home, Path('/dev/null')).start()\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    command = [sys.executable, "-c", code, place.home]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    (left,) = wait_until(lambda: family(place.home), 10)

    def keep(programs, say):
        assert not left.is_running()
        assert [program.runs for program in programs] == [True]
        wait_until(lambda: family(place.home), 10)  # its environment may not be there at once
        raise KeyboardInterrupt

    monkeypatch.setattr("spcacw_flwr.flower.processes.keep", keep)
    said = deploy("silo", place.directory, "--superlink", "h:1", code=130)
    assert f"sleep runs; its log is {place.directory / 'silo.log'}." in said
    assert family(place.home) == []


def test_a_run_whose_command_was_killed_is_named_by_its_process(tmp_path, monkeypatch):
    server = Server(tmp_path, 0)
    monkeypatch.setattr(federation, "SERVERAPP", "sleep")
    monkeypatch.setattr("spcacw_flwr.flower.processes.STOP_SECONDS", 0.3)
    with sleeping(server.home) as program:
        words = f"end it with 'kill {program.process.pid}'"
        with one_sentence("whose command was killed", words), federation.alone(server):
            pytest.fail("it runs")
    with federation.alone(server):
        pass


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_is_one_that_there_is(command):
    words = shlex.split(command)[2:]
    parser = typer.main.get_command(commands).commands[words[0]]
    parser.make_context(words[0], words[1:])


def test_all_commands_are_on_the_page():
    names = {f"spcacw deploy {name}" for name in typer.main.get_command(commands).commands}
    assert all(name in PAGE for name in names)


def test_the_shown_run_is_the_committed_one():
    summary = json.loads((RESULTS / "deployment-summary.json").read_text())
    log = (ROOT / "docs" / "deploy" / "mnist-relabel.log").read_text()
    words = " ".join(PAGE.split())
    alone = summary["alone"]["last_accuracy"]
    assert f"at {summary['last_accuracy']:.2f} % (training alone: {alone:.2f} %)" in words
    assert f"{summary['last_accuracy']:.2f} │" in log
    assert f"{summary['rounds']:,} rounds in streams" in words
    assert f"{summary['seconds']:.0f} s of them" in words
    runs = {(r["column"], r["method"]): r for r in table(RESULTS / "mnist.csv")}
    simulated = runs["mnist-relabel", "spcacw"]
    assert abs(float(simulated["last_accuracy"]) - summary["last_accuracy"]) < 0.011  # one image
    weights = json.loads(simulated["alpha"])
    for silo, weight in enumerate(summary["alpha"]):
        assert f"{weights[str(silo)]:.3f}" == f"{weight:.3f}"


def test_the_rates_are_the_committed_ones():
    streams = table(ROOT / "benchmarks" / "stream.csv")
    messages = table(ROOT / "benchmarks" / "deployment-in-memory.csv")
    three = streams[0]
    assert three["silos"] == "3"
    assert float(three["rounds_per_second"]) > 100
    large = [float(row["method_ms"]) / float(row["round_ms"]) for row in streams[4:]]
    assert min(large) > 0.8  # the target moves bytes, and does not wait for silos
    seconds = [float(r["seconds"]) / float(r["rounds"]) for r in messages]
    assert "take {:.0f} and {:.0f} seconds a round".format(*seconds) in " ".join(PAGE.split())
