"""What was decoded once is read from disk, beside the data or elsewhere, but never when stale."""

import json
import logging
import threading
import time

import numpy as np
import pytest

from spcacw_flwr.partitions import cache
from spcacw_flwr.partitions.cache import BESIDE, ELSEWHERE, cache_directory, checksum, decoded

ARRAYS = {"x": np.arange(12, dtype=np.uint8).reshape(3, 4), "names": np.array(["a", "bc"])}


class Decoder:
    """Counts how often it was asked to decode."""

    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return {key: array.copy() for key, array in ARRAYS.items()}


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def data(tmp_path, home):
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def same(arrays):
    assert arrays.keys() == ARRAYS.keys()
    for key, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[key], array)
        assert arrays[key].dtype == array.dtype
        assert not arrays[key].flags.writeable


def test_decodes_once_beside_the_data(data, home):
    decode = Decoder()
    for _ in range(3):
        same(decoded("d", "f" * 64, data, decode))
    assert decode.calls == 1
    files = {p.name for p in (data / BESIDE / ("d-" + 16 * "f")).iterdir()}
    assert files == {"x.npy", "names.npy", "manifest.json"}
    assert not home.exists()


def test_a_directory_without_write_permission_is_left_alone(data, home):
    """Even by the superuser, who could write there."""
    data.chmod(0o555)
    decode = Decoder()
    try:
        for _ in range(2):
            same(decoded("d", "f" * 64, data, decode))
        assert not list(data.iterdir())
    finally:
        data.chmod(0o755)
    assert decode.calls == 1
    assert (home / ELSEWHERE.removeprefix("~/") / ("d-" + 16 * "f") / "x.npy").is_file()


def test_a_data_directory_that_does_not_exist_has_its_entries_elsewhere(data, home):
    assert cache_directory(data / "none") == home / ELSEWHERE.removeprefix("~/")


def test_another_source_is_decoded_anew(data):
    decode = Decoder()
    for source in ("1" * 64, "2" * 64, "1" * 64):
        same(decoded("d", source, data, decode))
    assert decode.calls == 2


def test_the_checksum_is_over_names_and_contents(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_text("one")
    b.write_text("two")
    sums = {checksum([a, b]), checksum([b, a]), checksum([a])}
    a.write_text("One")
    sums |= {checksum([a, b])}
    assert len(sums) == 4


@pytest.mark.parametrize("harm", ["truncate", "flip", "lose", "manifest", "empty manifest"])
def test_a_damaged_entry_is_made_again(data, harm, caplog):
    decode = Decoder()
    decoded("d", "f" * 64, data, decode)
    entry = data / BESIDE / ("d-" + 16 * "f")
    file = entry / "x.npy"
    content = file.read_bytes()
    if harm == "truncate":
        file.write_bytes(content[:-1])
    elif harm == "flip":
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif harm == "lose":
        file.unlink()
    elif harm == "manifest":
        (entry / "manifest.json").write_text("{")
    else:
        (entry / "manifest.json").write_text("")
    for _ in range(2):
        same(decoded("d", "f" * 64, data, decode))
    assert decode.calls == 2
    assert json.loads((entry / "manifest.json").read_text()).keys() == ARRAYS.keys()
    assert not list((data / BESIDE).glob(".decoding-*"))


def test_what_cannot_be_decoded_leaves_nothing(data):
    def fail():
        raise RuntimeError("no such data")

    with pytest.raises(RuntimeError, match="no such data"):
        decoded("d", "f" * 64, data, fail)
    assert [p.name for p in (data / BESIDE).iterdir() if not p.name.endswith(".lock")] == []
    same(decoded("d", "f" * 64, data, Decoder()))


def test_where_nothing_can_be_written_it_works_and_says_so(data, home, caplog):
    data.chmod(0o555)
    home.write_text("a file, not a directory")
    try:
        with caplog.at_level(logging.WARNING):
            same_values = decoded("d", "f" * 64, data, Decoder())
    finally:
        data.chmod(0o755)
    np.testing.assert_array_equal(same_values["x"], ARRAYS["x"])
    assert "decoded anew at each start" in caplog.text


def test_a_full_disk_is_no_reason_to_stop(data, caplog, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    same(decoded("d", "f" * 64, data, Decoder()))
    assert "No space left" in caplog.text
    assert not list((data / BESIDE).glob(".decoding-*"))


def test_two_processes_at_once_decode_once(data):
    decode = Decoder()

    def slowly():
        time.sleep(0.2)
        return decode()

    results = []
    threads = [
        threading.Thread(target=lambda: results.append(decoded("d", "f" * 64, data, slowly)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert decode.calls == 1
    for arrays in results:
        same(arrays)


def test_nothing_is_pickled(data):
    decoded("d", "f" * 64, data, Decoder())
    entry = data / BESIDE / ("d-" + 16 * "f")
    for key in ARRAYS:
        np.load(entry / f"{key}.npy", allow_pickle=False)
    objects = {"x": np.array([{}], dtype=object)}
    with pytest.raises(ValueError, match="pickle"):
        decoded("o", "e" * 64, data, lambda: objects)
    assert cache._read(data / BESIDE / ("o-" + 16 * "e")) is None
