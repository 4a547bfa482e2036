"""What the programs leave on a disk: where, for whose eyes, and never the half of a file."""

from __future__ import annotations

import resource
import stat
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.flower import certificates, processes
from spcacw_flwr.flower.federation import Silo
from spcacw_flwr.partitions.data import MNIST, OFFLINE, cache_root, data_root, find
from spcacw_flwr.silos.setting import SiloData, write_silo
from tests.conftest import one_sentence

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


def test_where_there_is_no_room_no_half_file_is_left(tmp_path):
    file = write_silo(tmp_path, 0, DATA, None)
    before = file.read_bytes()
    with no_room(), pytest.raises(SpcacwError, match="cannot be written"):
        write_silo(tmp_path, 0, SiloData(torch.ones(9, 3), DATA.y), None)
    assert file.read_bytes() == before
    with no_room(), pytest.raises(SpcacwError, match=r"silo\.key cannot be written"):
        certificates.make_silo_key(tmp_path)
    assert list(tmp_path.iterdir()) == [file]
