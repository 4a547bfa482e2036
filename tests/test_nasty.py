"""What users get wrong, by accident or on purpose: one sentence, soon, and no traceback."""

import errno
import re
import signal
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import Mock

import pytest

from spcacw_flwr.flower import launch
from tests.conftest import one_sentence, spcacw

SECONDS = 20
"""In which every mistake must be found; each takes one at most, PyTorch's import aside."""
FILES = 'setting="files" silos=2'

KEYS = {
    "0, or of a size between 1e-18 and 1e+18": [
        "eta=1e300", "width=1e300", "weight-decay=1e300", "smoothness=1e308", "max-norm=1e300",
        "norm-bound=1e308", "privacy-noise=1e308", "beta=1e-320", "max-norm=1e-320",
        "node-timeout=1e300", "participation=1e-320", "privacy-delta=1e-320",
    ],
    "this machine has": [
        "hidden=1000000000", "hidden=1000000000000000", "hidden=100000000000000000000000",
        "hidden=2000000000", "width=1e9", "width=1e15",
        f'input-shape="1000000000,1000000000" {FILES}',
        f'classes=9999999999999 input-shape="2" {FILES}',
        f'width=100000 model="vgg16" input-shape="3,32,32" {FILES}',
    ],
    "must be a whole number in [0, 1000000]": [
        "silos=1000000000", 'silos=1000000000 setting="mnist-rotate"',
        'silos=1000000000 setting="shakespeare"', f'{FILES} silos=1000000000 input-shape="2"',
        f'{FILES} silos={"9" * 30}',
    ],
    "are more than 1000000 silos": [
        'cluster-sizes="1000000000"', 'cluster-sizes="1000000,1"', f'cluster-sizes="{"9" * 30}"',
    ],
    "must be a whole number in [1, 10000]": ["local-batches=1000000000"],
    "must list silo ids in 0…6": [
        f'privacy-silos="{text}" privacy-noise=1' for text in ("²", "٣", "[/red]", "9" * 30, "-1")
    ],
    "cannot be used here": ['device="meta"', 'device="[/red]"', 'device="cuda:9999999999999"'],
    "a text without": ['output="a\\u0000b"', 'data-dir="\\u0000"', 'resume="\\u0000"'],
    "There is no key": ["[/red]=1", "=1", "a.b.c=1", "eta={a=1}"],
    "is not allowed": [
        "eta=nan", "eta=inf", "eta=[1", "eta=true", "seed=true", "seed=1e300", "eta='[/red]'",
        "seed=1979-05-27", "cluster-sizes='²,2'", "cluster-sizes='[/red]'", "metric='[/red]'",
    ],
    "[/red]": [
        "setting='[/red]'", "method='[/red]'", "model='[/red]'", "loss='a:[/red]'", "own='[/red]'",
        "solver='[/red]:x'", "silo='[/red]:y' setting='own' silos=2",
        "data-dir='[/red]' setting='mnist-rotate'",
    ],
}  # fmt: skip
"""Words of the sentence, and the keys that it is said of."""


@contextmanager
def soon():
    """What takes too long fails, and does not hang."""

    def late(*_):
        raise AssertionError(f"no end within {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def refused(*arguments: object) -> str:
    """What a command says that ends in one sentence."""
    with soon():
        done = spcacw(*arguments)
    assert isinstance(done.exception, SystemExit), repr(done.exception)
    assert (done.exit_code, done.stderr) == (1, "")
    (line,) = [line for line in done.output.splitlines() if line.startswith("spcacw:")]
    assert "Traceback" not in done.output
    return line


@pytest.mark.parametrize(
    ("words", "given"), [(words, given) for words, many in KEYS.items() for given in many]
)
def test_a_key_that_cannot_be_used(words, given, tmp_path, offline):
    keys = [part for one in re.split(r" (?=[a-z-]+=)", given) for part in ("--set", one)]
    output = [] if "output" in given or "resume" in given else ["--output", tmp_path / "run"]
    assert words in refused("run", "--engine", "in-process", "--epochs", 1, *output, *keys)


MISTAKES = [
    (["--setting", "digit-relabel"], ["did you mean digits-relabel", "mnist-rotate"]),
    (["--method", "spcawc"], ["method = 'spcawc'", "local, fedavg, oracle"]),
    (["--set", "betta=1"], ["'betta'", "did you mean beta"]),
    (["--set", "beta=1.5"], ["beta = 1.5", "(0, 1]"]),
    (["--set", "beta"], ["key=value"]),
    (["--set", "target=7"], ["target = 7", "0…6"]),
    (["--engine", "fast"], ["engine = 'fast'", "ray, in-process"]),
    (["--config", "none.toml"], ["none.toml"]),
    (["--setting", "mnist-relabel", "--data-dir", "nothing"], ["nothing", "data-dir"]),
    (["--output", "file/run"], ["file/run", "cannot be written"]),
]
"""Arguments of ``spcacw run``, and words of what it says of them."""


@pytest.mark.parametrize(("arguments", "words"), MISTAKES)
def test_a_mistake_is_one_sentence_before_anything_starts(
    arguments, words, tmp_path, monkeypatch, offline
):
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "flower", None)  # not even a SuperLink
    said = refused("run", *arguments)
    assert [word for word in words if word not in said] == []
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_the_largest_and_the_smallest_numbers_end_too(tmp_path):
    """With a sentence, or without: the numbers that a key may just be."""
    names = ("eta", "weight-decay", "max-norm", "norm-bound", "smoothness", "privacy-noise")
    for value in (1e18, 1e-18):
        for name in (*names, *(("width", "privacy-delta", "beta") if value < 1 else ())):
            keys = ("--set", f"{name}={value}", "--set", "compare-alone=false")
            if name == "privacy-delta":
                keys += ("--set", "privacy-noise=1")
            where = ("--epochs", 1, "--output", tmp_path / f"{name}{value}")
            with soon():
                done = spcacw("run", "--engine", "in-process", *keys, *where)
            assert done.exception is None or isinstance(done.exception, SystemExit), (name, value)


BINARY = bytes(range(256))


def test_a_file_that_is_no_text(tmp_path):
    (tmp_path / "config.toml").write_bytes(BINARY)
    (tmp_path / "latin.toml").write_bytes("setting = 'ü'".encode("latin1"))
    assert "--config" in refused("run", "--config", tmp_path / "config.toml")
    assert "cannot be read" in refused("run", "--config", tmp_path / "latin.toml")
    assert "cannot be read" in refused("run", "--config", tmp_path)
    assert "--resume" in refused("run", "--resume", tmp_path)
    assert "cannot be read" in refused("report", tmp_path)
    assert "[/red]" in refused("federations", "--data-dir", tmp_path / "[/red]")


def test_a_disk_that_is_full_when_flower_has_run_is_a_sentence(tmp_path, monkeypatch):
    full = OSError(errno.ENOSPC, "No space left on device", "run.log")
    monkeypatch.setattr(launch, "run", Mock(side_effect=full))
    assert "No space left on device: 'run.log'" in refused("run", "--output", tmp_path / "run")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("Exit Code: 600\nIt is none.\nSee it.\n\nFor more information, visit: <u>", "See it."),
        ("\nFor more information, visit: <u>\n", "exit 1"),
        ("first\nlast\n", "last"), ("", "exit 1"),
    ],
)  # fmt: skip
def test_flowers_last_words_are_not_the_address_of_a_page(words, why, tmp_path, monkeypatch):
    link = launch.Link(tmp_path, "127.0.0.1:1")
    monkeypatch.setattr(link, "_flwr", lambda *_: CompletedProcess((), 1, "", words))
    with one_sentence() as error:
        link.cli("supernode", "list")
    assert str(error.value) == f"'flwr supernode' failed: {why}"


def test_a_log_without_room_does_not_hide_how_the_run_ended(tmp_path, monkeypatch, caplog):
    link = launch.Link(tmp_path, "127.0.0.1:1")
    monkeypatch.setattr(link, "_flwr", lambda *_: CompletedProcess((), 0, "words", ""))
    link.save_log("1", Path("/dev/full"))
    assert "What the app logged is lost: [Errno 28]" in caplog.text
