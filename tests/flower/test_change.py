"""What changes while a federation lives: certificates, versions, keys, members, a second run.

Real processes on loopback; each silo's directory lies where no other would look.
"""

import json
import os
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography import x509

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.flower import audit, certificates, launch, records
from spcacw_flwr.flower.auditing import checked, reconciled
from spcacw_flwr.flower.federation import LAUNCHER, THREADS, register, revoke, silo_program
from spcacw_flwr.flower.hosts import OLD_KEY, Place, Silo
from spcacw_flwr.flower.processes import end, free_port
from tests.flower.test_deploy import deploy
from tests.flower.test_federation import (
    Run,
    beats,
    config,
    federation,
    kill,
    log_of,
    processes,
    root,
    run,
)
from tests.test_end_to_end import PLAIN, SPCACW, metrics
from tests.watching import wait_until

pytestmark = pytest.mark.slow
__all__ = ["beats", "config", "federation", "root", "run"]


def stopped(federation, silo: int) -> Silo:
    """A silo whose programs have ended, and are not started again."""
    place = federation.silos[silo]
    federation._kept[:] = [one for one in federation._kept if one.home != place.home]
    end(place.home)
    return place


def started(federation, place: Silo, **more: str) -> None:
    program = silo_program(place, federation.server.address, free_port(), THREADS | more)
    federation._kept.append(program.start())


def events_of(place: Place, event: str) -> list[dict]:
    path = place.directory / audit.LOG
    lines = map(json.loads, path.read_text().splitlines() if path.exists() else ())
    return [line for line in lines if line["event"] == event]


def wait_for_answers(run: Run, silo: int) -> None:
    """Wait until the run has used more answers of a silo than it may have kept."""
    known = run.reports(silo)
    wait_until(lambda: run.reports(silo) > known + 8)


def serial(address: str, authority: Path) -> int:
    """The number of the certificate that is shown at an address; 0 if there is none."""
    try:
        shown = certificates.served(address, authority)
    except OSError:
        return 0
    return x509.load_pem_x509_certificate(shown).serial_number


def test_a_silo_of_another_version_is_refused_before_training(federation, config, tmp_path):
    """Both ends say so; and a run begins when it is of the same version again."""
    place, other = stopped(federation, 1), tmp_path / "spcacw_flwr-0.0.9.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: spcacw-flwr\nVersion: 0.0.9\n")
    started(federation, place, PYTHONPATH=os.pathsep.join([str(tmp_path), THREADS["PYTHONPATH"]]))
    with Run(federation, config, tmp_path / "run", epochs=2).going_on() as run:
        error = str(run.finish())
    protocol = f"(protocol {records.PROTOCOL})"
    sentence = f"{protocol}, and this silo 0.0.9 {protocol}: install the same version"
    assert sentence in error
    assert sentence in (place.directory / "silo.log").read_text()
    assert sentence in events_of(place, audit.REFUSED)[-1]["why"]
    assert not (run.output / "metrics.jsonl").exists()
    stopped(federation, 1)
    started(federation, place)


def test_a_run_that_a_silo_missed_goes_on_by_the_same_command(federation, config, root, tmp_path):
    """It had no checkpoint yet."""
    place, output = stopped(federation, 1), tmp_path / "run"
    command = (
        "run", federation.server.directory, "--port", federation.server.port, "--output", output,
        "--config", root / "run.toml", "--set", "epochs=2", "--set", "node-timeout=3",
    )  # fmt: skip
    deploy(*command, code=1)
    assert "silo" in launch.read_status(output)["error"]
    assert not (output / "checkpoint").exists()
    started(federation, place)
    deploy(*command[:-1], "node-timeout=240")
    assert [line["epoch"] for line in metrics(output)] == [1, 2]


def test_a_silo_whose_launcher_dies_is_started_again(federation, config, tmp_path):
    """A SuperNode without it stays connected, and would answer nothing for ever."""
    wait_until(lambda: processes(federation.silos[1].home, LAUNCHER))
    kill(federation.silos[1].home, LAUNCHER)
    with Run(federation, config, tmp_path / "run", epochs=2).going_on() as run:
        assert run.finish() is None
    assert processes(federation.silos[1].home, LAUNCHER)


def test_a_second_run_is_refused_while_one_is_on(federation, config, run, tmp_path):
    second = Run(federation, config, tmp_path / "second", epochs=2)
    second.thread.start()
    assert f"A run is on at {federation.server.directory}, and" in str(second.finish())
    run.wait_for_epochs(2)


def test_a_certificate_is_renewed_under_a_run_which_does_not_notice(federation, run, root):
    """The SuperLink is started again with it; a silo that comes back opens a stream with it."""
    server, authority = federation.server, root / "ca" / "ca.crt"
    path = server.directory / certificates.SERVER_CERTIFICATE
    old = x509.load_pem_x509_certificate(good := path.read_bytes())
    (superlink,) = processes(server.home, "flower-superlink")
    (serverapp,) = processes(server.home, "flwr-serverapp")
    path.write_text("half of a fi")  # is not taken
    run.wait_for_epochs(3)
    assert superlink.is_running()
    path.write_bytes(good)
    assert "for 824 days more" in deploy("renew", root / "ca", path)
    new = x509.load_pem_x509_certificate(path.read_bytes())
    assert new.serial_number != old.serial_number
    assert new.public_key() == old.public_key()
    wait_until(lambda: serial(server.address, authority) == new.serial_number)
    assert not superlink.is_running()
    run.wait_for_epochs(3)
    end(federation.silos[1].home)  # its program is started again
    wait_for_answers(run, 1)
    address = events_of(federation.silos[1], "stream")[-1]["address"]
    assert serial(address, authority) == new.serial_number
    assert serverapp.is_running()


def test_a_silo_gets_a_new_key_in_a_run(federation, run):
    server, place = federation.server, federation.silos[2]
    with pytest.raises(SpcacwError, match="runs: end its 'spcacw deploy silo' first"):
        place.rotate()
    stopped(federation, 2)
    place.rotate()
    (node,) = register(server, [place.public_key], print)
    revoke(server, place.directory / OLD_KEY, print)
    started(federation, place)
    wait_for_answers(run, 2)
    with pytest.raises(SpcacwError, match="was revoked: its silo gets a new key"):
        register(server, [place.directory / OLD_KEY], print)
    assert f"Node {node} holds silos [2] now" in log_of(run)


def test_a_registration_that_was_cut_short_is_completed_and_can_be_revoked(federation, tmp_path):
    """Flower knew the key, and the server's directory did not."""
    server, place = federation.server, Silo(tmp_path / "silo")
    place.make(3, server.directory / certificates.CA_CERTIFICATE, "data")
    key = str(place.public_key)
    node = str(server.link().cli("supernode", "register", key, launch.CONNECTION)["node-id"])
    assert register(server, [place.public_key], print) == [node]
    assert server.members.silos_of(int(node)) == [3]
    assert revoke(server, place.public_key, print) == node


@contextmanager
def inviting(server, port: int, *silos: int):
    """The tokens of ``spcacw deploy invite``, while it waits, and its process."""
    command = [SPCACW, "deploy", "invite", str(server.directory), "--port", str(server.port),
               "--join-port", str(port), "--minutes", "2"]  # fmt: skip
    for silo in silos:
        command += ["--silo", str(silo)]
    process = subprocess.Popen(
        command, env=os.environ | PLAIN, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        said: list[str] = []
        while len(said) < 2 + len(silos):
            said.append(process.stdout.readline())
            assert said[-1], said
        yield [line.split()[-1] for line in said[2:]], process
    finally:
        process.terminate()
        process.communicate(timeout=30)


def test_a_silo_joins_by_a_token_takes_part_and_is_revoked(federation, run, tmp_path_factory):
    """It has the number of silo 3, whose node is gone, and cannot take another's."""
    server, data = federation.server, federation.silos[3].directory / "data"
    place, port = Silo(tmp_path_factory.mktemp("joined") / "silo"), free_port()
    stopped(federation, 3)
    with inviting(server, port, 3) as ((token,), process):
        said = deploy("join", place.directory, token, "--data", data)
        assert f"--superlink 127.0.0.1:{server.port}" in said
        assert process.wait(timeout=30) == 0  # all have joined
    assert "cannot be reached" in deploy("join", place.directory, token, code=1)
    node_file = place.directory / "node.toml"
    group = federation.silos[3].node_config()["group"]  # it says of itself what silo 3 did
    right = f"{node_file.read_text()}group = {group}\n"
    theirs = str(federation.silos[0].directory / "data")
    node_file.write_text(right.replace('"3"', '"0"').replace(str(data), theirs))
    federation.silos[3] = place
    started(federation, place)
    wait_until(lambda: events_of(place, audit.ANSWER))  # before Flower's slow command is asked
    wait_until(lambda: "claims silo 0, and its key was admitted for silo 3" in log_of(run))
    stopped(federation, 3)
    node_file.write_text(right)
    started(federation, place)
    wait_for_answers(run, 3)

    deploy("revoke", server.directory, place.public_key, "--port", server.port)
    said = (place.directory / "silo.log").read_text
    wait_until(lambda: "its key was revoked" in said())
    run.wait_for_epochs(2)
    heard = run.reports(3)
    tries = said().count("Failed to initialize the connection")
    wait_until(lambda: said().count("Failed to initialize the connection") > tries)
    run.wait_for_epochs(3)
    assert run.reports(3) == heard
    assert log_of(run).count("Silo 3 was revoked") == 1
    assert events_of(server, audit.REVOKED)[-1]["key"].endswith("silo-3")
    assert any("was revoked" in line["why"] for line in events_of(server, audit.REFUSED))


def test_after_all_that_the_run_ends_and_every_log_goes_on_from_key_to_key(federation, run):
    run.stop = True
    assert isinstance(run.finish(), KeyboardInterrupt)
    time.sleep(2 * audit.SEAL_SECONDS)
    target = checked(federation.server.directory / audit.LOG)
    for place in federation.silos[:3]:  # silo 3 has two directories, each with a half of its log
        old = place.directory / OLD_KEY
        for key in [None, *[[old]] * old.exists()]:
            lines = checked(place.directory / audit.LOG, key)
        assert len(events_of(place, audit.KEY)) == old.exists()
        both, _, wrong = reconciled(lines, target)
        assert wrong == []
        assert both > 16
