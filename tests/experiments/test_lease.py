"""A sweep in pieces: parcels hold all data, time is kept, finished runs travel back and forth."""

from __future__ import annotations

import tarfile

import pytest
from typer.testing import CliRunner

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.experiments.lease import app, archive, pack, restore, unpack
from spcacw_flwr.experiments.runs import FINISHED, WAITING, plan
from spcacw_flwr.experiments.sweep import sweep
from tests.experiments.small import ROWS, Silent, made, small_jobs

COLUMN = 'setting = "digits-relabel"\nepochs = 1\n'


def write(path, size):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))


def test_parcels_are_small_and_hold_every_file_at_its_place(tmp_path):
    data = tmp_path / "data"
    for name, size in {"a/1": 6, "a/2": 5, "a/deep/3": 4, "b/4": 5, "c/unwanted": 1}.items():
        write(data / name, size)
    parts = pack(data, ["a", "b"], tmp_path / "carry", 10)
    # By hand, first fit: 1 (6) and 3 (4) fill the first, 2 (5) and 4 (5) the second.
    held = [sorted(f.name for f in part.rglob("*") if f.is_file()) for part in parts]
    assert held == [["1", "3"], ["2", "4"]]
    unpack(tmp_path / "carry", tmp_path / "there")
    there = {str(f.relative_to(tmp_path / "there")) for f in (tmp_path / "there").rglob("*")}
    assert there == {"a", "a/1", "a/2", "a/deep", "a/deep/3", "b", "b/4"}


def test_what_cannot_travel_is_said(tmp_path):
    write(tmp_path / "data" / "a" / "large", 11)
    with pytest.raises(SpcacwError, match="more than a parcel may have"):
        pack(tmp_path / "data", ["a"], tmp_path / "carry", 10)
    with pytest.raises(SpcacwError, match=r"There are no files in .*nowhere"):
        pack(tmp_path / "data", ["nowhere"], tmp_path / "carry2", 10)
    with pytest.raises(SpcacwError, match="exists"):
        pack(tmp_path / "data", ["a"], tmp_path / "data", 10)
    with pytest.raises(SpcacwError, match="no parcels"):
        unpack(tmp_path / "data", tmp_path / "there")


def test_a_sweep_stops_in_time_and_goes_on_later(tmp_path):
    jobs = small_jobs()
    runs = plan(jobs, tmp_path)
    sweep(runs, ["cpu"], tmp_path, Silent(), seconds=0)
    assert [run.state for run in plan(jobs, tmp_path)] == [WAITING] * 2
    assert [run.state for run in made(jobs, tmp_path)] == [FINISHED] * 2


class Patient(Silent):
    """Lets a sweep end once its run has trained for some epochs."""

    def __init__(self, run) -> None:
        super().__init__()
        self.run = run

    def tick(self) -> None:
        if self.run.status().get("epoch", 0) >= 3:
            raise KeyboardInterrupt


def test_a_run_that_is_stopped_goes_on_from_its_checkpoint(tmp_path):
    jobs = small_jobs(rows=ROWS[:1])
    jobs[0].keys["epochs"] = 60
    (run,) = plan(jobs, tmp_path / "stopped")
    with pytest.raises(KeyboardInterrupt):
        sweep([run], ["cpu"], tmp_path / "stopped", Patient(run))
    assert not run.done
    assert (run.directory / "checkpoint" / "checkpoint.json").exists()
    begun = (run.directory / "metrics.jsonl").read_text().splitlines()[0]
    (again,) = made(jobs, tmp_path / "stopped")
    (whole,) = made(jobs, tmp_path / "whole")
    assert again.state == whole.state == FINISHED
    assert not (again.directory / "checkpoint").exists()
    # The first epoch, with its seconds, is still that of the first sweep.
    assert (again.directory / "metrics.jsonl").read_text().splitlines()[0] == begun
    for name in ("alpha.csv", "silos.csv"):
        assert (again.directory / name).read_bytes() == (whole.directory / name).read_bytes()


def test_finished_runs_travel_without_their_models(tmp_path):
    jobs = small_jobs()
    runs = made(jobs, tmp_path / "here")
    unfinished = plan(small_jobs(seeds=2), tmp_path / "here")
    path = archive([*runs, *unfinished], tmp_path / "out" / "runs.tar.xz")
    with tarfile.open(path) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    assert {"metrics.jsonl", "summary.json", "config.toml"} <= names
    assert "model.safetensors" not in names
    restore(path, tmp_path / "there")
    assert [run.state for run in plan(small_jobs(seeds=2), tmp_path / "there")] == [
        FINISHED, FINISHED, WAITING, WAITING,
    ]  # fmt: skip


def test_a_lease_goes_on_where_the_last_one_stopped(tmp_path):
    (tmp_path / "digits.toml").write_text(COLUMN)
    write(tmp_path / "carry" / "part-1" / "any", 1)
    common = ["run", "--minutes", "5", "--device", "cpu", "--columns",
              str(tmp_path / "digits.toml"), "--seeds", "1", "--parcels",
              str(tmp_path / "carry")]  # fmt: skip
    first = [*common, "--rows", "local", "--work", str(tmp_path / "w1"), "--output",
             str(tmp_path / "o1")]  # fmt: skip
    done = CliRunner().invoke(app, first)
    assert done.exit_code == 0, done.output
    second = [*common, "--rows", "local,fedavg", "--work", str(tmp_path / "w2"), "--output",
              str(tmp_path / "o2"), "--earlier", str(tmp_path / "o1" / "runs.tar.xz")]  # fmt: skip
    done = CliRunner().invoke(app, second)
    assert done.exit_code == 0, done.output
    assert "1 of 2 runs were finished before." in done.output
    lines = (tmp_path / "o2" / "table1.csv").read_text().splitlines()
    assert [line.split(",")[1] for line in lines[1:]] == ["local", "fedavg"]
