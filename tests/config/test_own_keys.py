"""The keys of a method of one's own: a plain dataclass, under every engine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.methods.base import WeightedGradients

HERE = "tests.config.test_own_keys"
CODE = """
from dataclasses import dataclass
import numpy as np
from spcacw_flwr import WeightedGradients

@dataclass(frozen=True)
class Keys:
    share: float = 0.5
    who: str = "rest"

class Tilted(WeightedGradients):
    name = "tilted"
    Keys = Keys

    def initial_weights(self):
        rest = (1 - self.own.share) / (self.federation.num_silos - 1)
        alpha = np.full(self.federation.num_silos, rest)
        alpha[self.target] = self.own.share
        return alpha
"""


@dataclass(frozen=True)
class Keys:
    share: float = 0.5
    lambda_: int = 3


class Tilted(WeightedGradients):
    """Half of the weight to the target."""

    name, Keys = "tilted", Keys

    def initial_weights(self):
        rest = (1 - self.own.share) / (self.federation.num_silos - 1)
        alpha = np.full(self.federation.num_silos, rest)
        alpha[self.target] = self.own.share
        return alpha


METHOD = {"method": f"{HERE}:Tilted"}


def test_they_are_checked_by_the_types_of_their_defaults():
    config = Config.from_flat(METHOD | {"tilted.share": 0.25})
    assert (config.method.share, config.method.lambda_) == (0.25, 3)
    with pytest.raises(SpcacwError, match=r"tilted.share = 'x' is not allowed: it must be a numb"):
        Config.from_flat(METHOD | {"tilted.share": "x"})
    with pytest.raises(SpcacwError, match=r"no key 'tilted.shar' \(did you mean tilted.share"):
        Config.from_flat(METHOD | {"tilted.shar": 1})
    for text in ("[1]", '{"tilted": 1}', "{"):
        with pytest.raises(SpcacwError, match=r"does not hold tables in JSON"):
            Config.from_flat(METHOD | {"own": text})


def test_they_travel_in_one_key_that_flower_knows():
    config = Config.from_flat(METHOD | {"tilted.share": 0.25})
    flat = config.to_flat()
    assert flat["own"] == '{"tilted": {"share": 0.25, "lambda": 3}}'
    assert not any(name.startswith("tilted.") for name in flat)
    assert Config.from_flat(flat) == config
    assert Config.from_flat(flat | {"tilted.share": 0.5}).method.share == 0.5


def test_they_reach_the_method():
    keys = METHOD | {"tilted.share": 0.4, "epochs": 1, "compare-alone": False}
    assert simulate(Config.from_flat(keys)).alpha[0] == 0.4


@pytest.mark.slow
def test_they_reach_it_on_ray_from_a_file_in_the_working_directory(tmp_path):
    from tests.test_end_to_end import metrics, spcacw

    (tmp_path / "mine.py").write_text(CODE)
    for folder in ("experiments", "partitions", "baselines"):  # of the user's own, in the way
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text("raise ImportError('not this one')")
    common = ("run", "--method", "mine:Tilted", "--epochs", "1", "--set", "tilted.share=0.7",
              "--set", "compare-alone=false", "--set", "nodes=2")  # fmt: skip
    found = []
    for engine in ("ray", "in-process"):
        output = tmp_path / engine
        done = spcacw(*common, "--engine", engine, "--output", str(output), cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert (output / "alpha.csv").read_text().splitlines()[1].startswith("0,0.7,")
        found.append(metrics(output)[0]["accuracy"])
    assert found[0] == pytest.approx(found[1], abs=0.3)
