"""Trajectories as they were before the house was rebuilt: nothing learned may change.

``pins.json`` holds their numbers. Their last bits depend on the processor, so whoever moves code
records them before, and has every bit compared afterwards, on one machine::

    python -m tests.test_pins /tmp/before.json
    SPCACW_PINS=/tmp/before.json pytest tests/test_pins.py

What moves a last bit wants a commit of its own, which says what moved, and by how much.
"""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before PyTorch, as in all tests

import numpy as np
import pytest
import torch

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.registry import METHODS
from spcacw_flwr.engine.simulate import simulate

EXACT = "SPCACW_PINS" in os.environ
PINS = Path(os.environ.get("SPCACW_PINS", Path(__file__).with_name("pins.json")))
DATA = Path(os.environ.get("SPCACW_DATA_DIR", Path(__file__).parents[2] / "shared" / "data"))
SMALL_CIFAR = "spcacw_flwr.experiments.own:network"
EPOCHS = {"method": "spcacw", "epochs": 3, "compare_alone": False}
SAMPLED = EPOCHS | {"participation": 0.6, "samples_per_silo": 100}
WHOLE = EPOCHS | {"samples_per_silo": 100}
NARROW = {"method": "spcacw", "epochs": 2, "compare_alone": False, "test_samples": 500}

CASES: dict[str, dict[str, Any]] = {name: SAMPLED | {"method": name} for name in METHODS}
CASES |= {
    name: WHOLE | keys
    for name, keys in {
        "plain": {},
        "as-shipped": {"samples_per_silo": 200},
        "reg": {"method": "spcacw-reg", "spcacw-reg.gamma": 50.0},
        "closed-form": {"method": "spcacw-closed-form"},
        "sketch": {"sketch": 1000},
        "sketch-sampled": {"sketch": 1000, "participation": 0.6},
        "ftal": {"solver": "ftal"},
        "ons": {"solver": "ons"},
        "eg": {"solver": "eg"},
        "probe": {"probe": 0.3, "update_every": 2},
        "guard": {"guard": 5},
        "guard-refuses": {"guard": 2, "method": "fedavg"},
        "privacy": {"privacy_noise": 0.5},
        "privacy-some": {
            "privacy_noise": 1.0,
            "privacy_silos": "1,4",
            "privacy_batches": "sampled",
        },
        "every-round": {"update_every": 1},
        "noise-curvature": {"curvature": "noise"},
        "harmonic": {"beta_schedule": "harmonic", "t_start": 3},
        "int8": {"wire": "int8"},
        "float16": {"wire": "float16"},
        "two-batches": {"local_batches": 2},
        "aggregate-clip": {"clip": "aggregate"},
        "holdout": {"holdout": 0.2},
    }.items()
}
ON_DATA: dict[str, dict[str, Any]] = {
    "mnist-relabel": {"setting": "mnist-relabel", **NARROW},
    "mnist-rotate": {"setting": "mnist-rotate", **NARROW, "epochs": 1},
    "cifar-narrow": {"setting": "cifar100-clusters", "cifar100-clusters": {"epsilon": 0.01},
                     "model": SMALL_CIFAR, "eta": 0.02, "samples_per_silo": 96, **NARROW},
    "cifar-vgg": {"setting": "cifar100-clusters", "width": 1 / 32, "samples_per_silo": 64,
                  **NARROW, "epochs": 1},
    "shakespeare-narrow": {"setting": "shakespeare", "silos": 15,
                           "shakespeare": {"roles-per-silo": 7, "window-stride": 50},
                           "width": 0.125, "eta": 1.0, "samples_per_silo": 96, **NARROW},
    "shakespeare-lstm-ditto": {"setting": "shakespeare", "silos": 30,
                               "shakespeare": {"roles-per-silo": 3, "window-stride": 50},
                               "width": 0.125, "eta": 0.5, "samples_per_silo": 64,
                               **NARROW, "method": "ditto"},
}  # fmt: skip


def config_of(name: str) -> Config:
    keys = CASES.get(name) or ON_DATA[name] | {"data_dir": str(DATA)}
    return Config.from_keys(**keys)


def pin(accuracy: list[float], alphas: list, model: dict[str, torch.Tensor]) -> dict[str, Any]:
    """What is kept of a run: rounded figures, and a digest of every bit."""
    vector = torch.cat([model[name].double().flatten() for name in sorted(model)]).numpy()
    rounds = [[float(t), *a.tolist()] for t, a in alphas]
    rng = np.random.default_rng(0)
    views = [float(vector @ rng.standard_normal(vector.size)) for _ in range(4)]
    exact = json.dumps([accuracy, rounds]).encode() + vector.tobytes()
    return {
        "accuracy": accuracy,
        "alpha": rounds[-1][1:] if rounds else None,
        "model": [float(np.linalg.norm(vector)), *views],
        "digest": hashlib.sha256(exact).hexdigest(),
    }


def in_process(name: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    result = simulate(config_of(name))
    return pin(result.accuracy, result.alphas, result.parameters)


@pytest.fixture(scope="module")
def pins() -> dict[str, Any]:
    return json.loads(PINS.read_text())


def compare(found: dict[str, Any], pins: dict[str, Any], name: str) -> None:
    wanted = pins[name]
    if EXACT:
        assert found["digest"] == wanted["digest"]
    assert found["accuracy"] == pytest.approx(wanted["accuracy"], abs=0.6)
    assert found["model"] == pytest.approx(wanted["model"], rel=0, abs=1e-3 * wanted["model"][0])
    if wanted["alpha"] is None:
        assert found["alpha"] is None
    else:
        assert found["alpha"] == pytest.approx(wanted["alpha"], abs=1e-3)


@pytest.mark.parametrize("name", CASES)
def test_a_run_on_digits_is_what_it_was(name, pins):
    compare(in_process(name), pins, name)


@pytest.mark.parametrize("name", ON_DATA)
def test_a_run_on_the_papers_data_is_what_it_was(name, pins):
    if not (DATA / ON_DATA[name]["setting"].split("-")[0]).is_dir():
        pytest.skip(f"no data in {DATA}; name their directory in SPCACW_DATA_DIR")
    compare(in_process(name), pins, name)


if __name__ == "__main__":
    runs = {name: in_process(name) for name in (*CASES, *ON_DATA)}
    Path(sys.argv[1]).write_text(json.dumps(runs))
