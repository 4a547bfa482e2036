"""Checkpoints: a run that was stopped and goes on is one that was never stopped, bit for bit."""

from __future__ import annotations

import collections
import errno
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from spcacw_flwr.config.config import MOVED, Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.registry import METHODS
from spcacw_flwr.engine import checkpoint, loop
from spcacw_flwr.engine.checkpoint import Keeper
from spcacw_flwr.engine.directory import Stopped
from spcacw_flwr.engine.recorder import Recorder
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.methods.base import WeightedGradients
from spcacw_flwr.silos.setup import checked_setting
from tests.conftest import make_method, make_pool
from tests.engine.test_simulate import spoil

ROUNDS, STOP = 8, 3  # two epochs of 100 samples in batches of 32; the stop is within the first
SPCACW = str(Path(sys.executable).parent / "spcacw")
PLAIN = {"TERM": "dumb", "COLUMNS": "200", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
HERE = "tests.engine.test_checkpoint"


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
    {"bias_correction": True, "probe": 0.5},
    {"solver": "ftal", "update_every": 3},
    {"solver": "ons", "update_every": 2},
    {"solver": "eg", "update_every": 2},
    {"beta_schedule": "harmonic", "t_start": 2},
    {"method": "spcacw-reg", "clip": "aggregate", "update_every": 1},
    {"method": "pfedsim", "pfedsim": {"warmup": 0.0}},
    {"method": "apfl", "apfl": {"adaptive": True}},
    {"guard": 5},
    {"guard": 5, "method": "fedfomo", "guard_finish": 0.9},
    {"privacy_noise": 0.1},
]


def config_of(**keys) -> Config:
    """Momentum, weight decay, clipping and partial participation are all in it."""
    given = {"epochs": 2, "samples_per_silo": 100, "participation": 0.6, "compare_alone": False}
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
            assert first.save(t, {}, {})
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
    lines = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    files["metrics"] = [line | {"seconds": 0} for line in lines]
    files["summary"] = json.loads((directory / "summary.json").read_text()) | {"seconds": 0}
    return files


def stop_at(monkeypatch, round_: int, how) -> None:
    """Let something happen within a round, once."""
    original, done = loop.play, []

    def play(pool, method, t, *more):
        original(pool, method, t, *more)
        if t == round_ and not done:
            done.append(t)
            how()

    monkeypatch.setattr(loop, "play", play)


def broken_after(round_: int, keys: dict[str, object], directory: Path, monkeypatch) -> None:
    """Run a configuration to its end in ``whole``, and until a round in ``run``."""

    def boom():
        raise RuntimeError("the power went")

    simulate(config_of(**keys, output=str(directory / "whole")))
    stop_at(monkeypatch, round_, boom)
    with pytest.raises(RuntimeError, match="the power went"):
        simulate(config_of(**keys, output=str(directory / "run")))


@pytest.mark.parametrize("method", ["spcacw", "local", "fedfomo", "pfedme"])
@pytest.mark.parametrize("every", [1, 3, 0])
def test_a_run_that_broke_goes_on(method, every, tmp_path, monkeypatch):
    """After its last checkpoint; or from its beginning, if it had none yet (every = 0)."""
    keys = {"method": method, "checkpoint_every": every, "compare_alone": True}
    broken_after(6, keys, tmp_path, monkeypatch)
    assert checkpoint.exists(tmp_path / "run" / "checkpoint") == bool(every)
    result = simulate(config_of(**keys, resume=str(tmp_path / "run")))
    assert without_seconds(tmp_path / "run") == without_seconds(tmp_path / "whole")
    assert [line["epoch"] for line in result.epochs] == [1, 2]
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["state"], status["round"]) == ("finished", ROUNDS)


def test_who_was_in_quarantine_still_is(tmp_path, monkeypatch):
    spoil(monkeypatch, silo=3, from_round=2)
    keys = {"epochs": 4, "max_strikes": 2, "quarantine_probe": 0.9, "checkpoint_every": 1}
    broken_after(9, keys, tmp_path, monkeypatch)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["quarantined"] == 1
    simulate(config_of(**keys, resume=str(tmp_path / "run")))
    whole = without_seconds(tmp_path / "whole")
    assert without_seconds(tmp_path / "run") == whole
    assert whole["summary"]["rejections"]["3"]["not-finite"] > 2


@pytest.mark.parametrize("how", ["signal", "file"])
def test_a_wish_to_end_is_granted_after_the_round(how, tmp_path, monkeypatch):
    run = tmp_path / "run"
    simulate(config_of(output=str(tmp_path / "whole")))

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
    simulate(config_of(resume=str(run)))
    assert without_seconds(run) == without_seconds(tmp_path / "whole")
    assert not (run / "stop").exists()


def test_a_second_signal_ends_at_once(tmp_path, monkeypatch):
    def impatient():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    stop_at(monkeypatch, 6, impatient)
    with pytest.raises(KeyboardInterrupt):
        simulate(config_of(output=str(tmp_path / "run")))
    assert not checkpoint.exists(tmp_path / "run" / "checkpoint")


@pytest.mark.parametrize("method", ["spcacw", "fedala", "ifca"])
def test_going_on_for_longer_is_a_longer_run(method, tmp_path):
    simulate(config_of(method=method, epochs=3, output=str(tmp_path / "long")))
    simulate(config_of(method=method, epochs=2, output=str(tmp_path / "run")))
    simulate(config_of(method=method, epochs=3, resume=str(tmp_path / "run")))
    assert without_seconds(tmp_path / "run") == without_seconds(tmp_path / "long")


def start(output: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [SPCACW, "run", "--engine", "in-process", *arguments], cwd=output.parent,
        env=os.environ | PLAIN, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def end_while_training(process: subprocess.Popen[str], output: Path, how: int, more: float) -> str:
    """Send a signal when training has gone on for an epoch and some seconds more."""
    deadline = time.monotonic() + 120
    while not (output / "metrics.jsonl").exists() or not (output / "metrics.jsonl").read_text():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(more)
    process.send_signal(how)
    return process.communicate(timeout=60)[0]


@pytest.mark.slow
def test_a_killed_process_and_an_interrupted_one_go_on(tmp_path):
    """SIGKILL at a random moment, then SIGINT, then to the end; nothing shows of it."""
    keys = ["--set", "epochs=100", "--set", "checkpoint-every=5", "--set", "compare-alone=false"]
    whole, run = tmp_path / "whole", tmp_path / "run"
    made = start(whole, *keys, "--output", str(whole))
    assert made.wait(timeout=300) == 0
    rng = random.Random()
    process = start(run, *keys, "--output", str(run))
    end_while_training(process, run, signal.SIGKILL, rng.uniform(0, 0.3))
    assert process.returncode == -signal.SIGKILL
    lines = (run / "metrics.jsonl").read_text()
    assert not (run / "summary.json").exists()
    process = start(run, "--resume", str(run))
    while len((run / "metrics.jsonl").read_text()) <= len(lines):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    said = end_while_training(process, run, signal.SIGINT, rng.uniform(0, 0.2))
    assert process.returncode == 130, said
    assert f"'spcacw run --resume {run}' goes on from the last checkpoint" in said
    assert "Traceback" not in said
    process = start(run, "--resume", str(run))
    said = process.communicate(timeout=300)[0]
    assert process.returncode == 0, said
    assert without_seconds(run) == without_seconds(whole)


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
    before = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(SpcacwError) as error:
        simulate(config_of(**keys, resume=str(run)))
    assert words in str(error.value)
    assert (run / "metrics.jsonl").read_bytes() == before
    simulate(config_of(resume=str(run)))


def test_other_data_and_another_model_of_the_same_keys_are_refused(run, monkeypatch):
    content, path = checkpoint.load(run / "checkpoint")
    content["silos"][3][1] = "00000000"
    content["model"].pop()
    state = path.read_bytes()
    checkpoint.save(run / "checkpoint", lambda file: file.write(state), content)
    with pytest.raises(SpcacwError) as error:
        simulate(config_of(resume=str(run)))
    assert "the model had 3 tensors and has 4" in str(error.value)
    assert "silo 3 tells other label counts or groups" in str(error.value)


def test_what_may_differ_is_not_refused(run):
    more = {"threads": 1, "compare_alone": True, "checkpoint_every": 2, "tensorboard": True}
    result = simulate(config_of(resume=str(run), **more))
    assert len(result.accuracy_alone) == 2
    assert any((run / "tensorboard").iterdir())


def test_a_method_that_depends_on_the_number_of_epochs_does_not_go_on_for_more(tmp_path):
    run = str(tmp_path / "run")
    simulate(config_of(method="pfedsim", output=run))
    with pytest.raises(SpcacwError, match=r"epochs was 2 and is 3: what pfedsim does depends on"):
        simulate(config_of(method="pfedsim", epochs=3, resume=run))


@pytest.mark.parametrize("how", ["cut", "flip", "unlink"])
@pytest.mark.parametrize("which", ["*.pt", "checkpoint.json"])
def test_a_damaged_checkpoint_is_refused(how, which, run):
    (path,) = (run / "checkpoint").glob(which)
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content if how == "flip" else content[:-100])
    if how == "unlink":
        path.unlink()
    with pytest.raises(SpcacwError) as error:
        simulate(config_of(resume=str(run)))
    gone = how == "unlink" and path.name == "checkpoint.json"
    assert ("left no checkpoint" if gone else f"{path} is damaged (") in str(error.value)


def test_an_altered_number_is_found(run):
    path = run / "checkpoint" / "checkpoint.json"
    text = path.read_text()
    assert '"round": 8' in text
    path.write_text(text.replace('"round": 8', '"round": 7', 1))
    with pytest.raises(SpcacwError, match="its checksum is another"):
        simulate(config_of(resume=str(run)))


@pytest.mark.parametrize(("what", "value"), [("version", "9.9"), ("format", 99)])
def test_another_version_is_refused(what, value, run, monkeypatch):
    name = {"version": "package_version", "format": "FORMAT"}[what]
    monkeypatch.setattr(checkpoint, name, (lambda: value) if what == "version" else value)
    with pytest.raises(SpcacwError, match=rf"has {what} .*, and this spcacw-flwr has {value}"):
        simulate(config_of(resume=str(run)))


def test_other_packages_are_said(run, monkeypatch, caplog):
    monkeypatch.setattr("spcacw_flwr.engine.recorder.versions", lambda: {"torch": "9"})
    with caplog.at_level(logging.WARNING):
        simulate(config_of(resume=str(run)))
    assert (
        f"other versions, and may differ in the last bits: torch {torch.__version__.split('+')[0]}"
        in caplog.text
    )


def test_a_directory_without_a_run_and_two_directories_are_refused(run, tmp_path):
    with pytest.raises(SpcacwError, match="holds no run: name the directory of one"):
        simulate(config_of(resume=str(tmp_path)))
    with pytest.raises(SpcacwError, match=r"output = '.*elsewhere' and resume = .* differ"):
        simulate(config_of(resume=str(run), output=str(tmp_path / "elsewhere")))
    with pytest.raises(SpcacwError, match=r"already holds a run: .* set resume to it"):
        simulate(config_of(output=str(run)))


def test_one_process_at_a_time_goes_on_with_a_run(run):
    config = config_of(resume=str(run))
    first = Recorder(run, config, "in-process")
    with pytest.raises(SpcacwError, match=r"Another process is at work on the run in .*/run"):
        simulate(config)
    first.fail("over")
    simulate(config)


def test_a_run_without_checkpoints_leaves_none_and_cannot_go_on(tmp_path):
    run = tmp_path / "run"
    simulate(config_of(checkpoint_every=-1, output=str(run)))
    assert not (run / "checkpoint").exists()
    with pytest.raises(SpcacwError, match="left no checkpoint"):
        simulate(config_of(checkpoint_every=-1, resume=str(run)))


def test_a_file_that_lost_lines_is_found(run):
    os.truncate(run / "alpha.csv", 10)
    with pytest.raises(SpcacwError, match=r"alpha\.csv is shorter than when the checkpoint"):
        simulate(config_of(resume=str(run)))


# State and disks that do not do.


def test_state_that_cannot_be_kept_is_found_before_training(tmp_path):
    keys = {"method": f"{HERE}:Holding", "output": str(tmp_path / "run")}
    with pytest.raises(SpcacwError, match=r"method\.log is a .*, which no checkpoint can hold"):
        simulate(config_of(**keys))
    assert not (tmp_path / "run" / "alpha.csv").exists()
    keys["output"] = str(tmp_path / "without")
    assert simulate(config_of(**keys, checkpoint_every=-1)).directory


def test_state_that_cannot_be_kept_later_is_said_and_training_goes_on(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        simulate(config_of(method=f"{HERE}:Opening", output=str(tmp_path / "run")))
    assert "Round 8 goes on without a checkpoint (method.log is a" in caplog.text
    assert (tmp_path / "run" / "summary.json").exists()


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def full_in_torch(*_, **__):
    raise RuntimeError("unexpected pos 64 vs 0: No space left on device")


@pytest.mark.parametrize("where", [
    "state.torch.save", "checkpoint.hashlib.file_digest", "checkpoint.os.fsync",
    "checkpoint.os.replace",
])  # fmt: skip
def test_a_full_disk_costs_a_checkpoint_and_no_training(where, tmp_path, monkeypatch, caplog):
    how = full_in_torch if "torch" in where else full
    pool, method, kept = begun(config_of(checkpoint_every=2), tmp_path)
    assert kept.save(2, {}, {})
    loop.play(pool, method, 1)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(f"spcacw_flwr.engine.{where}", how)
        assert not kept.save(4, {}, {})
    (said,) = caplog.messages
    assert said.startswith("Round 4 goes on without a checkpoint (")
    assert "No space left on device" in said
    assert checkpoint.load(tmp_path / "checkpoint")[0]["round"] == 2
    assert not (tmp_path / "checkpoint" / "part").exists()
    assert kept.save(6, {}, {})
    assert checkpoint.load(tmp_path / "checkpoint")[0]["round"] == 6
    assert len(list((tmp_path / "checkpoint").iterdir())) == 2


def test_a_disk_that_is_full_for_everything_ends_the_run_in_a_sentence(tmp_path, monkeypatch):
    """And what was learned is in the checkpoint, from which it goes on when there is room."""
    run, keys = tmp_path / "run", {"checkpoint_every": 2}
    simulate(config_of(output=str(tmp_path / "whole"), **keys))
    with monkeypatch.context() as patch:
        fills = lambda: patch.setattr("spcacw_flwr.engine.recorder.write_atomically", full)  # noqa: E731
        stop_at(patch, 8, fills)
        with pytest.raises(SpcacwError, match=r"a file could not be used: .*No space left"):
            simulate(config_of(output=str(run), **keys))
    assert checkpoint.load(run / "checkpoint")[0]["round"] == 6
    simulate(config_of(resume=str(run), **keys))
    assert without_seconds(run) == without_seconds(tmp_path / "whole")


LIMITED = """
import resource, sys, logging
logging.basicConfig()
from spcacw_flwr.config.config import MOVED, Config
from spcacw_flwr.engine.simulate import simulate
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
simulate(Config.from_keys(epochs=2, compare_alone=False, checkpoint_every=5, output=sys.argv[1]))
"""


def test_a_disk_that_really_refuses_is_said_in_one_sentence(tmp_path):
    """The system allows files of 100 kB, and the checkpoint has 200."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "run")], env=os.environ | PLAIN,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    warnings = [line for line in done.stderr.splitlines() if "without a checkpoint" in line]
    assert [line.split(" goes on")[0].split(":")[-1] for line in warnings] == [
        "Round 5", "Round 10", "Round 14",
    ]  # fmt: skip
    assert all("File too large" in line for line in warnings)
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "run" / "checkpoint").iterdir()) == []
    assert (tmp_path / "run" / "summary.json").exists()


def test_too_little_room_is_found_before_training(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(SpcacwError, match=r"has room for 0 MB, and checkpoints want 1 MB: free"):
        simulate(config_of(output=str(tmp_path / "run")))
    assert not (tmp_path / "run" / "metrics.jsonl").read_text()


def test_a_place_that_cannot_be_written_is_found_before_training(tmp_path, monkeypatch):
    def in_the_way(config):
        setting = checked_setting(config)
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "checkpoint").write_text("a file")
        return setting

    monkeypatch.setattr("spcacw_flwr.engine.simulate.checked_setting", in_the_way)
    with pytest.raises(SpcacwError, match=r"run/checkpoint cannot be written: .*File exists"):
        simulate(config_of(output=str(tmp_path / "run")))


def test_small_fast_runs_pay_for_one_checkpoint_and_slow_ones_for_one_in_twenty(tmp_path):
    kept = begun(config_of(epochs=5), tmp_path)[2]
    assert [t for t in range(1, 21) if kept.due(t, 20)] == [20]
    kept._written -= checkpoint.SECONDS
    assert [t for t in range(1, 21) if kept.due(t, 20)] == [4, 8, 12, 16, 20]
    kept._cost = 1.0
    assert [t for t in range(1, 21) if kept.due(t, 20)] == [20]
    kept._written -= 1.0 / checkpoint.SHARE
    assert kept.due(4, 20)


def test_a_run_from_before_keys_moved_into_tables_goes_on(tmp_path, monkeypatch):
    keys = {"method": "spcacw-reg", "gamma": 3.0, "output": str(tmp_path / "run")}
    with monkeypatch.context() as patch:
        patch.setattr(Config, "to_flat", with_flat_names(Config.to_flat))
        simulate(Config.from_keys(**keys, epochs=1, compare_alone=False))
    written = json.loads((tmp_path / "run" / "checkpoint" / "checkpoint.json").read_text())
    assert written["content"]["config"]["gamma"] == 3.0
    keys |= {"resume": str(tmp_path / "run"), "epochs": 2, "compare_alone": False}
    with pytest.raises(SpcacwError, match=r"spcacw-reg.gamma was 3.0 and is 4.0"):
        simulate(Config.from_keys(**keys | {"gamma": 4.0}))
    assert len(simulate(Config.from_keys(**keys)).accuracy) == 2


def with_flat_names(to_flat):
    """A configuration as it was written when no setting, nor spcacw-reg, had a table."""
    names = {new: old for old, new in MOVED.items()}
    return lambda config: {names.get(key, key): value for key, value in to_flat(config).items()}
