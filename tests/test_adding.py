"""What is added costs a file and a line: all of it from one folder, by import paths.

The folder has a module ``mine``: a method and a setting with keys of their own (plain frozen
dataclasses), a solver, a model and an attack.
"""

import csv
import json
import sys
import tomllib

import numpy as np
import pandas as pd
import pytest
import torch

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.registry import METHODS, SETTINGS, SOLVERS
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.experiments.attacks import ATTACKS
from spcacw_flwr.experiments.attacks.study import run as attacked
from spcacw_flwr.silos.setting import SiloData
from tests.conftest import one_sentence
from tests.test_end_to_end import metrics, succeeded

MINE = '''
from dataclasses import dataclass

import numpy as np
import torch
from spcacw_flwr import Setting, SiloData, WeightedGradients
from spcacw_flwr.alpha import Learner, Solution
from torch import nn


@dataclass(frozen=True)
class TiltedKeys:
    share: float = 0.5
    who: str = "rest"


class Tilted(WeightedGradients):
    """A share of the weight for the target, the rest for its peers alike."""

    name = "tilted"
    Keys = TiltedKeys
    grid = {"eta": [0.05], "tilted.share": [0.9]}

    def initial_weights(self):
        rest = (1 - self.own.share) / (self.federation.num_silos - 1)
        alpha = np.full(self.federation.num_silos, rest)
        alpha[self.target] = self.own.share
        return alpha


@dataclass(frozen=True)
class StripesKeys:
    width: int = 2
    lambda_: bool = False


class Stripes(Setting):
    """Silos hold Gaussian clouds, whose labels say on which side of a stripe a point lies."""

    name = "stripes"
    Keys = StripesKeys
    defaults = {"silos": 4, "samples_per_silo": 64}
    num_classes = 2
    group_kind = "cluster"

    def __init__(self, keys, seed):
        super().__init__(keys, seed)
        self.input_shape = (self.own.width,)

    @property
    def groups(self):
        return [0.0] * self.keys.silos

    def prepare(self):
        pass

    def train(self, silo):
        rng = torch.Generator().manual_seed(silo)
        x = torch.randn(self.keys.samples_per_silo, self.own.width, generator=rng)
        return SiloData(x, ((x[:, 0] > 0) ^ self.own.lambda_).long())

    test = train


class Careful(Learner):
    """Half to the start, half to the silo that cost least."""

    def __init__(self, num_silos, eta=0.0, gradient_bound=None):
        super().__init__(num_silos, eta, gradient_bound)
        self.costs = np.zeros(num_silos)

    def add(self, H_t, alpha_played, *, smoothness, gradient_norm=None):
        self.costs += np.diag(H_t)

    def minimise(self, start, cubic=0.0):
        best = np.eye(len(self.costs))[self.costs.argmin()]
        return Solution((best + np.eye(len(best))[-1]) / 2, 0.0, 0)


def flat(input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(input_shape)), num_classes))


def shy(known):
    return 0 * known.own
'''
METHOD, SETTING = {"method": "mine:Tilted"}, {"setting": "mine:Stripes"}
SHORT = {"epochs": 2, "compare-alone": False}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder, on Python's path in this process, and where commands are given."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("mine", None)


def trained(*tables, **keys):
    flat = SHORT | {name.replace("_", "-"): value for name, value in keys.items()}
    for table in tables:
        flat |= table
    return simulate(Config.from_flat(flat))


def test_a_method_with_its_own_keys(folder):
    assert trained(METHOD).alpha[0] == 0.5
    assert trained(METHOD, {"tilted.share": 0.4}).alpha[0] == 0.4
    with one_sentence("tilted.share = 'x' is not allowed: it must be a num"):
        trained(METHOD, {"tilted.share": "x"})
    with one_sentence("no key 'tilted.shar' (did you mean tilted.share"):
        trained(METHOD, {"tilted.shar": 1})


@pytest.mark.parametrize(
    ("kind", "frozen"), [("int = 0", False), ("tuple = ()", True), ("int", True), ("", None)]
)
def test_keys_that_cannot_be_are_refused(folder, kind, frozen):
    head = "" if frozen is None else f"    @dataclass(frozen={frozen})\n"
    body = f"    class Keys:\n        {'x: ' + kind if kind else 'pass'}\n"
    code = MINE.split("class Careful")[0] + f"class Odd(Tilted):\n{head}{body}"
    (folder / "mine.py").write_text(code)
    with one_sentence("Odd.Keys must be a frozen dataclass, each field"):
        Config.from_flat({"method": "mine:Odd"})


def test_a_setting_with_its_own_keys(folder):
    config = Config.from_flat(SETTING | {"stripes.width": 5})
    assert config.partition.own.width == 5
    assert trained(SETTING, {"stripes.width": 5}).parameters["1.weight"].shape[1] == 5
    accuracy = trained(SETTING, epochs=10).accuracy[-1]
    assert accuracy > 80
    with one_sentence("no key 'stripes.widht' (did you mean stripes.width"):
        trained(SETTING, {"stripes.widht": 5})


@pytest.mark.parametrize("give", [torch.Tensor.numpy, lambda x: pd.DataFrame(x).squeeze()])
def test_a_settings_data_may_be_arrays_and_pandas_tables(folder, give):
    expected = trained(SETTING).accuracy
    setting = sys.modules["mine"].Stripes
    made = setting.train

    def train(self, silo):
        data = made(self, silo)
        return SiloData(give(data.x), give(data.y))

    setting.train = setting.test = train
    assert trained(SETTING).accuracy == expected


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_setting_that_gives_a_pair_is_one_sentence(folder, monkeypatch, part):
    trained(SETTING)
    setting = sys.modules["mine"].Stripes
    monkeypatch.setattr(setting, part, lambda self, silo: (torch.zeros(4, 2), torch.zeros(4)))
    with one_sentence(f"{part}(0) of the setting gives a tuple: it must be a SiloData(x, y)."):
        trained(SETTING)


X, Y = torch.ones(4, 2), torch.tensor([0, 1, 0, 1])


@pytest.mark.parametrize("keys", [{}, {"holdout": 0.5}])
@pytest.mark.parametrize(("part", "words"), [
    ((X, Y[:3]), ": 4 inputs and 3 labels, which must be equally many, and some."),
    ((X[:0], Y[:0]), ": 0 inputs and 0 labels"),
    ((X.where(Y[:, None] < 1, torch.nan), Y), ": input 1 has a value that is infinite or not a n"),
    ((X, Y / Y), ": label 0 is missing or infinite"),
    ((X, Y, torch.zeros(4)), ": weights, of shape (4,), must be 4 finite numbers"),
    ((X, Y, None, float("nan")), ": independent is nan, but there are 4 samples"),
    ((X, Y, None, 0.5), ": independent is 0.5,"),
    ((X, Y[0]), " gives data of which a check raises TypeError: len() of a 0-d tensor"),
])  # fmt: skip
def test_a_settings_samples_are_checked_as_a_functions_are(folder, monkeypatch, part, words, keys):
    trained(SETTING)
    setting = sys.modules["mine"].Stripes
    monkeypatch.setattr(setting, "train", lambda self, silo: SiloData(*part))
    with one_sentence(f"train(0) of the setting{words}"):
        trained(SETTING, **keys)


@pytest.mark.parametrize(("names", "what"), [(["b", "a"], "s 'b', 'a'"), (["a", "c"], " 'c'")])
def test_tables_of_a_setting_have_their_columns_in_one_order(folder, monkeypatch, names, what):
    trained(SETTING)
    tables = {1: pd.DataFrame(X.numpy(), columns=names)}
    first = pd.DataFrame(X.numpy(), columns=["a", "b"])
    given = lambda self, silo: SiloData(tables.get(silo, first), Y)  # noqa: E731
    monkeypatch.setattr(sys.modules["mine"].Stripes, "train", given)
    words = "train(1) of the setting does not have the columns of train(0) of the setting in the "
    with one_sentence(f"{words}same order (column{what}): give all tables the same."):
        trained(SETTING)


@pytest.mark.parametrize(("other", "words"), [
    ((X[:, :1], Y), "inputs of shape (1,) and torch.float32, not (2,) and torch.float32"),
    ((X.long(), Y), "inputs of shape (2,) and torch.int64, not (2,) and torch.float32"),
    ((X, Y.float()), "labels of shape () and torch.float32, not () and torch.int64"),
])  # fmt: skip
def test_silos_of_a_setting_have_samples_of_one_kind(folder, monkeypatch, other, words):
    trained(SETTING)
    given = lambda self, silo: SiloData(*other) if silo == 1 else SiloData(X, Y)  # noqa: E731
    monkeypatch.setattr(sys.modules["mine"].Stripes, "train", given)
    last = "as train(0) of the setting: all silos train one model."
    with one_sentence(f"train(1) of the setting gives {words} {last}"):
        trained(SETTING)


def raises(self, silo=0):
    raise FileNotFoundError("no such table")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("groups", None, "mine:Stripes: groups = None must be a list with one entry for each silo"),
        ("groups", [], "groups = [] must be a list"),
        ("groups", ["a", "b"], "groups has 'a': with group_kind = 'cluster' all are numbers"),
        ("group_kind", "none", "groups has 0.0: with group_kind = 'none' all are None."),
        ("group_kind", "clusters", "group_kind = 'clusters' must be one of cluster, angle, none"),
        ("names", ("A", "B"), "names has 2 entries, and groups 4: give one each."),
        ("num_classes", 2.0, "Setting 'stripes' needs input_shape, whole numbers such as (3,), and "
         "num_classes, one whole number (TypeError: 'float' object"),
        ("num_classes", -1, "Setting 'stripes' has num_classes = -1: it must be the number of"),
        ("groups", property(raises), "mine:Stripes: groups of the setting raises FileNot"),
        ("prepare", raises, "prepare() of the setting raises FileNotFoundError: no such table ("),
        ("__init__", lambda self: None, "setting = 'mine:Stripes' cannot be made of (keys, seed)"),
        ("train", raises, "train(0) of the setting raises FileNotFoundError: no such table (test_"),
        ("test", raises, "test(0) of the setting raises FileNotFoundError: no such table (test_"),
    ],
)  # fmt: skip
def test_a_setting_that_is_not_whole_is_one_sentence(folder, monkeypatch, name, value, words):
    trained(SETTING)
    monkeypatch.setattr(sys.modules["mine"].Stripes, name, value)
    with one_sentence(words):
        trained(SETTING)


def test_own_keys_of_both_travel_in_one_key_that_flower_declares(folder):
    config = Config.from_flat(METHOD | SETTING | {"tilted.share": 0.4, "stripes.lambda": True})
    flat = config.to_flat()
    assert json.loads(flat["own"]) == {
        "tilted": {"share": 0.4, "who": "rest"}, "stripes": {"width": 2, "lambda": True},
    }  # fmt: skip
    assert not [name for name in flat if name.startswith(("tilted.", "stripes."))]
    assert Config.from_flat(flat) == config
    assert Config.from_flat(flat | {"tilted.share": 0.5}).method.share == 0.5
    for text in ("[1]", '{"tilted": 1}', "{"):
        with one_sentence("must hold tables in JSON"):
            Config.from_flat(METHOD | {"own": text})
    with one_sentence("own has a table 'tiltd' (did you mean tilted?)"):
        Config.from_flat(METHOD | {"own": '{"tiltd": {"share": 0.4}}'})
    # Another method, or the same data in files, has no use for the table.
    other = Config.from_flat(flat | {"method": "local", "setting": "files"})
    assert "own" not in other.to_flat() or other.to_flat()["own"] == ""


@pytest.mark.parametrize(("keys", "name"), [(METHOD, "Tilted"), (SETTING, "Stripes")])
def test_a_misspelt_default_is_one_sentence(folder, monkeypatch, keys, name):
    trained(keys)
    monkeypatch.setattr(getattr(sys.modules["mine"], name), "defaults", {"etaa": 0.1})
    with one_sentence("There is no key 'etaa' (did you mean eta?)"):
        trained(keys)


@pytest.mark.parametrize("part", ["__init__", "add", "minimise"])
def test_a_solver_that_breaks_is_one_sentence(folder, monkeypatch, part):
    trained({"method": "spcacw", "solver": "mine:Careful"})
    broken = lambda self, *args, **keys: 1 / 0  # noqa: E731
    monkeypatch.setattr(sys.modules["mine"].Careful, part, broken)
    with one_sentence("solver = 'mine:Careful': ", "raises ZeroDivisionError: division by zero ("):
        trained({"method": "spcacw", "solver": "mine:Careful"})


def test_a_solver(folder, tmp_path):
    keys = {"method": "spcacw", "solver": "mine:Careful", "output": str(tmp_path / "run")}
    alpha = trained(keys).alpha
    assert sorted(alpha)[-2:] == [0.5, 0.5]
    assert alpha[-1] == 0.5
    with one_sentence("spcacw-reg: use ftl or ftal"):
        trained({"solver": "mine:Careful", "method": "spcacw-reg"})
    with one_sentence("solver = 'mine:flat' is no solver"):
        trained({"solver": "mine:flat"})
    # The checkpoint that it left holds the learner of that class.
    again = trained(keys, {"epochs": 3, "resume": str(tmp_path / "run")})
    assert len(again.accuracy) == 3


def test_a_model(folder):
    found = trained({"model": "mine:flat"})
    assert {name: tuple(part.shape) for name, part in found.parameters.items()} == {
        "1.weight": (10, 64), "1.bias": (10,),
    }  # fmt: skip


def test_an_attack(folder, monkeypatch):
    import mine

    monkeypatch.setitem(ATTACKS, "shy", mine.shy)
    config = Config.from_flat(SHORT | {"method": "fedavg"})
    calm, shy = (attacked(config, name, 0.5) for name in ("none", "shy"))
    assert len(shy.attackers) == 3
    assert shy.accuracy != calm.accuracy


@pytest.mark.parametrize(
    ("table", "name", "path", "keys"),
    [
        (METHODS, "tilted", "mine:Tilted", {"method": "tilted", "tilted.share": 0.3}),
        (SETTINGS, "stripes", "mine:Stripes", {"setting": "stripes", "stripes.width": 3}),
        (SOLVERS, "careful", "mine:Careful", {"method": "spcacw", "solver": "mine:Careful"}),
    ],
)
def test_a_line_in_the_registry_gives_a_short_name(folder, monkeypatch, table, name, path, keys):
    monkeypatch.setitem(table, name, path)
    config = Config.from_flat(SHORT | keys)
    assert {n: config.to_flat()[n] for n in keys} == keys
    assert len(simulate(config).accuracy) == 2


BOTH = ("--method", "mine:Tilted", "--setting", "mine:Stripes")
GIVEN = ("--set", "tilted.share=0.7", "--set", "stripes.width=3")


def test_the_command_line_runs_them_and_lists_their_keys(folder):
    more = ("--set", "model=mine:flat", "--engine", "in-process", "--epochs", "1")
    succeeded("run", *BOTH, *GIVEN, *more, "--output", "run", cwd=folder)
    assert (folder / "run" / "alpha.csv").read_text().splitlines()[1].startswith("0,0.7,")
    said = succeeded("keys", *BOTH, cwd=folder)
    for line in ("# method tilted", "tilted.share = 0.5", "# setting stripes", "stripes.width = 2"):
        assert line in said


def test_tuning_tries_a_methods_own_grid(folder):
    what = ("--setting", "mine:Stripes", "--methods", "mine:Tilted", "--epochs", "1")
    succeeded("tune", *what, "--output", "tuned", cwd=folder)
    with (folder / "tuned" / "mine:Stripes.csv").open() as file:
        tried = [json.loads(line["keys"]) for line in csv.DictReader(file)]
    shares = {keys["tilted.share"] for keys in tried}
    assert {0.5, 0.9} <= shares  # its default, too
    assert (min(shares), max(shares)) == (0.5, 0.9)
    assert len(shares) > 2  # more lie between them
    choice = tomllib.loads((folder / "tuned" / "mine:Stripes.toml").read_text())["mine:Tilted"]
    assert choice in tried


def test_a_table_has_a_row_of_ones_own(folder):
    column = 'setting = "mine:Stripes"\nepochs = 1\nstripes.width = 3\n'
    (folder / "stripes.toml").write_text(column)
    what = ("--rows", "mine:Tilted", "--columns", "stripes.toml", "--seeds", "0")
    more = ("--no-validation", "--output", "table", "--set", "tilted.share=0.6")
    succeeded("table1", *what, *more, cwd=folder)
    with (folder / "table" / "table1-cells.csv").open() as file:
        (cell,) = csv.DictReader(file)
    assert (cell["column"], cell["row"]) == ("stripes", "mine:Tilted")


@pytest.mark.slow
def test_method_and_setting_run_on_ray_as_in_process(folder):
    for name in ("experiments", "partitions", "baselines"):  # of the user's own, in the way
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise ImportError('not this one')")
    common = ("--epochs", "2", "--set", "nodes=2", "--set", "compare-alone=false")
    found = []
    for engine in ("ray", "in-process"):
        place = ("--engine", engine, "--output", engine)
        succeeded("run", *BOTH, *GIVEN, *common, *place, cwd=folder)
        alpha = np.loadtxt(folder / engine / "alpha.csv", delimiter=",", skiprows=1, ndmin=2)
        np.testing.assert_allclose(alpha[0], [0, 0.7, 0.1, 0.1, 0.1])
        found.append([line["accuracy"] for line in metrics(folder / engine)])
    assert found[0] == pytest.approx(found[1], abs=2.0)
