"""What the programs leave on a disk: where, for whose eyes, and never the half of a file.

Who writes may be killed, run out of room, or find a directory that is read-only. Then every file is
whole, or not there, and the next writer goes on.
"""

import json
import multiprocessing
import os
import random
import resource
import stat
import subprocess
import sys
import time
from contextlib import contextmanager
from itertools import count
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine import checkpoint, plots
from spcacw_flwr.engine.directory import append, whole_lines, write_atomically
from spcacw_flwr.engine.recorder import Recorder
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.experiments.results import Table, read_csv
from spcacw_flwr.flower import certificates, json_lines, processes
from spcacw_flwr.flower.audit import LOG, Log
from spcacw_flwr.flower.auditing import checked
from spcacw_flwr.flower.federation import start_server
from spcacw_flwr.flower.hosts import Server, Silo
from spcacw_flwr.flower.policy import FILE, TOLD, SitePool
from spcacw_flwr.partitions.data import MNIST, OFFLINE, cache_root, data_root, find
from spcacw_flwr.report.read import read
from spcacw_flwr.silos.protocol import Request
from spcacw_flwr.silos.setting import SiloData, write_silo
from spcacw_flwr.silos.setup import setting_of
from tests.conftest import contents, limited, one_sentence
from tests.flower.test_strategy import small
from tests.watching import wait_until

DATA = SiloData(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))
KILLS = 8


class Writer:
    """What begins to write in a directory; ``write(n)`` and ``check()`` are its kinds' own."""

    seconds, room = 0.3, 6000
    """How long it lives at most, and how many bytes a file may have when the disk is full."""

    def __init__(self, place: Path) -> None:
        self.place = place


class File(Writer):
    def write(self, n):
        write_atomically(self.place / "a.json", json.dumps([n] * 50_000).encode())

    def check(self):
        assert len(json.loads((self.place / "a.json").read_text())) == 50_000


class Growing(Writer):
    def write(self, n):
        append(self.place / "a.csv", ",".join([f"{n:06}"] * 500) + "\n")

    def check(self):
        assert {len(line) for line in whole_lines(self.place / "a.csv")} == {3500}
        self.write(0)
        assert {*map(len, (self.place / "a.csv").read_text().splitlines(True))} == {3500}


class Results(Writer):
    def write(self, n):
        made = Table(self.place / "a.csv", ["number", "words"], ["number"])
        made.add({"number": str(len(made.lines)), "words": "w" * 3000})
        made.arrange(made.lines.values())

    def check(self):
        lines = read_csv(self.place / "a.csv")
        assert {len(line["words"]) for line in lines} == {3000}
        assert [int(line["number"]) for line in lines] == [*range(len(lines))]


class Picture(Writer):
    def write(self, n):
        figure = plots.new_figure(4, 3)
        figure.add_subplot().imshow(np.random.default_rng(0).random((200, 200)))
        plots.save(figure, self.place / "a.png")

    def check(self):
        Image.open(self.place / "a.png").load()


class Keys(Writer):
    room = 250

    def write(self, n):
        certificates.make_silo_key(self.place / f"silo-{os.getpid()}-{n}")

    def check(self):
        for path in self.place.glob("*/silo.key"):
            certificates.private_key(path)


class AuditLog(Writer):
    def __init__(self, place):
        super().__init__(place)
        if not (place / certificates.SILO_KEY).exists():
            certificates.make_silo_key(place)
        self.log = Log(place / LOG, place / certificates.SILO_KEY)

    def write(self, n):
        self.log.note("answer", words="w" * 500)
        if n % 3 == 0:
            self.log.seal()

    def check(self):
        self.log.seal()
        checked(self.place / LOG)


class Counts(Writer):
    room = 250

    def __init__(self, place):
        super().__init__(place)
        if not (place / FILE).exists():
            (place / FILE).write_text("rounds = 1000000\n")
        config = small()
        self.pool = SitePool(config, setting_of(config), range(7), None, place / FILE, "spcacw")

    def write(self, n):
        request = Request(1, tuple(range(7)), self.pool.initial_parameters())
        self.pool.see("gradients", request.silos, request)

    def check(self):
        self.write(0)
        told = json.loads((self.place / TOLD).read_text())
        assert len({one["rounds"] for one in told.values()}) == 1


class Data(Writer):
    def write(self, n):
        labels = torch.zeros(2000, dtype=torch.int64)
        write_silo(self.place, 0, SiloData(torch.zeros(2000, 8), labels), None)

    def check(self):
        load_file(self.place / "silo-0.safetensors")


class Checkpoint(Writer):
    def write(self, n):
        states = bytes([n % 256]) * 100_000
        checkpoint.save(self.place, states, {"version": checkpoint.__version__, "round": n})

    def check(self):
        content, path = checkpoint.load(self.place)
        assert path.read_bytes()[0] == content["round"] % 256


class Training(Writer):
    seconds = 2.0

    def write(self, n):
        simulate(small(epochs=3, output=str(self.place / f"{os.getpid()}-{n}"), checkpoint_every=1))

    def check(self):
        for path in self.place.glob("*/config.toml"):
            read(path.parent)
            notes = path.parent / checkpoint.DIRECTORY
            if checkpoint.exists(notes):
                checkpoint.load(notes)
            for picture in path.parent.glob("*.png"):
                Image.open(picture).load()


WRITERS = [File, Growing, Results, Picture, Keys, AuditLog, Counts, Data, Checkpoint, Training]


def work(kind: type[Writer], place: Path, begun, most: int | None = None) -> None:
    """Write for ever, or until there is an error: no file may have more than so many bytes."""
    torch.set_num_threads(1)
    writer = kind(place)
    writer.write(0)
    if most is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
    begun.set()
    for n in count(1):
        writer.write(n)


def started(*given: object) -> BaseProcess:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.test_disk"])
    begun = context.Event()
    process = context.Process(target=work, args=(given[0], given[1], begun, *given[2:]))
    process.start()
    assert begun.wait(60)
    return process


@pytest.mark.slow
@pytest.mark.parametrize("kind", WRITERS)
def test_a_writer_that_is_killed_leaves_no_half_file(kind, tmp_path):
    rng = random.Random(kind.__name__)
    for _ in range(KILLS):
        process = started(kind, tmp_path)
        time.sleep(rng.uniform(0, kind.seconds))
        process.kill()
        process.join()
        kind(tmp_path).check()


@pytest.mark.parametrize("kind", WRITERS)
def test_a_full_disk_leaves_no_half_file(kind, tmp_path):
    rng = random.Random(kind.__name__)
    for place in (tmp_path / "a", tmp_path / "b"):
        place.mkdir()
        process = started(kind, place, rng.randrange(kind.room // 2, kind.room))
        process.join(60)
        assert process.exitcode == 1
        kind(place).check()


@contextmanager
def read_only(place: Path):
    """For root, too, of whom modes mean nothing."""
    if os.geteuid():
        place.chmod(0o500)
        yield
        place.chmod(0o700)
        return
    mount = ["mount", "--bind", place, place], ["mount", "-o", "remount,bind,ro", place]
    if any(subprocess.run(command, capture_output=True).returncode for command in mount):
        pytest.skip("nothing can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("kind", WRITERS)
def test_a_read_only_directory_stays_as_it_was(kind, tmp_path):
    kind(tmp_path).write(0)
    before = contents(tmp_path)
    with read_only(tmp_path), pytest.raises((OSError, SpcacwError)):
        kind(tmp_path).write(1)
    assert contents(tmp_path) == before
    kind(tmp_path).write(2)
    kind(tmp_path).check()


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
        for name in ("silo.log", "json.log"):
            program = processes.Program(
                ["echo", name], tmp_path / "flower", tmp_path / name, as_json=name == "json.log"
            )
            program.start().process.wait()
            wait_until((tmp_path / name).exists, 20)
    finally:
        os.umask(before)
    modes = {path.name: mode(path) for path in tmp_path.iterdir() if path.is_file()}
    readable = {name for name, found in modes.items() if found == "0o666"}
    assert readable == {"silo.pub", "policy.toml"}
    assert {modes[name] for name in modes.keys() - readable} == {"0o600"}
    assert modes.keys() - readable == {
        "silo.key", "audit.jsonl", "audit.head", "told.json", "silo.log", "json.log",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc says a process's umask")
def test_the_superlinks_database_too_and_results_have_the_users_umask(tmp_path):
    certificates.make_authority(tmp_path / "ca")
    certificates.make_server(tmp_path / "ca", tmp_path / "server")
    server, before = Server(tmp_path / "server", processes.free_port()), os.umask(0)
    try:
        with processes.owning(server.home):
            programs = start_server(server, "127.0.0.1", print)
            status = [Path(f"/proc/{one.process.pid}/status").read_text() for one in programs]
    finally:
        os.umask(before)
    assert ["Umask:\t0000" in words for words in status] == [False, True]
    modes = {path.name: mode(path) for path in server.directory.iterdir() if path.is_file()}
    assert {name for name, found in modes.items() if found != "0o600"} == {"ca.crt", "server.crt"}
    assert {"state.db", "superlink.log", "serverapp.log"} <= modes.keys()


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


def test_a_run_that_fails_on_a_full_disk_says_why_it_failed(tmp_path):
    run = Recorder(tmp_path / "run", small(), "in-process")
    with limited(0), one_sentence("silo 0 did not answer"), run.failing():
        raise SpcacwError("silo 0 did not answer")


def test_where_there_is_no_room_no_half_file_is_left(tmp_path):
    file = write_silo(tmp_path, 0, DATA, None)
    before = file.read_bytes()
    with limited(0), pytest.raises(SpcacwError, match="cannot be written"):
        write_silo(tmp_path, 0, SiloData(torch.ones(9, 3), DATA.y), None)
    assert file.read_bytes() == before
    with limited(0), pytest.raises(SpcacwError, match=r"silo\.key cannot be written"):
        certificates.make_silo_key(tmp_path)
    assert list(tmp_path.iterdir()) == [file]
