"""Checkpoints: a run that was stopped and goes on is one that was never stopped, bit for bit."""

import collections
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn

from spcacw_flwr.config.config import Config, kebab
from spcacw_flwr.config.registry import METHODS
from spcacw_flwr.console import end_like_ctrl_c
from spcacw_flwr.engine import checkpoint, loop, recorder
from spcacw_flwr.engine.checkpoint import Keeper
from spcacw_flwr.engine.directory import SIGNALS, Stopped
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.methods.base import WeightedGradients
from tests.conftest import contents, limited, make_method, make_pool, one_sentence
from tests.engine.test_simulate import spoil
from tests.test_end_to_end import PLAIN, SPCACW, metrics
from tests.watching import wait_until

ROUNDS, STOP = 8, 3  # two epochs of 100 samples in batches of 32; the stop is within the first
HERE = "tests.engine.test_checkpoint"
FULL = OSError(errno.ENOSPC, "No space left on device")


class Wandering(WeightedGradients):
    """A method of a user's own with state of every kind: random weights, some of the past."""

    name = "wandering"

    def __init__(self, config, federation, parameters):
        super().__init__(config, federation, parameters)
        self.rng = np.random.default_rng(config.run.seed)
        self.window = collections.deque(maxlen=3)
        self.mean = self.parameters
        """Shared, until it moves away."""
        self.seen = collections.defaultdict(list)

    def initial_weights(self):
        return np.full(self.federation.num_silos, 1 / self.federation.num_silos)

    def learn(self, request, replies):
        self.window.append(replies.losses.clone())
        self.seen[request.round % 2].append(float(replies.losses[0]))
        self.mean = torch.cat(list(self.window)).mean() * self.parameters
        draw = self.rng.random(self.federation.num_silos) + float(self.window[0][0])
        self.set_weights(draw / draw.sum(), request.round)


class Holding(Wandering):
    """A user's own whose state is of a kind that no checkpoint can hold: a file."""

    name = "holding"

    def __init__(self, config, federation, parameters):
        super().__init__(config, federation, parameters)
        self.log = sys.stderr


class Opening(Wandering):
    """One that opens a file only later."""

    name = "opening"

    def learn(self, request, replies):
        super().learn(request, replies)
        self.log = sys.stderr


CASES = [
    *({"method": name} for name in (*METHODS, f"{HERE}:Wandering")),
    {"sketch": 64},
    {"method": "spcacw-plus", "probe": 0.5},
    {"solver": "ftal", "update_every": 3},
    {"solver": "ons", "update_every": 2},
    {"solver": "eg", "update_every": 2},
    {"beta_schedule": "harmonic", "t_start": 2},
    {"method": "spcacw-reg", "clip": "aggregate", "update_every": 1},
    {"method": "pfedsim", "pfedsim": {"warmup": 0.0}},
    {"method": "apfl", "apfl": {"adaptive": True}},
    {"guard": 5},
    {"guard": 5, "method": "fedfomo", "guard_finish": 0.9},
    {"guard": 5, "method": f"{HERE}:Wandering"},
    {"privacy_noise": 0.1},
]


def config_of(**keys) -> Config:
    """Momentum, weight decay, clipping and partial participation are all in it."""
    given = {"method": "spcacw", "epochs": 2, "samples_per_silo": 100, "participation": 0.6}
    given |= {"compare_alone": False}
    return Config.from_keys(**(given | keys))


def assert_same_state(one, other, path="method", seen=None):
    """Equal in every tensor's bits, their order in memory, and all the rest."""
    seen = set() if seen is None else seen
    if id(one) in seen:
        return
    seen.add(id(one))
    assert type(one) is type(other), path
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.stride()) == (other.dtype, other.stride()), path
        assert_same_state(one.detach().numpy(), other.detach().numpy(), path)
    elif isinstance(one, np.ndarray | np.generic):
        assert (one.dtype, one.shape) == (other.dtype, other.shape), path
        assert one.tobytes() == other.tobytes(), path
    elif isinstance(one, np.random.Generator):
        assert repr(one.bit_generator.state) == repr(other.bit_generator.state), path
    elif isinstance(one, dict):
        assert list(one) == list(other), path
        for name in one:
            assert_same_state(one[name], other[name], f"{path}[{name!r}]", seen)
    elif isinstance(one, list | tuple | collections.deque):
        assert len(one) == len(other), path
        for k, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same_state(a, b, f"{path}[{k}]", seen)
    elif hasattr(one, "__dict__") and not isinstance(one, type | nn.Module):
        assert_same_state(vars(one), vars(other), path, seen)
    else:
        assert repr(one) == repr(other), path


def begun(config: Config, directory: Path):
    """A pool, a fresh method, and who keeps its checkpoint."""
    pool = make_pool(config)
    method = make_method(config, pool)
    return pool, method, Keeper(directory, config, method.federation, {"method": method})


@pytest.mark.parametrize("keys", CASES, ids=lambda keys: " ".join(map(str, keys.values())))
def test_going_on_is_never_having_stopped(keys, tmp_path):
    config = config_of(**keys)
    pool, method, first = begun(config, tmp_path)
    for t in range(1, ROUNDS + 1):
        loop.play(pool, method, t)
        if t == STOP:
            first.save(t, {}, {})
    fresh_pool, again, second = begun(config, tmp_path)
    assert second.resume()["round"] == STOP
    for t in range(STOP + 1, ROUNDS + 1):
        loop.play(fresh_pool, again, t)
    assert not torch.equal(method.personal, pool.initial_parameters())
    assert_same_state(method, again)


# Whole runs, with all that they leave behind.


def without_seconds(directory: Path) -> dict[str, object]:
    """Return a run's files, but for the seconds that it took."""
    files: dict[str, object] = {}
    for name in ("alpha.csv", "silos.csv", "model.safetensors", "config.toml"):
        path = directory / name
        files[name] = path.read_bytes() if path.exists() else None
    files["metrics"] = metrics(directory)
    files["summary"] = json.loads((directory / "summary.json").read_text()) | {"seconds": 0}
    return files


def stop_at(monkeypatch, round_: int, how) -> None:
    """Let something happen within a round, once."""
    original, done = loop.play, []

    def play(pool, method, t, *more):
        original(pool, method, t, *more)
        if t == round_ and not done and method.name == method.config.run.method:
            done.append(t)
            how()

    monkeypatch.setattr(loop, "play", play)


def assert_goes_on(directory: Path, keys: dict[str, object]):
    """What a broken run leaves in ``run`` in the end is what a run never stopped does."""
    simulate(config_of(**keys, output=str(directory / "whole")))
    result = simulate(config_of(**keys, resume=str(directory / "run")))
    assert without_seconds(directory / "run") == without_seconds(directory / "whole")
    return result


def broken_after(round_: int, keys: dict[str, object], directory: Path, monkeypatch) -> Path:
    """Run a configuration until a round, and return its directory."""
    stop_at(monkeypatch, round_, Mock(side_effect=RuntimeError("the power went")))
    with pytest.raises(RuntimeError, match="the power went"):
        simulate(config_of(**keys, output=str(directory / "run")))
    return directory / "run"


@pytest.mark.parametrize("method", ["spcacw", "local", "fedfomo", "pfedme"])
@pytest.mark.parametrize("every", [1, 3, 0])
def test_a_run_that_broke_goes_on(method, every, tmp_path, monkeypatch):
    """After its last checkpoint; or from its beginning, if it had none yet (every = 0)."""
    keys = {"method": method, "checkpoint_every": every, "compare_alone": True}
    run = broken_after(6, keys, tmp_path, monkeypatch)
    assert checkpoint.exists(run / "checkpoint") == bool(every)
    result = assert_goes_on(tmp_path, keys)
    assert [line["epoch"] for line in result.epochs] == [1, 2]
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["round"]) == ("finished", ROUNDS)


def test_who_was_in_quarantine_still_is(tmp_path, monkeypatch):
    spoil(monkeypatch, 3, range(2, 99))
    keys = {"epochs": 4, "max_strikes": 2, "quarantine_probe": 0.9, "checkpoint_every": 1}
    run = broken_after(9, keys, tmp_path, monkeypatch)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["quarantined"] == 1
    result = assert_goes_on(tmp_path, keys)
    assert result.gate.rejections()["3"]["not-finite"] > 2


@pytest.mark.parametrize("how", ["signal", "file"])
def test_a_wish_to_end_is_granted_after_the_round(how, tmp_path, monkeypatch):
    run = tmp_path / "run"

    def wish():
        if how == "file":
            (run / "stop").touch()
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    stop_at(monkeypatch, 6, wish)
    with pytest.raises(Stopped, match="It was stopped after round 6 of 8"):
        simulate(config_of(output=str(run)))
    assert signal.getsignal(signal.SIGTERM) is before
    assert checkpoint.load(run / "checkpoint")[0]["round"] == 6
    assert_goes_on(tmp_path, {})
    assert not (run / "stop").exists()


def test_a_second_signal_ends_at_once(tmp_path, monkeypatch):
    def impatient():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    stop_at(monkeypatch, 6, impatient)
    with pytest.raises(KeyboardInterrupt):
        simulate(config_of(output=str(tmp_path / "run")))
    assert not checkpoint.exists(tmp_path / "run" / "checkpoint")


def test_a_signal_that_was_ignored_stays_so(tmp_path, monkeypatch):
    """As by nohup, and of Ctrl-C in a sweep, which ends its runs itself."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    stop_at(
        monkeypatch, 6, lambda: [os.kill(os.getpid(), n) for n in (signal.SIGHUP, signal.SIGINT)]
    )
    try:
        end_like_ctrl_c()
        assert simulate(config_of(output=str(tmp_path / "run"))).round == ROUNDS
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_going_on_with_a_finished_run_loses_nothing_of_it(tmp_path):
    keys = {"privacy_noise": 0.5}
    simulate(config_of(**keys, output=str(tmp_path / "run")))
    result = assert_goes_on(tmp_path, keys)
    assert result.privacy["1"]["answers"] > 0


@pytest.mark.parametrize("method", ["spcacw", "fedala", "ifca"])
def test_going_on_for_longer_is_a_longer_run(method, tmp_path):
    simulate(config_of(method=method, epochs=2, output=str(tmp_path / "run")))
    assert_goes_on(tmp_path, {"method": method, "epochs": 3})


@pytest.mark.slow
def test_a_killed_process_and_an_interrupted_one_go_on(tmp_path):
    """SIGKILL at a random moment, then SIGINT, then to the end; nothing shows of it."""
    keys = {"epochs": 100, "checkpoint_every": 5, "engine": "in-process"}
    run, rng = tmp_path / "run", random.Random()
    given = [f"--set={kebab(name)}={value}" for name, value in keys.items()]
    given += ["--method=spcacw", "--set=compare-alone=false", "--set=samples-per-silo=100"]
    lines = run / "metrics.jsonl"

    def go(*arguments: str) -> subprocess.Popen[str]:
        command = [SPCACW, "run", "--set=participation=0.6", *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, cwd=tmp_path, env=os.environ | PLAIN, text=True, **pipes)

    def end_while_training(process: subprocess.Popen[str], how: int, known: int) -> str:
        """Send a signal when training has gone on for an epoch and a moment more."""
        wait_until(lambda: process.poll() or (lines.exists() and lines.stat().st_size > known), 120)
        time.sleep(rng.uniform(0, 0.3))
        process.send_signal(how)
        return process.communicate(timeout=60)[0]

    process = go(*given, "--output", str(run))
    said = end_while_training(process, signal.SIGKILL, 0)
    assert process.returncode == -signal.SIGKILL, said
    assert not (run / "summary.json").exists()
    process = go("--resume", str(run))
    said = end_while_training(process, signal.SIGINT, lines.stat().st_size)
    assert process.returncode == 130, said
    assert f"'spcacw run --resume {run}' goes on from the last checkpoint" in said
    assert "Traceback" not in said
    assert_goes_on(tmp_path, keys)


# What is refused, and the sentence that says why.


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of two epochs; to be copied."""
    directory = tmp_path_factory.mktemp("finished") / "run"
    torch.set_num_threads(1)
    simulate(config_of(output=str(directory)))
    return directory


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def refused(run: Path, *words: str, **keys) -> None:
    """Going on is refused, in one sentence with these words, and changes no file."""
    before = contents(run)
    with one_sentence(*words):
        simulate(config_of(**{"resume": str(run)} | keys))
    assert contents(run) == before


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"eta": 0.1}, "is another: eta was 0.05 and is 0.1. Going on, epochs may grow"),
        ({"method": "fedavg"}, 'method was "spcacw" and is "fedavg"'),
        ({"width": 0.5}, "width was 1.0 and is 0.5; the model's tensor 1.weight [64, 64] is"),
        ({"seed": 1, "beta": 0.2}, "seed was 0 and is 1; beta was 0.1 and is 0.2"),
        ({"samples_per_silo": 90}, "samples-per-silo was 100 and is 90; silo 0 had 100 training"),
        ({"epochs": 1}, "epochs was 2 and is 1"),
    ],
)
def test_another_run_is_refused(keys, words, run):
    refused(run, words, **keys)
    simulate(config_of(resume=str(run)))


def test_other_data_and_another_model_of_the_same_keys_are_refused(run):
    content, path = checkpoint.load(run / "checkpoint")
    content["silos"][3][1] = "00000000"
    content["model"].pop()
    checkpoint.save(run / "checkpoint", path.read_bytes(), content)
    counts = "the model had 3 tensors and has 4"
    refused(run, counts, "silo 3 tells other label counts or groups")


def test_what_may_differ_is_not_refused(run):
    more = {"threads": 1, "compare_alone": True, "checkpoint_every": 2, "tensorboard": True}
    result = simulate(config_of(resume=str(run), **more))
    assert len(result.accuracy_alone) == 2
    assert any((run / "tensorboard").iterdir())


def test_a_method_that_depends_on_the_number_of_epochs_does_not_go_on_for_more(tmp_path):
    simulate(config_of(method="pfedsim", output=str(tmp_path)))
    words = "epochs was 2 and is 3: what pfedsim does depends on"
    refused(tmp_path, words, method="pfedsim", epochs=3)


@pytest.mark.parametrize("how", ["cut", "flip", "unlink"])
@pytest.mark.parametrize("which", ["*.pt", "checkpoint.json"])
def test_a_damaged_checkpoint_is_refused(how, which, run):
    (path,) = (run / "checkpoint").glob(which)
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content if how == "flip" else content[:-100])
    if how == "unlink":
        path.unlink()
    gone = how == "unlink" and path.name == "checkpoint.json"
    refused(run, "left no checkpoint" if gone else f"{path} is damaged (")


@pytest.mark.parametrize(
    ("what", "name", "value"), [("version", "__version__", "9.9"), ("format", "FORMAT", 99)]
)
def test_another_version_is_refused(what, name, value, run, monkeypatch):
    monkeypatch.setattr(checkpoint, name, value)
    refused(run, f"has {what} ", f", and this spcacw-flwr has {value}")


def test_other_packages_are_said(run, monkeypatch, caplog):
    monkeypatch.setattr(recorder, "versions", lambda: {"torch": "9"})
    simulate(config_of(resume=str(run)))
    here = torch.__version__.split("+")[0]
    assert f"other versions, and may differ in the last bits: torch {here}" in caplog.text


def test_a_directory_without_a_run_and_two_directories_are_refused(run, tmp_path):
    refused(tmp_path, "holds no run: name the directory of one")
    refused(run, "output = '", "elsewhere' and resume = '", "differ", output=str(run / "elsewhere"))
    refused(run, "already holds a run: ", "set resume to it", resume="", output=str(run))
    os.truncate(run / "alpha.csv", 10)
    refused(run, "alpha.csv is shorter than when the checkpoint", epochs=3)


def test_one_process_at_a_time_goes_on_with_a_run(run):
    config = config_of(resume=str(run))
    first = recorder.Recorder(run, config, "in-process")
    refused(run, f"Another process is at work in {run}")
    first.fail("over")
    simulate(config)


def test_a_run_without_checkpoints_leaves_none_and_cannot_go_on(tmp_path):
    simulate(config_of(checkpoint_every=-1, output=str(tmp_path)))
    assert not (tmp_path / "checkpoint").exists()
    refused(tmp_path, "left no checkpoint", checkpoint_every=-1)


# State and disks that do not do.


def test_state_that_cannot_be_kept_is_found_before_training(tmp_path):
    keys = {"method": f"{HERE}:Holding", "output": str(tmp_path / "run")}
    with one_sentence("method.log is a ", ", which no checkpoint can hold"):
        simulate(config_of(**keys))
    assert not (tmp_path / "run" / "alpha.csv").exists()
    keys["output"] = str(tmp_path / "without")
    assert simulate(config_of(**keys, checkpoint_every=-1)).directory


def test_state_that_cannot_be_kept_later_is_said_and_training_goes_on(tmp_path, caplog):
    simulate(config_of(method=f"{HERE}:Opening", output=str(tmp_path / "run")))
    assert "Round 8 goes on without a checkpoint (method.log is a" in caplog.text
    assert (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize("where", ["fsync", "replace"])
def test_a_full_disk_costs_a_checkpoint_and_no_training(where, tmp_path, monkeypatch, caplog):
    pool, method, kept = begun(config_of(checkpoint_every=2), tmp_path)
    directory = tmp_path / "checkpoint"
    kept.save(2, {}, {})
    loop.play(pool, method, 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, where, Mock(side_effect=FULL))
        kept.save(4, {}, {})
    (said,) = (line for line in caplog.messages if "2/beta" not in line)
    assert said.startswith("Round 4 goes on without a checkpoint (")
    assert "No space left on device" in said
    assert checkpoint.load(directory)[0]["round"] == 2
    assert len(list(directory.iterdir())) == 2
    (directory / ".half.pt.17").touch()  # of a process that was killed at it
    kept.save(6, {}, {})
    assert checkpoint.load(directory)[0]["round"] == 6
    assert len(list(directory.iterdir())) == 2


def test_a_disk_that_is_full_for_everything_ends_the_run_in_a_sentence(tmp_path, monkeypatch):
    """And what was learned is in the checkpoint, from which it goes on when there is room."""
    run, keys = tmp_path / "run", {"checkpoint_every": 2}
    with monkeypatch.context() as patch:
        full = Mock(side_effect=FULL)
        stop_at(patch, 8, lambda: patch.setattr(recorder, "write_atomically", full))
        with one_sentence("a file could not be used: ", "No space left"):
            simulate(config_of(output=str(run), **keys))
    assert checkpoint.load(run / "checkpoint")[0]["round"] == 6
    assert_goes_on(tmp_path, keys)


def test_a_disk_that_really_refuses_is_said_in_one_sentence(tmp_path, caplog):
    """The system allows files of 100 kB, and the checkpoint has 200."""
    keys = {"epochs": 2, "compare_alone": False, "checkpoint_every": 5}
    with limited(100_000):
        simulate(Config.from_keys(**keys, output=str(tmp_path / "run")))
    said = [line for line in caplog.messages if "without a checkpoint" in line]
    assert [line.split(" goes on")[0] for line in said] == ["Round 5", "Round 10", "Round 14"]
    assert all("File too large" in line for line in said)
    assert list((tmp_path / "run" / "checkpoint").iterdir()) == []
    assert (tmp_path / "run" / "summary.json").exists()


def test_too_little_room_is_found_before_training(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with one_sentence("has room for 0 MB, and checkpoints want 1 MB: free"):
        simulate(config_of(output=str(tmp_path / "run")))
    assert not (tmp_path / "run" / "metrics.jsonl").read_text()


def test_a_place_that_cannot_be_written_is_found_before_training(tmp_path):
    (tmp_path / "checkpoint").write_text("a file")
    with one_sentence(f"{tmp_path}/checkpoint cannot be written: ", "File exists"):
        simulate(config_of(output=str(tmp_path)))


def test_small_fast_runs_pay_for_one_checkpoint_and_slow_ones_for_one_in_twenty(tmp_path):
    kept = begun(config_of(epochs=5), tmp_path)[2]
    assert [t for t in range(1, 21) if kept.due(t, 20)] == [20]
    kept._written -= checkpoint.SECONDS
    assert [t for t in range(1, 21) if kept.due(t, 20)] == [4, 8, 12, 16, 20]
    kept._cost = 1.0
    assert [t for t in range(1, 21) if kept.due(t, 20)] == [20]
    kept._written -= 1.0 / checkpoint.SHARE
    assert kept.due(4, 20)


@pytest.mark.parametrize(
    ("keys", "words"),
    [({"loss": "squared-error", "metric": "r2"}, "squared-error"), ({"eta": 1e17}, "diverged")],
)
def test_a_run_that_failed_before_its_first_epoch_makes_room_for_another(keys, words, tmp_path):
    output = str(tmp_path / "run")
    with one_sentence(words):
        simulate(config_of(output=output, epochs=20, **keys))
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "failed"
    assert len(simulate(config_of(output=output)).epochs) == 2
    refused(tmp_path / "run", "already holds a run: ", resume="", output=output)
