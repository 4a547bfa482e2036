"""The Flower skin without Ray: discovery, equality with the bare loop, and bad replies."""

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import ArrayRecord, Context, MetricRecord, RecordDict
from safetensors.torch import load_file
from torch import nn

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.loop import Alone, History
from spcacw_flwr.engine.recorder import Recorder
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.flower import records
from spcacw_flwr.flower.client_app import silos_of_node
from spcacw_flwr.flower.server_app import main, train
from spcacw_flwr.flower.strategy import GradientStrategy
from spcacw_flwr.silos.layout import Layout, parameters_of
from spcacw_flwr.silos.models import make_model
from tests.conftest import make_pool, played
from tests.flower.grid import LocalGrid

ROUNDS = 14  # two epochs of 200 samples in batches of 32


def small(**keys) -> Config:
    return Config.from_keys(**({"method": "spcacw", "epochs": 2, "compare_alone": False} | keys))


def initial_arrays(config: Config) -> ArrayRecord:
    training, seed = config.training, config.run.seed
    model = parameters_of(make_model((1, 8, 8), 10, training.hidden, seed, training.model))
    layout = Layout.of(model)
    return records.model_to_arrays(layout, layout.flatten(model))


def play(
    config: Config, grid: LocalGrid, rounds: int = ROUNDS, history: History | None = None
) -> GradientStrategy:
    strategy = GradientStrategy(config, 7, history)
    strategy.start(grid=grid, initial_arrays=initial_arrays(config), num_rounds=rounds, timeout=5)
    return strategy


@pytest.mark.parametrize(
    "keys",
    [
        {"method": "spcacw-plus", "probe": 0.5, "participation": 0.6},
        {"method": "spcacw-plus", "smoothness_interval": 3},
        {"solver": "ftal"},
        {"solver": "ons"},
        {"solver": "eg"},
        {"method": "spcacw-closed-form"},
        {"target": 3},
        {"target": 6},
        {"precision": "bf16"},
        {"wire": "int8"},
    ],
)
def test_every_option_of_spcacw_has_one_trajectory(keys):
    config = small(update_every=5, **keys)
    strategy, loop = play(config, LocalGrid(config, 3)), played(config, ROUNDS)
    flower = strategy.method
    assert flower.alpha[config.run.target] > 0.3
    np.testing.assert_allclose(flower.alpha, loop.alpha, atol=1e-4)
    torch.testing.assert_close(flower.parameters, loop.parameters, rtol=1e-3, atol=1e-5)
    for name, values in loop.silo_figures().items():
        np.testing.assert_allclose(strategy.history.figures[name], values, rtol=2e-3, atol=2e-3)
    report, last = loop.epoch_report(), strategy.history.epochs[-1]
    for name in {"L", "cumulative_cost"} & set(report):
        assert last[name] == pytest.approx(report[name], rel=1e-3)


@pytest.mark.parametrize(
    ("keys", "accepted"),
    [
        ({"method": "spcacw", "epochs": 3, "participation": 0.6}, None),
        ({"method": "fedavg", "epochs": 3}, False),
        ({"method": "oracle-averaged", "epochs": 12, "guard_finish": 0.1}, True),
    ],
)
def test_a_guarded_method_has_one_trajectory(keys, accepted):
    """Judgement, model, weights, costs, and the accuracy after every epoch."""
    config = small(guard=5, **keys)
    strategy = play(config, LocalGrid(config, 2), 7 * config.run.epochs)
    history = simulate(config)
    flower, loop = strategy.method, history.method
    assert flower.accepted is loop.accepted
    assert accepted in (None, loop.accepted)
    torch.testing.assert_close(flower.personal, loop.personal, rtol=1e-4, atol=1e-6)
    for (at, one), (there, other) in zip(strategy.history.alphas, history.alphas, strict=True):
        assert at == there
        np.testing.assert_allclose(one, other, atol=1e-5)
    for one, other in zip(strategy.history.epochs, history.epochs, strict=True):
        for name in ("accuracy", "target_gradients", "floats", "accepted"):
            assert one[name] == pytest.approx(other[name], nan_ok=True)


def test_training_alone_at_the_targets_node_is_the_method_local():
    config = small()
    local = small(method="local")
    grid = LocalGrid(config, 7)
    strategy, pool = play(config, grid, rounds=1), make_pool(local)
    model = strategy.method.personal
    patience: list[float | None] = []
    ask = grid.send_and_receive
    grid.send_and_receive = lambda sent, *, timeout: patience.append(timeout) or ask(sent)
    found, alone = strategy.nodes.train_alone(pool.initial_parameters())
    assert patience == [100 * strategy.nodes.timeout]  # meanwhile a node does nothing else
    beside = Alone(pool)
    expected, vector = beside.train_alone(pool.initial_parameters())
    assert found == expected
    assert torch.equal(alone, vector)
    models = [played(local, t).parameters for t in (7, 14)]
    assert torch.equal(alone, models[-1])
    figures = [pool.evaluate(one, 0).figures for one in models]
    assert found["accuracy"] == [one["accuracy"] for one in figures]
    both = torch.stack((model, alone))
    gains = strategy.nodes.gains(both)
    assert gains == beside.gains(both)
    ours, theirs = (pool.cases(one, 0)[0] for one in both)
    assert gains["brier-gain"] == ours.gains(theirs)["brier"]
    assert gains["accuracy-gain"][0] == ours.figures()["accuracy"] - figures[-1]["accuracy"]


def test_only_whom_the_method_wants_is_asked():
    config = small(method="local")
    grid = LocalGrid(config, 7)
    assert torch.equal(play(config, grid).method.parameters, played(config, ROUNDS).parameters)
    trains = [m for m in grid.sent if m.metadata.message_type == "train"]
    assert len(trains) == ROUNDS
    assert [m.metadata.message_type for m in grid.sent[-2:]] == ["train", "evaluate"]
    assert sum(m.metadata.message_type == "evaluate" for m in grid.sent) == 2  # epochs
    assert len({m.metadata.dst_node_id for m in trains}) == 1


def test_when_the_target_is_lost_the_run_stops_and_keeps_what_it_learned(tmp_path):
    config = small(epochs=3, output=str(tmp_path))
    grid = LocalGrid(config, 7)
    recorder = Recorder(tmp_path, config, "test")
    left = iter(range(1 + 10))  # the query and 10 rounds; then silence

    def until_then(message, content):
        return content if next(left, None) is not None else None

    grid.spoil[grid.node_of(0)] = until_then
    with pytest.raises(SpcacwError, match="Target silo 0 did not answer"):
        train(grid, config, recorder)
    recorder.fail("the sentence")
    assert json.loads((tmp_path / "status.json").read_text())["error"] == "the sentence"
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1
    assert load_file(tmp_path / "model.safetensors")["3.bias"].shape == (10,)


# Discovery


def silent(message, content):
    return None


def claims_another(message, content):
    content.metric_records["silo-2"]["silo"] = 99
    return content


ONE_EACH = [{"silos": str(silo)} for silo in range(7)]


@pytest.mark.parametrize(
    ("nodes", "spoil", "words"),
    [
        (ONE_EACH, silent, r"No node holds silo 2 after 0\.5 s .*7 nodes.*1 of them"),
        (ONE_EACH, claims_another, r"No node holds silo 2 after 0\.5 s .*7 nodes.*0 of them"),
        ([{"silos": "0,1,2"}, {"silos": "5"}], None, "No node holds silo 3, 4, 6"),
        ([{"silos": "0,1,2,3"}, {"silos": "3,4,5,6"}], None, "Silo 3 is claimed by two nodes"),
    ],
    ids=["silent", "claims another", "missing", "claimed twice"],
)
def test_a_silo_that_is_not_found_ends_in_one_sentence_not_in_waiting(nodes, spoil, words):
    config = small(node_timeout=0.5)
    grid = LocalGrid(config, len(nodes), nodes)
    if spoil:
        grid.spoil[grid.node_of(2)] = spoil
    with pytest.raises(SpcacwError, match=words):
        play(config, grid)


def test_real_nodes_name_their_silos_and_their_data(tmp_path, offline):
    config = small()
    nodes = [{"silos": str(i)} for i in (3, 0, 6, 1, 2, 5, 4)]
    play(config, LocalGrid(config, 7, nodes), rounds=1)
    mnist = small(setting="mnist-relabel")
    nodes = [{"silos": str(i), "data-dir": str(tmp_path / "here")} for i in range(7)]
    with pytest.raises(SpcacwError, match=r"Node \d+ cannot take part: .*here.*data-dir"):
        play(mnist, LocalGrid(mnist, 7, nodes))


def test_nodes_share_silos_evenly():
    assert [silos_of_node({"partition-id": i, "num-partitions": 3}, 7) for i in range(3)] == [
        [0, 1, 2], [3, 4], [5, 6]
    ]  # fmt: skip
    assert [silos_of_node({"partition-id": i, "num-partitions": 7}, 7) for i in range(7)] == [
        [i] for i in range(7)
    ]
    for parts in (9, 20):
        nodes = [{"partition-id": i, "num-partitions": parts} for i in range(parts)]
        held = [silo for node in nodes for silo in silos_of_node(node, 7)]
        assert held == list(range(7))


@pytest.mark.parametrize("node", [{"silos": "0,7"}, {"silos": "a"}, {"silos": "-1"}, {}])
def test_a_bad_node_config_is_one_sentence(node):
    with pytest.raises(SpcacwError, match="node config"):
        silos_of_node(node, 7)


# Artefacts


def test_artefacts_of_a_run(tmp_path, capsys):
    directory = tmp_path / "run"
    keys = {"compare_alone": True, "tensorboard": True, "method": "spcacw-reg"}
    config = small(output=str(directory), **keys)
    main(LocalGrid(config, 7), Context(1, 1, {}, RecordDict(), config.to_flat()))
    summary = json.loads((directory / "summary.json").read_text())
    assert (summary["setting"], summary["method"], summary["engine"]) == (
        "digits-relabel", "spcacw-reg", "deployment",
    )  # fmt: skip
    assert (summary["rounds"], summary["epochs"], summary["seed"]) == (14, 2, 0)
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [7, 14]
    names = "accuracy", "balanced", "log-loss", "brier"
    assert set(lines[0]) == {f"{name}{end}" for name in names for end in ("", "-low", "-high")} | {
        "test-cases", "epoch", "round", "loss", "accuracy", "L", "lambda_reg", "cost", "seconds",
        "target_gradients", "floats", "bytes", "cumulative_cost", "best_fixed_cost", "regret",
        "regret_bound", "rejected", "quarantined", "alone",
    }  # fmt: skip
    silos = pd.read_csv(directory / "silos.csv")
    assert list(silos.silo) == [*range(7), *range(7)]
    np.testing.assert_array_equal(silos.alpha[7:], summary["alpha"])
    np.testing.assert_array_equal(silos.sigma[7:], summary["figures"]["sigma"])
    assert summary["last_accuracy"] == lines[-1]["accuracy"]
    found = summary["metrics"]["log-loss"]
    values = [line["log-loss"] for line in lines]
    assert (found["best"], found["last"]) == (min(values), values[-1])
    assert values[found["best_epoch"] - 1] == min(values)
    assert found["gain"] == pytest.approx(found["alone"] - found["last"])
    assert found["gain_interval"][0] < found["gain"] < found["gain_interval"][1]
    assert summary["best_accuracy"] == max(line["accuracy"] for line in lines)
    assert lines[-1]["lambda_reg"] > 0
    assert [line["target_gradients"] for line in lines] == [7, 14]
    assert lines[0]["floats"] == 7 * 6 * 2 * make_pool(config).layout.size == summary["floats"] / 2
    assert (lines[0]["bytes"], summary["bytes"]) == (4 * lines[0]["floats"], 4 * summary["floats"])
    alpha = pd.read_csv(directory / "alpha.csv")
    assert list(alpha["round"]) == [0, 7, 14]
    np.testing.assert_array_equal(alpha.iloc[-1, 1:], summary["alpha"])
    assert alpha.iloc[:, 1:].sum(axis=1).tolist() == pytest.approx([1, 1, 1])
    model = load_file(directory / "model.safetensors")
    pool = make_pool(config)
    found = pool.evaluate(pool.layout.flatten(model), 0).figures
    assert found["accuracy"] == lines[-1]["accuracy"]
    assert list((directory / "tensorboard").iterdir())
    assert "training alone" in (directory / "report.html").read_text()
    said = capsys.readouterr().out
    assert f"{summary['alone']['last_accuracy']:.2f}" in said
    assert str(directory) in said
    with pytest.raises(SpcacwError, match="already holds a run"):
        Recorder(directory, config, "test")


@pytest.mark.parametrize(
    "nonsense",
    [
        {"silo": [1, 2]}, {"silo": []}, {"silo": math.nan}, {"num-examples": math.inf},
        {"num-examples": 0}, {"num-examples": -300},
        {"label-counts": [math.nan]}, {"group": []}, {"oracle": [math.inf]},
        {"independent": math.nan}, {"independent": [1.0, 2.0]},
    ],
    ids=str,
)  # fmt: skip
def test_a_node_that_tells_nonsense_of_itself_is_refused(nonsense):
    """In a sentence: one that appears in the midst of a run must not end it."""
    sane = {"silo": 1, "num-examples": 5, "label-counts": [2, 3], "oracle": [1]}
    with pytest.raises(SpcacwError, match="what a silo tells of itself cannot be read"):
        records.record_to_info(MetricRecord(sane | nonsense))
    assert records.record_to_info(MetricRecord(sane)).independent is None
    assert records.record_to_info(MetricRecord(sane | {"independent": 2.5})).independent == 2.5
    del sane["silo"]
    with pytest.raises(SpcacwError, match="silo is None where numbers were expected"):
        records.record_to_info(MetricRecord(sane))
    with pytest.raises(SpcacwError, match="round is 'one'"):
        records.whole_numbers({"round": "one"}, "round")


@pytest.mark.parametrize("shape", ["1" + 30 * "0", "-2,3", "0"])
def test_a_model_of_a_shape_that_there_is_not_is_refused(shape):
    with pytest.raises(SpcacwError, match="what a node says of its model cannot be read"):
        records.config_to_layout({"names": ["weight"], "shapes": [shape]})


# A model with BatchNorm and dropout: the same run, the same file


def normed(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout2d(0.3),
        nn.Flatten(), nn.Linear(144, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True),
        nn.Dropout(0.5), nn.Linear(16, classes),
    )  # fmt: skip


NORMED = small(method="spcacw-plus", model="tests.flower.test_strategy:normed", update_every=5)


@pytest.mark.parametrize("nodes", [1, 7])
def test_both_engines_evaluate_and_save_the_same_model(nodes, tmp_path):
    """One node computes in one pooled pass, as in process: the same bits; seven round apart."""
    recorder = Recorder(tmp_path / "flower", NORMED, "test")
    strategy = play(NORMED, LocalGrid(NORMED, nodes), history=recorder)
    result = simulate(replace(NORMED, run=replace(NORMED.run, output=str(tmp_path / "process"))))
    files = [tmp_path / name / "model.safetensors" for name in ("flower", "process")]
    saved, expected = map(load_file, files)
    accuracies = [line["accuracy"] for line in strategy.history.epochs]
    model = make_model((1, 8, 8), 10, 64, 5, NORMED.training.model)
    assert set(saved) == set(expected) == set(model.state_dict()) == set(result.parameters)
    assert all(torch.equal(expected[name], part) for name, part in result.parameters.items())
    if nodes == 1:
        assert accuracies == result.accuracy
        np.testing.assert_array_equal(strategy.method.alpha, result.alpha)
        assert files[0].read_bytes() == files[1].read_bytes()
    else:
        assert accuracies == pytest.approx(result.accuracy, abs=0.3)
        np.testing.assert_allclose(strategy.method.alpha, result.alpha, atol=1e-4)
        for name in expected:
            torch.testing.assert_close(saved[name], expected[name], rtol=1e-2, atol=1e-3)

    # The file is a model: loaded into the architecture, it is as accurate as the run says.
    model.load_state_dict(saved)
    data = make_pool(NORMED).setting.test(0)
    right = model.eval()(data.x).argmax(1) == data.y
    assert 100 * right.double().mean().item() == pytest.approx(accuracies[-1])


def test_a_clientapp_without_buffers_is_as_good(tmp_path):
    """Of a user's own ClientApp no buffers are asked."""
    grid = LocalGrid(NORMED, 1)

    def without(message, content):
        content.pop(records.BUFFERS, None)
        return content

    grid.spoil[101] = without
    layout = play(NORMED, grid, history=Recorder(tmp_path, NORMED, "test")).nodes.layout
    assert set(load_file(tmp_path / "model.safetensors")) == set(dict(layout.shapes))


# The ServerApp


def test_the_server_app_says_one_sentence_and_raises_it(tmp_path):
    config = small(output=str(tmp_path / "run"), node_timeout=0.3)
    flat = config.to_flat()
    grid = LocalGrid(config, 7)
    grid.spoil[grid.node_of(2)] = lambda message, content: None
    for change, words in [
        ({"beta": 2.0}, "beta = 2.0 is not allowed"),
        ({"target": 7}, "target = 7 is not a silo"),
        ({"output": "here"}, "output = 'here' must be an absolute path"),
        ({"method": "nothing"}, "method = 'nothing' is unknown"),
        ({}, "No node holds silo 2"),
    ]:
        context = Context(1, 1, {}, RecordDict(), flat | change)
        with pytest.raises(SpcacwError, match=words):
            main(grid, context)
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["state"] == "failed"
    assert "No node holds silo 2" in status["error"]
    assert "No node holds silo 2" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.slow
def test_a_comparison_that_fails_does_not_cost_the_training(tmp_path, monkeypatch):
    monkeypatch.setattr("spcacw_flwr.flower.grid.ALONE", 1)
    config = small(output=str(tmp_path / "run"), compare_alone=True, round_timeout=5.0)
    grid = LocalGrid(config, 7)

    def not_alone(message, content):
        return None if message.metadata.message_type == "train.alone" else content

    grid.spoil[grid.node_of(0)] = not_alone
    main(grid, Context(1, 1, {}, RecordDict(), config.to_flat()))
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["alone"] is None
