"""What the programs leave on a disk: where, for whose eyes, and never the half of a file."""

import json
import os
import resource
import stat
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import torch

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.directory import write_atomically
from spcacw_flwr.flower import certificates, json_lines, processes
from spcacw_flwr.flower.federation import Silo
from spcacw_flwr.partitions.data import MNIST, OFFLINE, cache_root, data_root, find
from spcacw_flwr.silos.setting import SiloData, write_silo
from tests.conftest import one_sentence
from tests.test_half_files import AuditLog, Counts

DATA = SiloData(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))


@contextmanager
def no_room():
    """No file can grow: the system says so to whoever writes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def mode(path: Path) -> str:
    return oct(stat.S_IMODE(path.stat().st_mode))


@pytest.mark.skipif(sys.platform != "linux", reason="other platforms have other places")
def test_what_can_be_had_again_is_in_the_platforms_cache(tmp_path, monkeypatch, offline):
    assert cache_root() == tmp_path / "home" / ".cache" / "spcacw"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "spcacw"
    monkeypatch.setenv("SPCACW_CACHE_DIR", str(tmp_path / "own"))
    assert (cache_root(), data_root("")) == (tmp_path / "own", tmp_path / "own" / "data")


def test_flowers_programs_download_nothing(tmp_path, monkeypatch, offline):
    monkeypatch.setattr("torchvision.datasets.MNIST", lambda *_, **__: pytest.fail("a download"))
    monkeypatch.setenv(OFFLINE, processes.environment(tmp_path)[OFFLINE])
    with one_sentence("MNIST is not in", OFFLINE):
        find(MNIST, data_root(str(tmp_path)))
    assert not (tmp_path / "home").exists()


def test_data_and_keys_are_for_their_owner_alone(tmp_path):
    certificates.make_authority(tmp_path / "ca")
    place = Silo(tmp_path / "silo")
    file = write_silo(place.directory / "data", 0, DATA, None)
    assert (mode(file.parent), mode(file)) == ("0o700", "0o600")
    place.make(0, tmp_path / "ca" / "ca.crt", "data")
    assert mode(place.directory / "silo.key") == mode(tmp_path / "ca" / "ca.key") == "0o600"


def test_so_is_what_a_host_writes_of_itself(tmp_path):
    """Under the most generous umask, under which what everybody may read is 0666."""
    before = os.umask(0)
    try:
        AuditLog(tmp_path).log.seal()
        Counts(tmp_path).write(0)
        program = processes.Program(["true"], tmp_path / "flower", tmp_path / "silo.log").start()
        program.process.wait()
    finally:
        os.umask(before)
    modes = {path.name: mode(path) for path in tmp_path.iterdir() if path.is_file()}
    readable = {name for name, found in modes.items() if found == "0o666"}
    assert readable == {"silo.pub", "policy.toml"}
    assert {modes[name] for name in modes.keys() - readable} == {"0o600"}
    assert modes.keys() - readable == {
        "silo.key", "audit.jsonl", "audit.head", "told.json", "silo.log",
    }  # fmt: skip


def test_a_device_is_written_to_and_never_replaced(tmp_path):
    (tmp_path / "link").symlink_to("/dev/null")
    write_atomically(tmp_path / "link", b"words")
    assert (tmp_path / "link").is_char_device()


def test_words_that_find_no_room_do_not_end_the_program_that_says_them(tmp_path):
    log = tmp_path / "silo.log"
    command = [sys.executable, json_lines.__file__, str(log), "flower-supernode"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as writer:
        psutil.Process(writer.pid).rlimit(psutil.RLIMIT_FSIZE, (20, resource.RLIM_INFINITY))
        for _ in range(100):
            writer.stdin.write(b"INFO : round 1\n")
            writer.stdin.flush()
        time.sleep(0.5)
        assert writer.poll() is None
        psutil.Process(writer.pid).rlimit(psutil.RLIMIT_FSIZE, [resource.RLIM_INFINITY] * 2)
        writer.stdin.write(b"INFO : round 2\n")
    assert json.loads(log.read_text().splitlines()[-1])["message"] == "round 2"


def test_where_there_is_no_room_no_half_file_is_left(tmp_path):
    file = write_silo(tmp_path, 0, DATA, None)
    before = file.read_bytes()
    with no_room(), pytest.raises(SpcacwError, match="cannot be written"):
        write_silo(tmp_path, 0, SiloData(torch.ones(9, 3), DATA.y), None)
    assert file.read_bytes() == before
    with no_room(), pytest.raises(SpcacwError, match=r"silo\.key cannot be written"):
        certificates.make_silo_key(tmp_path)
    assert list(tmp_path.iterdir()) == [file]
