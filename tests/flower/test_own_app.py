"""An app of one's own: ten lines on each side, and one true sentence for each misfit."""

import ast
import json
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from safetensors.torch import load_file
from torch import nn

from spcacw_flwr import SPCACW, SiloData, silo_app
from spcacw_flwr.config.config import Config
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.flower import records
from spcacw_flwr.flower.client_app import Own
from spcacw_flwr.flower.discovery import Found
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.setup import checked_setting
from tests.conftest import one_sentence
from tests.flower.grid import LocalGrid
from tests.test_end_to_end import flwr_run, link

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_app"
sys.path.append(str(EXAMPLE))
from hospitals.task import load, network  # noqa: E402

__all__ = ["link"]
SIDES = "client", "server"
SILOS = 4
KEYS = {"num_silos": SILOS, "eta": 0.05, "max_norm": 2.0, "batch_size": 16, "seed": 3}


def grid_of(app: ClientApp, nodes: int = SILOS, node_configs=None) -> LocalGrid:
    """Nodes that run an app of one's own, with a run config of its own."""
    grid = LocalGrid(Config.from_keys(), nodes, node_configs)
    for node, context in grid.contexts.items():
        context.run_config = {"num-server-rounds": 3}
        grid.apps[node] = app
    return grid


def initial(model=network, seed: int = 7) -> ArrayRecord:
    torch.manual_seed(seed)
    return ArrayRecord(model().state_dict())


def lines_of(path: Path) -> int:
    """Lines of code, imports among them, without docstrings and empty lines."""
    body = ast.parse(path.read_text())
    strings = {
        line
        for node in ast.walk(body)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno, node.end_lineno + 1)
    }
    lines = enumerate(path.read_text().splitlines(), 1)
    return sum(bool(text.strip()) and number not in strings for number, text in lines)


def test_each_side_of_the_example_has_ten_lines_at_most():
    lines = {side: lines_of(EXAMPLE / "hospitals" / f"{side}_app.py") for side in SIDES}
    assert lines == {"client": 3, "server": 10}


def pairs_of_images(silo):
    """Return data of which half as many samples are independent as there are."""
    (x, y), test = load(silo)
    return SiloData(x, y, independent=len(y) / 2), test


@pytest.mark.parametrize(("nodes", "wire"), [(SILOS, "float32"), (2, "int8"), (7, "float32")])
def test_the_same_run_as_in_process(nodes, wire, tmp_path, monkeypatch):
    """Batch size, clipping, seed and wire reach the silos, and what is independent the method.

    Of 7 nodes some hold no silo. The model has BatchNorm's buffers.
    """
    keys = KEYS | {"wire": wire}
    arrays, strategy = initial(), SPCACW(**keys, output=tmp_path / "run")
    grid = grid_of(silo_app(pairs_of_images, network), nodes)
    result = strategy.start(grid, arrays, num_rounds=12)
    assert strategy.method.population.alike.tolist() == [2.0] * SILOS

    start = {name: torch.from_numpy(array.numpy().copy()) for name, array in arrays.items()}

    def same():
        model = network()
        model.load_state_dict(start)
        return model

    monkeypatch.setitem(sys.modules, "same", SimpleNamespace(load=pairs_of_images, model=same))
    expected = simulate(Config.from_keys(
        setting="own", silo="same:load", silos=SILOS, classes=2, model="same:model",
        epochs=4, **{name: value for name, value in keys.items() if name != "num_silos"},
    ))  # fmt: skip
    np.testing.assert_allclose(strategy.method.alpha, expected.alpha, atol=1e-4)
    assert set(result.arrays) == set(expected.parameters) == set(arrays)
    for name, part in expected.parameters.items():
        found = torch.from_numpy(result.arrays[name].numpy().copy())
        torch.testing.assert_close(found, part, rtol=1e-3, atol=1e-4)
    network().load_state_dict({n: torch.from_numpy(a.numpy()) for n, a in result.arrays.items()})
    assert strategy.history.alone["accuracy"] == pytest.approx(expected.accuracy_alone, abs=2)
    rounds = {n: m["accuracy"] for n, m in result.evaluate_metrics_clientapp.items()}
    assert rounds == dict(zip((3, 6, 9, 12), expected.accuracy, strict=True))


def test_a_process_that_is_first_asked_to_evaluate_knows_the_number_of_classes():
    """The model says it; on Ray any process may be asked anything first."""
    config = Own(load, network, None).put_into(Config.from_keys(silos=SILOS))
    pool = SiloPool(config, checked_setting(config), [0])
    assert "auroc" in pool.evaluate(pool.initial_parameters(), 0).figures


def test_training_alone_takes_as_many_rounds_when_they_end_within_an_epoch(tmp_path):
    """Until the first epoch ends α is e₀: that is training alone."""
    strategy = SPCACW(**KEYS, method="spcacw", output=tmp_path / "run")
    strategy.start(grid_of(silo_app(load, network)), initial(), num_rounds=2)
    assert strategy.method.federation.rounds_per_epoch == 3
    assert strategy.history.alone["log-loss-gain"] == [0, 0, 0]
    assert strategy.history.epochs[-1]["accuracy"] == strategy.history.alone["accuracy"][-1]


def test_a_run_that_ended_before_its_first_round_goes_on(tmp_path):
    """How many epochs there are it does not know before its silos are found."""
    with one_sentence("silo 3"):
        grid = grid_of(silo_app(load, network), 1, [{"silos": "0,1,2"}])
        SPCACW(**KEYS, node_timeout=0.1, output=tmp_path).start(grid, initial(), num_rounds=6)
    strategy = SPCACW(**KEYS, resume=tmp_path.as_posix())
    strategy.start(grid_of(silo_app(load, network)), initial(), num_rounds=6)
    assert strategy.history.round == 6


def test_all_artefacts_are_left(tmp_path):
    result = SPCACW(**KEYS, output=tmp_path / "run").start(
        grid_of(silo_app(load, network)), initial(), num_rounds=7
    )
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"report.html", "alpha.csv", "metrics.jsonl", "summary.json", "model.safetensors",
            "accuracy.png", "alpha.png", "silos.csv", "config.toml"} <= left  # fmt: skip
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["rounds"], summary["epochs"], summary["setting"]) == (7, 3, "own")
    assert len(summary["alone"]["accuracy"]) == 3
    assert [*result.evaluate_metrics_clientapp] == [3, 6, 7]
    assert set(load_file(tmp_path / "run" / "model.safetensors")) == set(result.arrays)
    assert "digits" not in (tmp_path / "run" / "report.html").read_text()


def test_a_node_needs_its_own_silos_data_alone():
    def mine(silo):
        held.append(silo)
        return load(silo)

    for silo in (2, 3):
        held: list[int] = []
        grid = grid_of(silo_app(mine, network), 1, [{"silos": str(silo)}])
        (message,) = [m for m in asked(grid) if m]
        assert f"silo-{silo}" in message.content
        assert held == [silo]


def test_what_ones_own_code_says_of_data_stays_in_the_nodes_log(caplog):
    """float("J. Doe") names the patient."""

    def load(silo):
        return float("J. Doe")

    (reply,) = asked(grid_of(silo_app(load, network), 1, [{"silos": "2"}]))
    words = reply.content[records.CONFIG][records.ERROR]
    assert "Silo 2 of" in words
    assert "cannot be loaded (ValueError" in words
    assert "Doe" not in words
    assert "could not convert string to float: 'J. Doe'" in caplog.text


def asked(grid: LocalGrid) -> list[Message]:
    """What the nodes say when SPCACW asks which silos they hold."""
    return list(Found(grid, SPCACW(**KEYS).keys).ask({*grid.contexts}).values())


def test_what_start_is_told_reaches_the_clients():
    seen: dict[str, set] = {"train": set(), "evaluate": set()}
    plain = silo_app(load, network)

    def app(message, context):
        kind = message.metadata.message_type
        if kind in seen:
            seen[kind].add(message.content["config"].get("lr"))
        return plain(message, context)

    SPCACW(**KEYS).start(
        grid_of(app), initial(), num_rounds=3,
        train_config=ConfigRecord({"lr": 0.3, "seed": 99}), evaluate_config=ConfigRecord({"lr": 1}),
    )  # fmt: skip
    assert seen == {"train": {0.3}, "evaluate": {1}}


def test_privacy_is_the_owners():
    nodes = [{"silos": str(i)} | ({"privacy-noise": 1.0} if i == 2 else {}) for i in range(SILOS)]
    strategy = SPCACW(**KEYS, privacy_clip="batch")  # BatchNorm mixes samples
    strategy.start(grid_of(silo_app(load, network), SILOS, nodes), initial(), num_rounds=3)
    assert [bool(info.privacy) for info in strategy.method.federation.silos] == [
        False, False, True, False
    ]  # fmt: skip
    assert strategy.history.privacy["2"]["answers"] == 3


def squares(outputs, y):
    return (outputs - nn.functional.one_hot(y, 2)).square().mean(1)


def test_a_loss_of_ones_own():
    strategy = SPCACW(**KEYS)
    result = strategy.start(grid_of(silo_app(load, network, squares)), initial(), num_rounds=3)
    assert 0 < result.train_metrics_clientapp[3]["loss"] < 1
    assert strategy.nodes.layout.size == sum(part.numel() for part in network().parameters())


def heights(silo):
    """Numbers to be predicted; only the target, silo 0, has test data."""
    (x, _), (tested, _) = load(silo)
    return (x, x[:, 0]), (tested, tested[:, 0]) if silo == 0 else None


def distances(outputs, y):
    return (outputs[:, 0] - y).square()


def test_a_regression_with_peers_that_have_no_test_data():
    strategy = SPCACW(**KEYS, metric="r2")
    app = silo_app(heights, lambda: nn.Linear(30, 1), distances)
    result = strategy.start(grid_of(app), initial(lambda: nn.Linear(30, 1)), num_rounds=30)
    found = result.evaluate_metrics_clientapp[30]
    assert set(found) == {"r2", "mse"}
    assert found["r2"] > 0.3
    with one_sentence("outputs of shape", "the 1 classes for labels"):
        start(silo_app(heights, lambda: nn.Linear(30, 2), distances))


def signs(silo):
    """Two labels a sample: whether each of two features is above its mean."""
    return tuple((x, x[:, :2] > 0) for x, _ in load(silo))


def test_several_labels_a_sample():
    app = silo_app(signs, lambda: nn.Linear(30, 2))
    result = SPCACW(**KEYS).start(grid_of(app), initial(lambda: nn.Linear(30, 2)), num_rounds=30)
    found = result.evaluate_metrics_clientapp[30]
    assert set(found) == {"accuracy", "log-loss", "brier"}
    assert found["accuracy"] > 75
    with one_sentence("outputs of shape", "the 2 classes for labels"):
        start(silo_app(signs, lambda: nn.Linear(30, 3)))


def test_two_apps_in_one_process_keep_apart():
    wide = silo_app(load, lambda: nn.Linear(30, 2))
    assert len(asked(grid_of(wide))[0].content["config"]["names"]) == 2
    assert len(asked(grid_of(silo_app(load, lambda: network())))[0].content["config"]["names"]) == 6


# Misfits


def start(app, arrays=None, spoil=None, **keys):
    grid = app if isinstance(app, LocalGrid) else grid_of(app)
    grid.spoil |= dict.fromkeys(grid.contexts, spoil) if spoil else {}
    arrays = initial() if arrays is None else arrays
    return SPCACW(**(KEYS | {"node_timeout": 0.5} | keys)).start(grid, arrays, num_rounds=3)


def stock() -> ClientApp:
    """As Flower's templates have it."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        return Message(RecordDict(), reply_to=message)

    return app


def test_a_stock_client_app_is_named(caplog, tmp_path):
    """Flower prints the traceback of what ends a ServerApp: one line of it is ours."""
    with one_sentence("No query function registered", "silo_app", "docs/app.md") as error:
        start(stock(), output=tmp_path)
    assert [entry.path.name for entry in error.traceback if "spcacw_flwr" in entry.path.parts] == [
        "server_app.py"
    ]
    assert caplog.messages[-1] == str(error.value)
    status = json.loads((tmp_path / "status.json").read_text())
    assert "No query function registered" in status["error"]
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("told", "words"),
    [({"server-round": 1}, "spcacw_flwr.SPCACW"), ({"num-silos": 1 << 50}, "is not allowed: it mu"),
     ({"num-silos": [4, 4]}, "one whole number")],
)  # fmt: skip
def test_another_strategy_is_told_whom_to_use(told, words):
    grid = grid_of(silo_app(load, network))
    content = RecordDict({"arrays": initial(), "config": ConfigRecord(told)})
    (node, *_) = grid.contexts
    message = Message(content, dst_node_id=node, message_type="train")
    (reply,) = grid.send_and_receive([message])
    assert words in reply.content["config"][records.ERROR]


def test_an_initial_model_of_another_shape_is_one_sentence():
    with one_sentence("'0.weight' has shape (8, 30), not (16, 30)", "same function"):
        start(silo_app(load, network), initial(lambda: nn.Sequential(nn.Linear(30, 8))))
    with one_sentence("there is no '1.weight'"):
        start(silo_app(load, network), initial(lambda: nn.Sequential(nn.Linear(30, 16))))


def test_a_silo_with_another_model_is_named():
    grid = grid_of(silo_app(load, network))
    grid.apps[101] = silo_app(load, lambda: nn.Sequential(nn.Linear(30, 4), nn.Linear(4, 2)))
    with one_sentence(
        "Node 101 trains another model than node 104", "'0.weight' has shape (4, 30)"
    ):
        start(grid)


@pytest.mark.parametrize(
    ("change", "words"),
    [(lambda rows: 100 * rows, ["more than 2", "clip it to max-norm"]),
     (lambda rows: rows[:, :5], ["shape (1, 5)", "(1, 562)"])],
    ids=["too long", "of another shape"],
)  # fmt: skip
def test_gradients_that_do_not_fit_are_one_sentence(change, words):
    def spoil(message, content):
        if "arrays" in content and message.metadata.message_type == "train":
            content["arrays"]["gradients"] = Array(change(content["arrays"]["gradients"].numpy()))
        return content

    with one_sentence("Target silo 0", *words):
        start(silo_app(load, network), spoil=spoil)


def other_batches(silos):
    """As a ClientApp of another make that says of how many samples its gradients are."""

    def said(message, content):
        metrics = content.metric_records.get("metrics", {})
        if metrics.get("silos") in [[silo] for silo in silos]:
            metrics["num-examples"] = silos[metrics["silos"][0]]
        return content

    return said


def test_another_batch_size_is_one_sentence_and_costs_no_answer(caplog):
    """Of 36 to 38 samples in batches of 16, the last of a pass is shorter; silo 3 says nothing."""
    start(silo_app(load, network))
    assert "samples" not in caplog.text
    start(silo_app(load, network), spoil=other_batches({0: [64], 1: [16], 2: [0.5], 3: []}))
    assert "goes on without" not in caplog.text
    (line,) = [one.getMessage() for one in caplog.records if "samples" in one.getMessage()]
    assert line == (
        "Round 1: the gradient of silo 0 is of 64 samples, and 16 were asked for: let its "
        "ClientApp take the batch-size that it is told (docs/app.md)."
    )


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ((load, lambda: nn.Linear(3, 2)), ["cannot be applied to the data of silo"]),
        (
            (load, lambda: nn.Linear(30, 1), lambda outputs, y: outputs.square().mean(1)),
            ["labels are from 0 to 1", "the 1 classes"],
        ),
        ((load, lambda n: nn.Linear(30, n)), ["cannot be made", "TypeError"]),
        ((load, lambda: 3), ["returned int"]),
        ((load, network, nn.CrossEntropyLoss()), ["gives ()", "loss of each sample"]),
        ((lambda silo: load(silo)[0], network), ["training data is a Tensor"]),
        ((lambda silo: 1 / 0, network), ["ZeroDivisionError"]),
    ],
)
def test_own_parts_that_do_not_fit_are_one_sentence(parts, words):
    with one_sentence("Node", *words):
        start(silo_app(*parts))


@pytest.mark.parametrize(
    ("keys", "words"),
    [({"output": "here"}, ["output = 'here'", "absolute"]), ({"exchange": "stream"}, ["messages"]),
     ({"target": 9}, ["target = 9"]), ({"betta": 0.1}, ["no key 'betta'"])],
)  # fmt: skip
def test_keys_that_cannot_be_are_one_sentence(keys, words):
    with one_sentence(*words):
        SPCACW(**(KEYS | keys))


def test_the_package_imports_neither_flower_nor_torch():
    program = (
        "import sys, spcacw_flwr\n"
        "assert 'silo_app' in spcacw_flwr.__all__\n"
        "print(sorted({'flwr', 'torch', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


TASKS = {path.stem: path for path in sorted((EXAMPLE.parent / "tasks").glob("*.py"))}
"""Others than the app's own: each may take the place of its task.py."""


@pytest.mark.parametrize("name", TASKS)
def test_another_task_in_its_place(name):
    pytest.importorskip("transformers" if name == "text" else "sklearn")
    task = vars(import_module(f"examples.tasks.{name}"))
    strategy = SPCACW(num_silos=task["HOSPITALS"], eta=0.05)
    app, arrays = silo_app(task["load"], task["network"]), initial(task["network"])
    result = strategy.start(grid_of(app), arrays, num_rounds=21)
    losses = [one["loss"] for one in result.train_metrics_clientapp.values()]
    assert losses[-1] < losses[0]
    assert set(result.arrays) == set(arrays)
    assert strategy.method.alpha[3] < 0.1
    assert lines_of(TASKS[name]) <= 30


def with_task(tmp_path, name: str) -> Path:
    """The example's app, with another task where one is named."""
    app = shutil.copytree(EXAMPLE, tmp_path / "app")
    if name != "tabular":
        shutil.copy(TASKS[name], app / "hospitals" / "task.py")
    return app


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tabular", *TASKS])
def test_the_example_runs_by_flwr_run(link, tmp_path, name):
    """As README says: flwr run, on Ray."""
    pytest.importorskip("transformers" if name == "text" else "sklearn")
    flwr_run(link, tmp_path / "run", {}, SILOS, with_task(tmp_path, name))
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["engine"], summary["rounds"]) == ("ray", 60)
    assert summary["alpha"][3] < 0.1
    # The first weights are drawn anew each time; ten digits take more rounds.
    assert summary["last_accuracy"] > (40 if name == "images" else 85)
    assert (tmp_path / "run" / "report.html").is_file()
