"""The in-process engine: a function, its artefacts, and what it does when a silo breaks."""

import json
import logging
import signal
from collections.abc import Container
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from spcacw_flwr.alpha.crew import hands
from spcacw_flwr.config.config import Config
from spcacw_flwr.config.registry import METHODS
from spcacw_flwr.engine.loop import History
from spcacw_flwr.engine.plots import draw_metric, heat, new_figure
from spcacw_flwr.engine.recorder import Recorder
from spcacw_flwr.engine.simulate import simulate, threads
from spcacw_flwr.silos.metrics import METRICS
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.setup import checked_setting
from tests.conftest import one_sentence
from tests.test_end_to_end import metrics

FILES = ("alpha.csv", "config.toml", "metrics.jsonl", "model.safetensors", "status.json")


def config(**keys) -> Config:
    return Config.from_keys(**({"epochs": 2, "engine": "in-process"} | keys))


@pytest.mark.parametrize("method", METHODS)
def test_the_same_run_twice_is_equal_bit_for_bit(method, tmp_path):
    """Momentum, weight decay, clipping and partial participation are all in it."""
    keys = {"method": method, "participation": 0.6, "samples_per_silo": 100, "compare_alone": False}
    runs = [simulate(config(output=str(tmp_path / name), **keys)) for name in ("one", "two")]
    assert torch.equal(*(run.method.parameters for run in runs))
    assert metrics(tmp_path / "one") == metrics(tmp_path / "two")
    for file in ("alpha.csv", "model.safetensors", "config.toml"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_result_and_artefacts_say_the_same(tmp_path):
    shown: list[dict] = []
    result = simulate(config(output=str(tmp_path / "run")), shown.append)
    assert result.directory == tmp_path / "run"
    for file in (*FILES, "summary.json", "accuracy.png", "alpha.png"):
        assert (result.directory / file).stat().st_size > 0
    summary = json.loads((result.directory / "summary.json").read_text())
    assert summary["engine"] == "in-process"
    assert summary["last_accuracy"] == result.accuracy[-1]
    assert summary["alone"]["last_accuracy"] == result.accuracy_alone[-1]
    alphas = pd.read_csv(result.directory / "alpha.csv")
    np.testing.assert_array_equal(alphas.iloc[-1, 1:], result.alpha)
    assert list(alphas["round"]) == [0, 7, 14]
    model = load_file(result.directory / "model.safetensors")
    for name, part in result.parameters.items():
        assert torch.equal(model[name], part)
    assert shown[-1]["state"] == "finished"
    assert [status["epoch"] for status in shown][-1] == 2


def test_it_is_said_while_training_that_alone_is_ahead(tmp_path):
    """Once, after three epochs in a row and a quarter of the run; never of training alone."""
    for method, times in (("fedavg", 1), ("spcacw-plus", 0)):
        out = tmp_path / method
        result = simulate(config(method=method, epochs=16, output=str(out)))
        assert (out / "run.log").read_text().count("training alone has been ahead") == times
        assert [n for n, line in enumerate(result.epochs, 1) if "behind" in line] == [4][:times]
        assert [line["alone"] for line in result.epochs] == result.accuracy_alone


def test_the_noted_model_stays_that_of_the_epoch(monkeypatch, tmp_path):
    """A checkpoint within the next epoch holds it."""
    progress, seen = History.progress, []

    def watched(self, round_):
        progress(self, round_)
        if self.epochs and round_ % 7:
            kept = load_file(tmp_path / "run" / "model.safetensors")
            state = self.memory()["state"]
            seen.append(all(torch.equal(state[name], part) for name, part in kept.items()))

    monkeypatch.setattr(History, "progress", watched)
    simulate(config(output=str(tmp_path / "run"), compare_alone=False))
    assert seen == 6 * [True]


def test_without_output_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = simulate(config(compare_alone=False))
    assert (result.directory, result.accuracy_alone, len(result.accuracy)) == (None, [], 2)
    assert not list(tmp_path.iterdir())


def test_a_run_in_process_keeps_its_log(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(logging.getLogger("spcacw_flwr"), "propagate", False)  # as without pytest
    spoil(monkeypatch, 5, range(3, 99))
    result = simulate(config(epochs=1, output=str(tmp_path)))
    assert all(part.isfinite().all() for part in result.parameters.values())
    lines = (tmp_path / "run.log").read_text().splitlines()
    told = [line[:20] for line in lines if line.startswith("INFO")]
    assert told == ["INFO training alone,", "INFO round 7: accura"]
    said = "Round 3 goes on without silo 5: its gradient is not finite"
    assert any(line.startswith(f"WARNING {said}") for line in lines)
    shown = capsys.readouterr().err
    assert said in shown
    assert "round 7" not in shown
    assert logging.getLogger("spcacw_flwr").handlers == []


def test_warnings_reach_whoever_shows_the_run_and_are_printed_by_nobody_else(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(logging.getLogger("spcacw_flwr"), "propagate", False)  # as without pytest
    spoil(monkeypatch, 5, range(3, 99))
    shown: list[dict] = []
    simulate(config(epochs=1, output=str(tmp_path)), shown.append)
    (said,) = [one for one in shown[-1]["warnings"] if "silo 5: its gradient" in one]
    assert said.startswith("Round 3 goes on without silo 5")
    assert json.loads((tmp_path / "status.json").read_text()) == shown[-1]
    assert capsys.readouterr().err == ""
    assert logging.getLogger("spcacw_flwr").handlers == []


def test_a_warning_is_told_at_once_and_once_and_cannot_control_a_terminal(tmp_path):
    log, recorder = logging.getLogger("spcacw_flwr.flower"), Recorder(tmp_path, config(), "ray")
    with recorder.listening():
        log.info("nothing")
        for round_ in (3, 4):
            log.warning("Round %s goes on without \x1b[2J%s", round_, "Zürich")
        told = json.loads((tmp_path / "status.json").read_text())
        assert told["warnings"] == ["Round 3 goes on without [2JZürich"]
        assert told["state"] == "waiting for silos"
        for silo in range(30):
            log.warning("Silo %s", silo)
        recorder.fail("It ended.")
        log.warning("Too late.")
    told = json.loads((tmp_path / "status.json").read_text())
    assert (told["state"], told["error"]) == ("failed", "It ended.")
    assert told["warnings"][-2:] == ["Silo 18", "More warnings are in the log."]


def spoil(monkeypatch, silo: int, rounds: Container[int], owner=SiloPool) -> None:
    """In some rounds one silo's gradients are not finite: those of all pools, or of one."""
    honest = owner.gradients

    def gradients(*args):
        found, request = honest(*args), args[-1]
        if request.round in rounds and silo in request.silos:
            row = request.silos.index(silo)
            found.rows[row, 3] = found.norms[row] = torch.nan
        return found

    monkeypatch.setattr(owner, "gradients", gradients)


def error_of(directory) -> str:
    """What a run that has failed says on disk."""
    status = json.loads((directory / "status.json").read_text())
    assert status["state"] == "failed"
    return status["error"]


def test_when_the_target_breaks_the_run_ends_with_one_sentence_and_keeps_its_learning(
    monkeypatch, tmp_path
):
    spoil(monkeypatch, 0, range(10, 99))
    words = "Target silo 0 did not answer round 10"
    with one_sentence(words):
        simulate(config(output=str(tmp_path)))
    assert error_of(tmp_path).startswith(words)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1
    assert load_file(tmp_path / "model.safetensors")["3.bias"].shape == (10,)


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory. X")])
def test_a_run_without_memory_ends_with_one_sentence(error, monkeypatch, tmp_path):
    monkeypatch.setattr(SiloPool, "gradients", Mock(side_effect=error))
    with one_sentence("Training stopped, because no memory was left"):
        simulate(config(output=str(tmp_path)))
    assert error_of(tmp_path).endswith("smaller batches or a smaller model.")


def test_a_run_that_a_mistake_in_code_ends_says_where_on_disk(monkeypatch, tmp_path):
    """Under Flower this word ends the run before its log has a traceback."""

    def mistaken(*_):
        return torch.ones(2) @ torch.ones(3)

    monkeypatch.setattr(SiloPool, "evaluate", mistaken)
    with pytest.raises(RuntimeError):
        simulate(config(output=str(tmp_path)))
    line = mistaken.__code__.co_firstlineno + 1
    assert error_of(tmp_path).startswith("Training stopped by RuntimeError: ")
    assert error_of(tmp_path).endswith(f" (test_simulate.py line {line})")


def test_an_interrupted_run_says_so_on_disk(monkeypatch, tmp_path):
    monkeypatch.setattr(SiloPool, "evaluate", lambda *_: signal.default_int_handler(2, None))
    with pytest.raises(KeyboardInterrupt):
        simulate(config(output=str(tmp_path)))
    assert error_of(tmp_path) == "Training stopped by KeyboardInterrupt"


@pytest.mark.parametrize(("keys", "words"), [
    ({"device": "cuda:77"}, "device = 'cuda:77' cannot be used here"),
    ({"device": "gpu"}, "device = 'gpu' cannot be used here"),
    ({"precision": "tf32"}, "precision = 'tf32' is for GPUs, and device = 'cpu' is none"),
    ({"sketch": 9999}, "sketch = 9999 is more than the model's 4810 parameters"),
])  # fmt: skip
def test_what_cannot_be_is_one_sentence(keys, words):
    with one_sentence(words):
        simulate(config(**keys))


@pytest.mark.parametrize(
    ("wanted", "clusters", "size"), [(0, "3,2,2", 1), (0, "10,10", 3), (2, "3,2,2", 2)]
)
def test_a_small_round_takes_one_thread_and_all_are_back_afterwards(
    wanted, clusters, size, monkeypatch
):
    seen, compute = [], SiloPool.gradients

    def spy(*args, **kwargs):
        seen.append((hands(), torch.get_num_threads()))
        return compute(*args, **kwargs)

    monkeypatch.setattr(SiloPool, "gradients", spy)
    silos = sum(map(int, clusters.split(",")))
    keys = {"silos": silos, "cluster_sizes": clusters, "samples_per_silo": 40, "threads": wanted}
    torch.set_num_threads(3)  # of every test again one
    simulate(config(epochs=1, compare_alone=False, **keys))
    assert set(seen) == {(size, 1)}
    assert torch.get_num_threads() == 3


def test_a_model_that_cannot_be_split_has_pytorchs_threads():
    pool = SiloPool(config(), checked_setting(config()), [0])
    torch.set_num_threads(1)
    with threads(2, 10_000, pool):
        assert (hands(), torch.get_num_threads()) == (2, 1)
    pool.compute.way = "loop"
    with threads(2, 10_000, pool):
        assert (hands(), torch.get_num_threads()) == (1, 2)
    assert torch.get_num_threads() == 1


# Its pictures: what is white, what is dark, how long an α holds, and where the legend is.


def test_zero_is_white_and_colour_grows_with_the_root():
    axes = new_figure(2, 2).add_subplot()
    mesh = heat(axes, [[0.0, 0.25], [1.0, 0.0]])
    assert np.ma.getmaskarray(mesh.get_array()).tolist() == [[True, False], [False, True]]
    assert float(mesh.norm(0.25)) == 0.5
    assert axes.get_ylim() == (2, 0)  # the first row is above the second
    assert heat(axes, [[0.1]], top=0.1).norm(0.1) == 1


def test_an_alpha_holds_until_the_next_one():
    axes = new_figure(2, 2).add_subplot()
    edges = heat(axes, [[1.0, 0.5, 0.2]], [0, 7, 21, 25]).get_coordinates()[0, :, 0]
    assert edges.tolist() == [0, 7, 21, 25]


@pytest.mark.parametrize("name", ["accuracy", "log-loss"])
def test_the_legend_hides_no_line(name):
    """An interval at the last epoch went through it."""
    figure = new_figure(6.4, 3.1)
    axes = figure.add_subplot()
    draw_metric(axes, METRICS[name], [1, 2, 3], [0.91, 0.92, 0.93], [0.81, 0.82, 0.83])
    figure.draw_without_rendering()
    legend, whole = axes.get_legend().get_window_extent(), figure.bbox
    assert not legend.overlaps(axes.get_window_extent())
    assert whole.contains(legend.x0, legend.y0)
    assert whole.contains(legend.x1, legend.y1)
