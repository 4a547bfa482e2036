"""Under Flower a run goes on from its checkpoint too, and a ServerApp knows the run it began."""

import json
import os
import signal

import pytest
import torch

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine import checkpoint
from spcacw_flwr.engine.directory import Stopped
from spcacw_flwr.engine.recorder import Recorder
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.flower.server_app import output_directory, run
from tests.engine.test_checkpoint import assert_same_state, config_of, without_seconds
from tests.flower.grid import LocalGrid
from tests.flower.test_strategy import GradientStrategy, initial_arrays

ROUNDS = 8  # two epochs
NEVER = 1000


class Breaking(LocalGrid):
    """A grid on which the ServerApp ends at the n-th message of a round (a wish or a death)."""

    def __init__(self, config: Config, rounds: int, how) -> None:
        super().__init__(config, 3)
        self.left, self.how = rounds, how

    def push_messages(self, messages):
        messages = list(messages)
        if any(message.metadata.message_type == "train" for message in messages):
            self.left -= 1
            if self.left < 0:
                self.how()
        return super().push_messages(messages)


class Killed(BaseException):
    """What ends a process: nobody catches it."""


def killed():
    raise Killed


def stopped_and_gone_on(config: Config, directory, after: int):
    """Return two strategies: one never stopped, one that was after some rounds and went on."""
    again = Config.from_flat(config.to_flat() | {"resume": str(directory / "run")})
    strategies, results = [], []
    for name, keys, grid in (
        ("whole", config, LocalGrid(config, 3)), ("run", config, Breaking(config, after, killed)),
        ("run", again, LocalGrid(config, 3)),
    ):  # fmt: skip
        strategy = GradientStrategy(keys, 7, Recorder(directory / name, keys, "ray"))
        strategies.append(strategy)
        try:
            results.append(strategy.start(grid, initial_arrays(config), ROUNDS, timeout=5))
        except Killed:
            strategy.history.fail("killed")
        else:
            strategy.history.finish()
    return strategies[0], strategies[-1], results


@pytest.mark.parametrize(
    ("keys", "after"),
    [
        *(({"method": "spcacw"}, after) for after in (1, 3, 5, NEVER)),
        ({"method": "fedfomo"}, 5), ({"method": "ditto"}, 8),
    ],
)  # fmt: skip
def test_a_strategy_that_goes_on_is_one_that_never_stopped(keys, after, tmp_path):
    """Stopped within a round, within an epoch, at its end, and not at all: it is over already."""
    config = config_of(**keys, checkpoint_every=1)
    whole, again, results = stopped_and_gone_on(config, tmp_path, after)
    assert len(results) == (3 if after == NEVER else 2)
    assert_same_state(whole.method, again.method)
    assert without_seconds(tmp_path / "run") == without_seconds(tmp_path / "whole")
    first, last = results[0], results[-1]
    for name, array in first.arrays.items():
        assert torch.equal(
            torch.from_numpy(array.numpy()), torch.from_numpy(last.arrays[name].numpy())
        )
    assert last.evaluate_metrics_clientapp == first.evaluate_metrics_clientapp


def test_an_app_that_was_killed_goes_on_by_itself(tmp_path):
    """The same Flower run id: its own directory. Another: somebody else's."""
    config = config_of(output=str(tmp_path / "whole"), checkpoint_every=2)
    run(LocalGrid(config, 3), config, "17")
    config = config_of(output=str(tmp_path / "run"), checkpoint_every=2)
    with pytest.raises(Killed):  # before there is a checkpoint
        run(Breaking(config, 1, killed), config, "17")
    assert not checkpoint.exists(tmp_path / "run" / "checkpoint")
    with pytest.raises(Killed):
        run(Breaking(config, 5, killed), config, "17")
    assert checkpoint.load(tmp_path / "run" / "checkpoint")[0]["round"] == 4
    with pytest.raises(SpcacwError, match="already holds a run"):
        run(LocalGrid(config, 3), config, "18")
    assert run(LocalGrid(config, 3), config, "17") == tmp_path / "run"
    assert without_seconds(tmp_path / "run") == without_seconds(tmp_path / "whole")


def test_an_app_finds_the_dated_directory_that_it_wrote(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    config = config_of(checkpoint_every=2)
    with pytest.raises(Killed):
        run(Breaking(config, 3, killed), config, "17")
    (began,) = (tmp_path / "spcacw-runs").iterdir()
    assert output_directory(config, "18") != began
    assert run(LocalGrid(config, 3), config, "17") == began


@pytest.mark.parametrize("how", ["file", "signal"])
def test_a_wish_to_end_is_granted_after_the_round(how, tmp_path):
    """A file, for a ServerApp in a thread, as in a simulation; SIGTERM for one of a deployment."""
    config, wished = config_of(output=str(tmp_path / "run")), []

    def wish():
        if not wished:
            wished.append(how)
            if how == "file":
                (tmp_path / "run" / "stop").touch()
            else:
                os.kill(os.getpid(), signal.SIGTERM)

    grid = Breaking(config, 5, wish)
    with pytest.raises(Stopped, match="It was stopped after round 6 of 8"):
        run(grid, config, "17")
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["error"] == "It was stopped after round 6 of 8."
    assert checkpoint.load(tmp_path / "run" / "checkpoint")[0]["round"] == 6


def test_a_run_of_flower_goes_on_in_process(tmp_path):
    """The engines agree but for rounding."""
    whole = simulate(config_of())
    config = config_of(output=str(tmp_path / "run"), checkpoint_every=4)
    with pytest.raises(Killed):
        run(Breaking(config, 4, killed), config, "17")
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 1
    result = simulate(config_of(resume=str(tmp_path / "run"), checkpoint_every=4))
    assert result.accuracy == pytest.approx(whole.accuracy, abs=0.3)
    for name, part in whole.parameters.items():
        torch.testing.assert_close(result.parameters[name], part, rtol=1e-3, atol=1e-5)
