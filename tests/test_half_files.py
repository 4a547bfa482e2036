"""Who writes may be killed, run out of room, or find a directory that is read-only.

Each writer here works in a process of its own until that happens. Then every file is whole, or not
there, and the next writer goes on.
"""

import json
import multiprocessing
import os
import random
import resource
import subprocess
import time
from contextlib import contextmanager
from itertools import count
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine import checkpoint, plots
from spcacw_flwr.engine.directory import append, whole_lines, write_atomically
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.experiments.results import Table, read_csv
from spcacw_flwr.flower import certificates
from spcacw_flwr.flower.audit import LOG, Log
from spcacw_flwr.flower.auditing import checked
from spcacw_flwr.flower.policy import FILE, TOLD, SitePool
from spcacw_flwr.report.read import read
from spcacw_flwr.silos.protocol import Request
from spcacw_flwr.silos.setting import SiloData, write_silo
from spcacw_flwr.silos.setup import setting_of
from tests.flower.test_strategy import small

KILLS = 8


class Writer:
    """What begins to write in a directory, writes for the n-th time, and sees what is there."""

    seconds, room = 0.3, 6000
    """How long it lives at most, and how many bytes a file may have when the disk is full."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def write(self, n: int) -> None:
        raise NotImplementedError

    def check(self) -> None:
        raise NotImplementedError


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
    context.set_forkserver_preload(["tests.test_half_files"])
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
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with read_only(tmp_path), pytest.raises((OSError, SpcacwError)):
        kind(tmp_path).write(1)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    kind(tmp_path).write(2)
    kind(tmp_path).check()
