"""The command line without Flower behind it: lists, assignments, and what the display says."""

import io
import json
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.cells import cell_len
from rich.console import Console

from spcacw_flwr import __version__
from spcacw_flwr.config.config import COMMON, Config, fields, parse_assignments, read_toml
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.keys import ENGINES
from spcacw_flwr.config.registry import METHODS, SETTINGS
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.flower import launch
from spcacw_flwr.report.terminal import Display, describe
from tests.conftest import one_sentence, ran

STATUS = {
    "state": "training", "round": 9, "rounds": 14, "epoch": 1, "epochs": 2, "metric": "accuracy",
    "value": 91.5, "loss": 0.25, "alpha": [0.5, 0.0, 0.1, 0.15, 0.05, 0.2],
}  # fmt: skip


@pytest.mark.parametrize(("command", "names"), [("methods", METHODS), ("settings", SETTINGS)])
def test_lists_are_complete(command, names):
    said = ran(command)
    assert [name for name in names if f"│ {name} " not in said] == []


def test_a_directory_that_is_gone_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert "The directory that you are in is gone: go to another." in ran("methods", code=1)


def listed(*arguments: str) -> list[str]:
    said = ran("keys", *arguments, columns=80)
    lines = [line for line in said.splitlines() if not line.startswith(("'", "#"))]
    assert max(map(cell_len, lines)) <= 80
    return [line.split(" = ")[0] for line in lines if line and not line.startswith(" ")]


def test_keys_are_listed_by_what_they_are_wanted_for():
    assert len(listed()) == len(set(listed())) == len(COMMON) <= 40
    assert [key for key in listed("--all") if key in fields()] == list(fields())
    assert "beta" in listed()
    assert listed("beta") == ["beta"]
    assert listed("--method", "ditto") == ["ditto.weights", "ditto.lambda"]
    assert listed("--method", "spcacw-reg")[-1] == "spcacw-reg.gamma"
    assert {"silos", "mnist-rotate.rotation-step"} <= set(listed("--setting", "mnist-rotate"))
    said = ran("keys", "--setting", "mnist-rotate", columns=80)
    assert "# training\neta = 0.01 " in said
    assert "# setting mnist-rotate\nmnist-rotate.rotation-step = 4.0 " in said
    assert ran("keys", "--method", "fedavg") == "fedavg has no keys of its own.\n"
    own = re.findall(r"^([\w-]+) = ", ran("keys", "--setting", "own"), re.M)
    assert own == ["silos", "samples-per-silo", "silo", "classes", "input-shape"]
    assert "There is no key 'betta' (did you mean beta?)" in ran("keys", "betta", code=1)
    assert "(did you mean shakespeare.window?)" in ran("keys", "window", code=1)


def test_a_file_of_keys_may_begin_with_the_mark_that_some_editors_write(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('method = "local"', encoding="utf-8-sig")
    assert read_toml(path) == {"method": "local"}


def test_the_version_and_every_engine_are_named():
    assert ran("--version") == f"spcacw-flwr {__version__}\n"
    said = ran("run", "--help")
    assert [engine for engine in ENGINES if engine not in said] == []


def test_assignments_are_toml_or_text():
    given = ["seed=3", "eta=0.5", "tensorboard=true", "method='local'", "cluster-sizes=2,2,3"]
    assert parse_assignments(given) == {
        "seed": 3, "eta": 0.5, "tensorboard": True, "method": "local", "cluster-sizes": "2,2,3",
    }  # fmt: skip
    with one_sentence("key=value"):
        parse_assignments(["seed"])


def test_the_display_names_the_four_largest_weights():
    assert describe(STATUS) == (
        "accuracy 91.50 %  loss 0.2500  α  "
        "silo 0: 0.500  silo 5: 0.200  silo 3: 0.150  silo 2: 0.100"
    )
    assert describe(STATUS | {"value": None}) == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_the_display_shows_epochs_live_or_line_by_line(terminal):
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=120, color_system=None)
    display = Display(console)
    with display.running():
        for status in ({}, STATUS | {"rounds": 0, "epoch": 0, "value": None}, STATUS, STATUS):
            display.show(status)
    said = out.getvalue()
    assert "91.50 %" in said
    if terminal:
        assert "9/14" in said
        assert re.search(r"left\s+(-|\d)", said)
    else:
        assert said.count("epoch 1/2") == 1


@pytest.mark.parametrize("terminal", [True, False])
def test_the_display_prints_each_warning_once(terminal):
    out = io.StringIO()
    display = Display(Console(file=out, force_terminal=terminal, width=120, color_system=None))
    with display.running():
        for said in (["a"], ["a", "b"], [], ["b"]):  # a run that is started again has none
            display.show(STATUS | {"warnings": said})
    assert [out.getvalue().count(f"Warning: {one}") for one in "ab"] == [1, 1]


def fake_launch(monkeypatch, ending):
    """Replace Flower by a function that ends as told."""

    def run(config, num_silos, show):
        assert num_silos == 7
        show(STATUS)
        ending(config)

    monkeypatch.setattr(launch, "run", run)


def test_options_reach_the_configuration_and_the_report_is_printed(monkeypatch, tmp_path):
    output = tmp_path / "[run]"

    def finish(config):
        assert (config.run.seed, config.run.method, config.spcacw.beta) == (4, "local", 0.3)
        assert config.run.output == str(output)
        summary = {
            "setting": "digits-relabel", "method": "local", "target": 0, "alone": None,
            "holdout": 0.0, "metric": "auroc", "test-cases": 48, "alpha": [1.0, 0.0], "rounds": 14,
            "metrics": {"auroc": {"best": 0.9, "best_epoch": 1, "last": 0.89,
                                  "interval": [0.78, 0.95]}},
            "groups": [None, 1.0], "names": ["a [/b]", "c [red]"], "epochs": 1, "seconds": 1.0,
            "target_gradients": 14, "floats": 0,
        }  # fmt: skip
        (output / "summary.json").write_text(json.dumps(summary))
        (output / "config.toml").write_text('method = "local"\n')

    fake_launch(monkeypatch, finish)
    said = ran("run", "--seed", 4, "--method", "local", "--set", "beta=0.3", "--output", output)
    for words in (
        "silo 0 a [/b] by local, 48 test cases", " 1 c [red] │", "0.890 │ 0.780 to 0.950",
        "1 epoch, 14 rounds, 1.0 s; 14 gradients at the target",
        "known with hindsight: 1, AUROC 0.900", str(output),
    ):  # fmt: skip
        assert words in said
    assert "points" not in said  # of which there are none
    (output / "config.toml").write_text("")
    assert ran("report", output) == f"{output}/report.html\n"


@pytest.mark.parametrize(("silos", "keys", "started"), [
    (40, {}, 2), (7, {}, 1), (16, {}, 1), (17, {}, 2), (7, {"batch_size": 99}, 2),
    (7, {"model": "vgg16"}, 2), (1, {"model": "vgg16"}, 1), (7, {"nodes": 5}, 5),
])  # fmt: skip
def test_as_many_nodes_are_simulated_as_there_are_cores(silos, keys, started, monkeypatch):
    """Or one, where a round is so small that messages are most of it."""

    def submit(config, *more):
        raise SpcacwError(more[-1])

    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(launch, "flower", lambda log: nullcontext(SimpleNamespace(submit=submit)))
    with one_sentence(f"num-supernodes={started} "):
        launch.run(Config.from_keys(output="/tmp", **keys), silos, print)


def test_nodes_get_no_gpus_that_are_not_there(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with one_sentence("node-gpus = 1.5 is more than this machine has (1): leave it out"):
        launch.run(Config.from_keys(output="/tmp", node_gpus=1.5), 2, print)


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [(SpcacwError("The sentence."), 1, "spcacw: The sentence."), (KeyboardInterrupt(), 130, "")],
)
def test_a_run_that_ends_early_says_where_its_results_are(
    error, code, words, monkeypatch, tmp_path
):
    learned = f"What was learned so far is in {tmp_path / 'run'}"

    def end(config):
        (tmp_path / "run" / "metrics.jsonl").touch()
        raise error

    def end_later(config):
        (tmp_path / "run" / "metrics.jsonl").write_text("{}")
        raise error

    for ending, tells in ((end, False), (end_later, True)):
        fake_launch(monkeypatch, ending)
        said = ran("run", "--output", tmp_path / "run", code=code)
        assert words in said
        assert (learned in said) is tells


def refused(config):
    """Fail as a ServerApp does that cannot go on: its launcher takes the status away before."""
    (Path(config.run.output) / "status.json").unlink()
    simulate(config)


def test_a_refused_resume_leaves_status_and_report_as_they_were(monkeypatch, tmp_path):
    keys = ("--epochs", 1, "--set", "compare-alone=false", "--output", tmp_path)
    ran("run", "--engine", "in-process", *keys)
    files = tmp_path / "report.html", tmp_path / "status.json"
    before = [file.read_bytes() for file in files]
    fake_launch(monkeypatch, refused)
    for engine in ("ray", "in-process"):
        again = ("--resume", tmp_path, "--engine", engine, "--set", "eta=0.3")
        said = ran("run", *again, code=1)
        assert "is another: eta was 0.05 and is 0.3" in said
        assert "goes on from" not in said
        assert [file.read_bytes() for file in files] == before


@pytest.mark.parametrize("text", ["[/red]", "[bold]", ":boom:"])
def test_what_users_type_is_printed_as_it_is(text, tmp_path):
    """In a setting, a value, a key, a method, a directory of a run, and one of results."""
    (tmp_path / "file").touch()
    for given in (
        ("table1", "--columns", f"x{text}"), ("federations", "--setting", f"x{text}"),
        ("run", "--setting", f"x{text}"), ("run", "--set", f"metric={text}"),
        ("run", "--set", f"x{text}=1"), ("keys", f"x{text}"), ("keys", "--method", f"x:{text}"),
        ("run", "--resume", str(tmp_path / text)), ("report", str(tmp_path / text)),
        ("run", "--output", str(tmp_path / "file" / text)),
    ):  # fmt: skip
        assert text in ran(*given, code=1), given


def test_a_terminal_without_greek_letters_shows_what_it_can():
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-c", "from spcacw_flwr.cli import app; app()", "methods"]
    done = subprocess.run(command, env=env, capture_output=True, check=True)
    assert b"spcacw-plus" in done.stdout


def test_what_to_install_keeps_its_brackets(monkeypatch, tmp_path):
    monkeypatch.setattr("spcacw_flwr.silos.privacy.find_spec", lambda name: None)
    keys = ("--set", "privacy-noise=1", "--set", "privacy-batches=sampled")
    said = ran("run", "--engine", "in-process", *keys, "--output", tmp_path / "run", code=1)
    assert "pip install 'spcacw-flwr[privacy]'" in said
