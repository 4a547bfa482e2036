"""A sweep repeats nothing, loses nothing to a run that dies, and can be stopped at any time."""

import dataclasses
import io
import multiprocessing
import os
import signal

import pytest
import torch
from filelock import FileLock
from rich.console import Console

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.experiments.attacks.study import run as attacked
from spcacw_flwr.experiments.conf import Column, Row, make_jobs
from spcacw_flwr.experiments.runs import (
    FAILED,
    FINISHED,
    WAITING,
    Display,
    failures,
    fingerprint,
    plan,
)
from spcacw_flwr.experiments.sweep import Where, slots, sweep
from spcacw_flwr.experiments.table1 import report
from tests.conftest import one_sentence
from tests.experiments.small import COLUMN, ROWS, Silent, made, small_jobs, stop_at


@pytest.mark.parametrize(
    ("keys", "same"),
    [
        ({"eta": 0.07}, False), ({"seed": 3}, False), ({"epochs": 3}, False),
        ({"holdout": 0.2}, False), ({"target": 3}, False), ({"samples_per_silo": 150}, False),
        ({"engine": "in-process"}, False),
        ({"output": "/a", "data_dir": "/b", "threads": 2, "device": "cuda:1"}, True),
        ({"eta": 0.05}, True),  # the default, said aloud
    ],
)  # fmt: skip
def test_a_key_changes_the_hash_if_it_changes_the_result(keys, same):
    assert (fingerprint(Config.from_keys(**keys)) == fingerprint(Config.from_keys())) is same


def test_a_run_of_ones_own_method_is_another_when_its_file_has_changed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    file, hashes = tmp_path / "edited.py", set()
    for line in ("a = 1", "a = 2"):
        file.write_text(f"from spcacw_flwr.baselines.local import Local as Mine\n{line}\n")
        config = Config.from_keys(method="edited:Mine")
        assert fingerprint(config) == fingerprint(config)
        hashes.add(fingerprint(config))
    assert len(hashes) == 2
    model = Config.from_keys(model="nowhere:nothing")
    assert fingerprint(model) != fingerprint(Config.from_keys())


def test_so_it_is_when_what_the_file_imports_has_changed(tmp_path, monkeypatch):
    """In its package, or beside it; a file that it does not import is none of its code."""
    monkeypatch.syspath_prepend(tmp_path)
    package, hashes = tmp_path / "editedpackage", []
    package.mkdir()
    (package / "__init__.py").write_text("from .inner import Mine\n")
    files = package / "inner.py", tmp_path / "editedhelper.py", tmp_path / "another.py"
    (package / "inner.py").write_text(
        "import torch, editedhelper\nfrom spcacw_flwr.baselines.local import Local as Mine\n"
    )
    files[1].touch()
    for file in (None, *files):
        if file:
            file.open("a").write("a = 1\n")
        hashes.append(fingerprint(Config.from_keys(method="editedpackage:Mine")))
    assert len(set(hashes)) == 3
    assert hashes[2] == hashes[3]


def test_what_is_finished_is_never_made_again(tmp_path):
    jobs = small_jobs()
    runs = made(jobs, tmp_path)
    assert [run.state for run in runs] == [FINISHED] * 2
    times = [(run.directory / "metrics.jsonl").stat().st_mtime_ns for run in runs]
    again = Silent()
    more = made([*jobs, *small_jobs(seeds=2)], tmp_path, again)
    assert sorted(again.names) == ["local", "spcacw"]  # of seed 1; seed 0 is there twice
    assert more[0] is more[2]
    assert [(run.directory / "metrics.jsonl").stat().st_mtime_ns for run in runs] == times


def test_a_killed_run_is_shown_and_made_anew_and_the_others_go_on(tmp_path):
    jobs = small_jobs(rows=ROWS[::-1])
    jobs[0].keys["epochs"] = 200
    runs = plan(jobs, tmp_path)

    def kill() -> None:
        if runs[0].state == "running" and runs[0].status().get("epoch"):
            (process,) = multiprocessing.active_children()
            os.kill(process.pid, signal.SIGKILL)

    sweep(runs, ["cpu"], tmp_path, show := Silent(kill))
    assert show.names == ["local", "spcacw"]
    assert [run.state for run in runs] == [FAILED, FINISHED]
    assert "ended by signal 9" in runs[0].error
    assert len(runs[0].logged()) < 200
    again = plan(jobs, tmp_path)
    assert [run.state for run in again] == [WAITING, FINISHED]
    sweep(again, ["cpu"], tmp_path, Silent())
    assert again[0].state == FINISHED
    assert len(again[0].logged()) == 200


def test_failures_are_sentences_and_stop_nobody(tmp_path):
    bad = [Row("range", "Range", {"method": "local", "eta": -1.0}),
           Row("silo", "Silo", {"method": "local", "target": 9}),
           Row("inside", "Inside", {"method": "local", "model": "nowhere:nothing"})]  # fmt: skip
    jobs, out = small_jobs(rows=[*bad, ROWS[1]]), io.StringIO()
    runs = plan(jobs, tmp_path)
    display = Display(Console(file=out, width=200, color_system=None), runs)
    with display.showing():
        sweep(runs, ["cpu"], tmp_path, display)
    assert [run.state for run in runs] == [FAILED, FAILED, FAILED, FINISHED]
    said = out.getvalue()
    assert "range on digits, seed 0: eta = -1.0 is not allowed" in said
    assert "silo on digits, seed 0: target = 9 is not a silo" in said
    assert "inside on digits, seed 0: The model 'nowhere:nothing' cannot be" in said
    assert "digits · local · seed 0: best" in said
    assert runs[2].status()["state"] == "failed"
    report(jobs, plan(jobs, tmp_path), [COLUMN], [*bad, ROWS[1]], tmp_path)  # as of an old sweep
    _, empty = (tmp_path / "table1.md").read_text().split("### Runs that failed")
    of_range, of_inside = empty.strip().splitlines()  # a wrong silo is found before its run starts
    assert of_range.startswith("- range on digits, seed 0: eta = -1.0 is not allowed")
    assert of_inside.startswith("- inside on digits, seed 0: The model 'nowhere:nothing' cannot")


def test_failures_of_a_cell_are_told_once_for_each_cause(tmp_path):
    jobs = small_jobs(seeds=3, rows=[Row("range", "Range", {"method": "local", "eta": -1.0})])
    runs = plan(jobs, tmp_path)
    (text,) = failures(runs)
    assert text.startswith("range on digits, seeds 0, 1, 2: eta = -1.0")
    runs[1].fail("Killed.")
    assert failures(runs)[1] == "range on digits, seed 1: Killed."
    assert failures(plan(small_jobs(), tmp_path)) == []
    held = [dataclasses.replace(job, note=f"held out {k}") for job in jobs for k in range(3)]
    (text,) = failures(plan(held, tmp_path))
    assert text.startswith(
        "range on digits, held out 0, seeds 0, 1, 2; range on digits, held out 1"
    )


def numbers(silo):
    """A silo whose labels are numbers."""
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(silo))
    return (x[:40], x[:40].sum(1)), (x[40:], x[40:].sum(1))


def test_a_run_without_accuracy_is_one_sentence_where_a_table_is_of_it(tmp_path):
    keys = {"setting": "own", "silo": f"{__name__}:numbers", "silos": 3, "classes": 1, "epochs": 2,
            "loss": "squared-error", "metric": "r2"}  # fmt: skip
    jobs = make_jobs([Column("numbers", "Numbers", keys, {})], ROWS[1:], [0], {})
    out = Console(file=io.StringIO(), width=200, color_system=None)
    with one_sentence("numbers · local · seed 0 has no accuracy"):
        Where(tmp_path, workers=1).run(jobs, out)
    summary = plan(jobs, tmp_path / "runs")[0].summary()
    assert f"seed 0: best {summary['metrics']['r2']['best']:.3f}, last" in out.file.getvalue()
    with one_sentence("setting = 'own' has no accuracy"):
        attacked(Config.from_flat(jobs[0].keys), "none", 0.0)


@pytest.mark.parametrize("where", [{"workers": -1}, {"devices": ()}])
def test_a_sweep_without_places_is_one_sentence(where, tmp_path):
    """It waited for ever."""
    with one_sentence("0 or more processes, on one device or more"):
        Where(tmp_path, **where).places()


def test_ctrl_c_ends_all_processes_and_leaves_what_can_go_on(tmp_path):
    jobs = small_jobs(epochs=2000)
    runs = plan(jobs, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        sweep(runs, ["cpu", "cpu"], tmp_path, stop_at(runs[0], 1))
    assert not multiprocessing.active_children()
    left = plan(jobs, tmp_path)
    assert [run.state for run in left] == [WAITING] * 2
    assert failures(left) == []  # nobody failed: the next sweep goes on with them


def test_two_sweeps_do_not_share_a_directory(tmp_path):
    with FileLock(tmp_path / ".lock"), pytest.raises(SpcacwError, match="Another process"):
        sweep([], ["cpu"], tmp_path, Silent())


def test_the_live_display_names_what_runs_and_what_failed(tmp_path):
    runs = plan(small_jobs(rows=[Row("bad", "Bad", {"method": "locl"}), *ROWS]), tmp_path)
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=200, color_system=None)
    display = Display(console, runs)
    with display.showing():
        runs[1].state, runs[2].state = "running", FINISHED
        display.tick()
    said = out.getvalue()
    assert "2/3" in said  # ended
    assert "digits · spcacw · seed 0" in said
    assert "method = 'locl' is unknown (did you mean local?)" in said
    assert "left" in said


def test_slots_share_devices():
    assert slots(["cpu"], 3) == ["cpu"] * 3
    assert len(slots(["cpu"], 0)) >= 1
    assert slots(["cpu", "cpu"], 0) == ["cpu", "cpu"]
    with pytest.raises(SpcacwError, match="device"):
        slots(["nowhere"], 1)


def test_a_sweep_stops_in_time_and_goes_on_later(tmp_path):
    jobs = small_jobs()
    runs = plan(jobs, tmp_path)
    sweep(runs, ["cpu"], tmp_path, Silent(), seconds=0)
    assert [run.state for run in plan(jobs, tmp_path)] == [WAITING] * 2
    assert [run.state for run in made(jobs, tmp_path)] == [FINISHED] * 2


@pytest.mark.slow
def test_a_run_that_is_stopped_goes_on_from_its_checkpoint(tmp_path):
    jobs = small_jobs(rows=ROWS[:1])
    jobs[0].keys["epochs"] = 60
    (run,) = plan(jobs, tmp_path / "stopped")
    with pytest.raises(KeyboardInterrupt):
        sweep([run], ["cpu"], tmp_path / "stopped", stop_at(run, 3))
    assert not run.done
    assert (run.directory / "checkpoint" / "checkpoint.json").exists()
    begun = run.logged()[0]
    (again,) = made(jobs, tmp_path / "stopped")
    (whole,) = made(jobs, tmp_path / "whole")
    assert again.state == whole.state == FINISHED
    assert not (again.directory / "checkpoint").exists()
    # The first epoch, with its seconds, is still that of the first sweep.
    assert again.logged()[0] == begun
    for name in ("alpha.csv", "silos.csv"):
        assert (again.directory / name).read_bytes() == (whole.directory / name).read_bytes()
