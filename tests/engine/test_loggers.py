"""MLflow, Weights & Biases and TensorBoard: what they are told, and what becomes of a run without.

MLflow and wandb are stand-ins here, which note each call; docs/run.md says how to use the real.
"""

import json
import sys
from types import SimpleNamespace

import pytest

from spcacw_flwr.config.config import Config
from spcacw_flwr.engine.simulate import simulate
from tests.conftest import one_sentence


@pytest.fixture
def told(monkeypatch):
    """What a stand-in for mlflow, whose run is m1, is told."""
    calls, run = [], SimpleNamespace(info=SimpleNamespace(run_id="m1"))
    mlflow = SimpleNamespace(
        is_tracking_uri_set=lambda: False,
        start_run=lambda **how: calls.append(("start", how)) or run,
        set_tracking_uri=lambda uri: calls.append(("uri", uri)),
        log_params=lambda params: calls.append(("params", params)),
        log_metrics=lambda values, step: calls.append((step, values)),
        end_run=lambda state: calls.append(("end", state)),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    return calls


@pytest.fixture
def noted(monkeypatch):
    """What a stand-in for wandb, whose run is w1, is told."""
    calls = []
    run = SimpleNamespace(
        id="w1", define_metric=lambda name, step_metric: calls.append((name, step_metric)),
        log=lambda values: calls.append((values["round"], values)),
        finish=lambda exit_code: calls.append(("end", exit_code)),
    )  # fmt: skip
    wandb = SimpleNamespace(init=lambda **how: calls.append(("start", how)) or run)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    return calls


KEYS = {"epochs": 2, "mlflow": True, "wandb": True}


def test_both_are_told_keys_weights_metrics_and_training_alone(tmp_path, told, noted):
    run = tmp_path / "run"
    found = simulate(Config.from_keys(output=str(run), **KEYS))
    names = [name for name, _ in told]
    assert names == ["uri", "start", "params", 0, 7, 7, 14, 14, "end"]
    assert told[0][1] == f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert told[1][1] == {"run_id": None, "run_name": "run", "nested": True}
    assert told[2][1]["epochs"] == 2
    assert told[3][1]["alpha/silo_0"] == 1
    assert told[5][1]["accuracy"] == found.accuracy[0]
    assert told[5][1]["alone/accuracy"] == found.accuracy_alone[0]
    assert told[-1] == ("end", "FINISHED")
    assert [name for name, _ in noted] == ["start", "*", 0, 7, 7, 14, 14, "end"]
    how = noted[0][1]
    assert (how["project"], how["name"], how["resume"]) == ("spcacw", "run", None)
    assert noted[-1] == ("end", 0)
    assert json.loads((run / "loggers.json").read_text()) == {"mlflow": "m1", "wandb": "w1"}


def test_a_run_that_goes_on_goes_on_with_its_logs(tmp_path, told, noted):
    for epochs, more in ((1, {"output": str(tmp_path)}), (2, {"resume": str(tmp_path)})):
        told.clear()
        noted.clear()
        simulate(Config.from_keys(**KEYS | {"epochs": epochs, "compare_alone": False}, **more))
    assert dict(told[:2])["start"]["run_id"] == "m1"
    assert "params" not in dict(told)  # MLflow's cannot change, and epochs did
    assert (noted[0][1]["id"], noted[0][1]["resume"]) == ("w1", "allow")
    assert [name for name, _ in told[2:]] == [14, 14, "end"]


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_what_is_not_installed_is_one_sentence_before_training(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with one_sentence(f"pip install 'spcacw-flwr[{name}]'"):
        simulate(Config.from_keys(output=str(tmp_path), **{name: True}))
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_one_that_cannot_begin_is_one_sentence_and_the_other_is_closed(tmp_path, told, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace())
    with one_sentence("wandb = true: its log cannot begin"):
        simulate(Config.from_keys(output=str(tmp_path), **KEYS))
    assert told[-1] == ("end", "FAILED")


def test_one_that_fails_later_is_left_out_and_training_goes_on(tmp_path, told, caplog):
    def fail(*_, **__):
        raise ConnectionError("no route")

    sys.modules["mlflow"].log_metrics = fail
    keys = {"epochs": 1, "mlflow": True, "tensorboard": True, "compare_alone": False}
    simulate(Config.from_keys(output=str(tmp_path), **keys))
    said = [line for line in caplog.messages if "mlflow" in line]
    assert said == ["The log of mlflow ends here, training goes on (no route)."]
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "finished"
    assert any((tmp_path / "tensorboard").iterdir())
