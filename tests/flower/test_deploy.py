"""The commands of each host, without Flower, and what docs/deploy.md says of them."""

from __future__ import annotations

import csv
import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import typer
from flwr.common.config import parse_config_args
from typer.testing import CliRunner

from spcacw_flwr.cli import app
from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.flower.deploy import app as commands
from spcacw_flwr.flower.federation import Server, Silo, as_node_config, going_on
from spcacw_flwr.flower.processes import Program, family, program_runs
from spcacw_flwr.partitions.files import silo_file
from tests.watching import wait_until

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deploy.md").read_text()
BLOCKS = "\n".join(re.findall(r"```bash\n(.*?)```", PAGE, re.S)).replace("\\\n", " ")
COMMANDS = [line for line in BLOCKS.splitlines() if line.startswith("spcacw deploy")]
RESULTS = ROOT / "experiments" / "results"


def deploy(*arguments: object):
    words = [str(argument) for argument in arguments]
    return CliRunner().invoke(app, ["deploy", *words], env={"COLUMNS": "300"})


@pytest.fixture
def authority(tmp_path):
    assert deploy("ca", tmp_path / "fed", "--host", "fl.example.org").exit_code == 0
    return tmp_path / "fed" / "ca" / "ca.crt"


def test_a_server_and_a_silo_are_made_on_hosts_of_their_own(authority, tmp_path):
    silo = tmp_path / "elsewhere" / "my silo"
    done = deploy("key", silo, "--silo", 3, "--ca", authority, "--data", "/srv/study")
    assert done.exit_code == 0, done.output
    assert f"Send {silo / 'silo.pub'} to the server's owner" in done.output
    assert (silo / "ca.crt").read_bytes() == authority.read_bytes()
    command = Silo(silo).supernode("fl.example.org:9092", 9094)
    assert command[command.index("--auth-supernode-private-key") + 1] == str(silo / "silo.key")
    text = command[command.index("--node-config") + 1]
    assert parse_config_args([text]) == {
        "silos": "3", "root-certificates": str(silo / "ca.crt"), "data-dir": "/srv/study",
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


def test_what_a_node_config_may_hold_reaches_flower():
    table = {"silos": "3", "group": 1.0, "full": True, "data-dir": "/a b/c#=d"}
    assert parse_config_args([as_node_config(table)]) == table


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("silos = ", "cannot be read"),
        ("group = 1", "names no silo"),
        ("silos = '3'\nname = \"it's\"", "is not allowed: it must be a number"),
        ("silos = '3'\nname = [1]", "is not allowed: it must be a number"),
    ],
)
def test_a_node_config_that_cannot_be_used_is_refused(text, words, tmp_path):
    (tmp_path / "node.toml").write_text(text)
    with pytest.raises(SpcacwError, match=words):
        Silo(tmp_path).node_config()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ca", "."], "ca.key exists already"),
        (["key", "silo", "--silo", "0", "--ca", "none.crt"], "none.crt is no file"),
        (["server", "nothing"], "nothing/ca.crt is missing"),
        (["register", "server", "none.pub"], "none.pub cannot be read"),
        (["silo", "nothing", "--superlink", "h:1"], "nothing/silo.key is missing"),
        (["run", "nothing", "--output", "out"], "nothing/server.crt is missing"),
        (["run", "server", "--output", "out", "--set", "epoch=1"], "did you mean epochs"),
        (["demo", "demo", "--set", "setting=digit"], "digits-relabel"),
        (["demo", "demo", "--set", "setting=mnist-relabel", "--data-dir", "none"], "data-dir"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, words, authority, monkeypatch, offline):
    monkeypatch.chdir(authority.parent.parent)
    done = deploy(*arguments)
    assert done.exit_code == 1
    assert done.output.startswith("spcacw:")
    assert words in " ".join(done.output.split())
    assert not isinstance(done.exception, SpcacwError)


def test_exported_silos_are_what_their_config_says(tmp_path):
    done = deploy("export", tmp_path, "--set", "cluster-sizes=2,1", "--set", "samples-per-silo=64")
    assert done.exit_code == 0, done.output
    config = Config.from_flat(tomllib.loads((tmp_path / "run.toml").read_text()))
    assert (config.run.setting, config.partition.silos) == ("files", 3)
    assert (config.transport.exchange, config.partition.input_shape) == ("stream", "1,8,8")
    for silo in range(3):
        assert silo_file(tmp_path / f"silo-{silo}" / "data", silo).is_file()


def test_a_run_goes_on_where_there_is_a_checkpoint(tmp_path):
    config = Config.from_keys(output=str(tmp_path))
    assert going_on(config).run.resume == ""
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "checkpoint.json").touch()
    assert going_on(config).run.resume == str(tmp_path)


def test_a_program_that_dies_is_started_again_unless_it_cannot_run(tmp_path, monkeypatch):
    program = Program(["/bin/sleep", "60"], tmp_path / "home", tmp_path / "log")
    program.start()
    process = program.process
    wait_until(lambda: family(program.home), 10)  # its environment may not be there at once
    assert [member.pid for member in family(program.home)] == [process.pid]
    assert program_runs("s", program.home)
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


def test_ctrl_c_ends_what_a_host_has_started(tmp_path, monkeypatch):
    place, kept = Silo(tmp_path / "silo"), []
    place.directory.mkdir()
    monkeypatch.setattr(Silo, "supernode", lambda *given: ["/bin/sleep", "60"])

    def keep(programs, say):
        kept.extend(programs)
        wait_until(lambda: family(place.home), 10)
        raise KeyboardInterrupt

    monkeypatch.setattr("spcacw_flwr.flower.deploy.keep", keep)
    done = deploy("silo", place.directory, "--superlink", "h:1")
    assert done.exit_code == 130, done.output
    assert f"sleep runs; its log is {place.directory / 'silo.log'}." in done.output
    assert [program.process.poll() is None for program in kept] == [False]


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
