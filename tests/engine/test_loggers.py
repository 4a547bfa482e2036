"""MLflow, Weights & Biases and TensorBoard: what they are told, and what becomes of a run without.

MLflow and wandb are stand-ins here, which note each call; docs/run.md says how to use the real.
"""

import json
import sys
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest

from spcacw_flwr.config.config import Config
from spcacw_flwr.engine.simulate import simulate
from tests.conftest import one_sentence


@pytest.fixture
def mlflow(monkeypatch):
    """A stand-in for mlflow, whose run is m1."""
    found = Mock()
    found.is_tracking_uri_set.return_value = False
    found.start_run.return_value.info.run_id = "m1"
    monkeypatch.setitem(sys.modules, "mlflow", found)
    return found


@pytest.fixture
def wandb(monkeypatch):
    """A stand-in for wandb, whose run is w1."""
    found = Mock()
    found.init.return_value.id = "w1"
    monkeypatch.setitem(sys.modules, "wandb", found)
    return found


KEYS = {"epochs": 2, "mlflow": True, "wandb": True}


def rounds_of(mlflow, wandb) -> list[int]:
    """The rounds of which both were told some values, the same ones."""
    told = [
        (values | {"round": how["step"]},) for (values,), how in mlflow.log_metrics.call_args_list
    ]
    assert told == [values for values, _ in wandb.init.return_value.log.call_args_list]
    return [values["round"] for (values,) in told]


def test_both_are_told_keys_weights_metrics_and_training_alone(tmp_path, mlflow, wandb):
    run = tmp_path / "run"
    found = simulate(Config.from_keys(output=str(run), **KEYS))
    assert rounds_of(mlflow, wandb) == [0, 7, 7, 14, 14]
    begun = ["is_tracking_uri_set", "set_tracking_uri", "start_run", "log_params"]
    assert [name for name, *_ in mlflow.method_calls[:4]] == begun
    mlflow.set_tracking_uri.assert_called_once_with(f"sqlite:///{tmp_path / 'mlflow.db'}")
    mlflow.start_run.assert_called_once_with(run_id=None, run_name="run", nested=True)
    assert mlflow.log_params.call_args.args[0]["epochs"] == 2
    weights, _, epoch, *_ = (values for (values,), _ in mlflow.log_metrics.call_args_list)
    assert weights["alpha/silo_0"] == 1
    assert epoch["accuracy"] == found.accuracy[0]
    assert epoch["alone/accuracy"] == found.accuracy_alone[0]
    assert mlflow.method_calls[-1] == call.end_run("FINISHED")
    how = wandb.init.call_args.kwargs
    assert (how["project"], how["name"], how["resume"]) == ("spcacw", "run", None)
    told = wandb.init.return_value.method_calls
    assert told[0] == call.define_metric("*", step_metric="round")
    assert told[-1] == call.finish(exit_code=0)
    assert json.loads((run / "loggers.json").read_text()) == {"mlflow": "m1", "wandb": "w1"}


def test_a_run_that_goes_on_goes_on_with_its_logs(tmp_path, mlflow, wandb):
    for epochs, more in ((1, {"output": str(tmp_path)}), (2, {"resume": str(tmp_path)})):
        mlflow.reset_mock()
        wandb.reset_mock()
        simulate(Config.from_keys(**KEYS | {"epochs": epochs, "compare_alone": False}, **more))
    assert mlflow.start_run.call_args.kwargs["run_id"] == "m1"
    mlflow.log_params.assert_not_called()  # MLflow's cannot change, and epochs did
    how = wandb.init.call_args.kwargs
    assert (how["id"], how["resume"]) == ("w1", "allow")
    assert rounds_of(mlflow, wandb) == [14, 14]


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_what_is_not_installed_is_one_sentence_before_training(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with one_sentence(f"pip install 'spcacw-flwr[{name}]'"):
        simulate(Config.from_keys(output=str(tmp_path), **{name: True}))
    assert not [*tmp_path.iterdir()]


def test_one_that_cannot_begin_is_one_sentence_and_the_other_is_closed(
    tmp_path, mlflow, monkeypatch
):
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace())
    with one_sentence("wandb = true: its log cannot begin"):
        simulate(Config.from_keys(output=str(tmp_path), **KEYS))
    assert mlflow.method_calls[-1] == call.end_run("FAILED")


def test_one_that_fails_later_is_left_out_and_training_goes_on(tmp_path, mlflow, caplog):
    mlflow.log_metrics.side_effect = ConnectionError("no route")
    keys = {"epochs": 1, "mlflow": True, "tensorboard": True, "compare_alone": False}
    simulate(Config.from_keys(output=str(tmp_path), **keys))
    said = [line for line in caplog.messages if "mlflow" in line]
    assert said == ["The log of mlflow ends here, training goes on (no route)."]
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "finished"
    assert any((tmp_path / "tensorboard").iterdir())
