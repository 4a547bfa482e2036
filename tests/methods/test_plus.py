"""SP-CACW plus on the digits: few data, silence, sampling, keys that are not its own."""

import numpy as np
import pytest

from spcacw_flwr import simulate
from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.silos.setup import setting_of

from .test_method import make, play


def run(method="spcacw-plus", **keys):
    return simulate(
        Config.from_keys(method=method, engine="in-process", compare_alone=False, **keys)
    )


@pytest.mark.slow
def test_helps_where_the_target_has_few_data():
    """Fifty digits a silo: the paper's form ends near training alone, this one far above it."""
    keys = {"samples_per_silo": 50, "epochs": 40, "eta": 0.05, "seed": 1}
    ours, paper, alone = (run(m, **keys) for m in ("spcacw-plus", "spcacw", "local"))
    assert ours.accuracy[-1] > max(paper.accuracy[-1], alone.accuracy[-1]) + 3
    cluster = setting_of(ours.config).oracle(0)
    assert ours.alpha[cluster].sum() > 0.7
    assert ours.epochs[-1]["floats"] == paper.epochs[-1]["floats"]
    assert ours.epochs[-1]["target_gradients"] == paper.epochs[-1]["target_gradients"]


def test_curvature_is_that_of_noise_by_default_and_a_key_still_wins():
    assert Config.from_keys(method="spcacw-plus").spcacw.curvature == "noise"
    assert Config.from_keys(method="spcacw").spcacw.curvature == "largest"
    assert Config.from_keys(method="spcacw-plus", curvature="largest").spcacw.curvature == "largest"


@pytest.mark.parametrize(("key", "value"), [("solver", "ftal"), ("g_max", 1.0), ("beta", 1.0)])
def test_keys_that_are_not_its_own_are_refused(key, value):
    with pytest.raises(SpcacwError, match=key.replace("_", "-").split("-")[0]):
        make("spcacw-plus", **{key: value})


def test_a_silo_that_is_silent_from_the_first_round_gets_nothing():
    method = make("spcacw-plus")
    rng = np.random.default_rng(0)
    for round_ in range(1, 9):
        rows = 1.0 + rng.standard_normal((2, 2))
        play(method, round_, rows.tolist(), silos=(0, 2))
    assert method.alpha[1] == 0.0
    assert method.alpha.sum() == pytest.approx(1.0)


def test_rounds_before_t_start_teach_the_noise_and_no_weights():
    method = make("spcacw-plus", t_start=5)
    rng = np.random.default_rng(0)
    for round_ in range(1, 5):
        play(method, round_, (1.0 + rng.standard_normal((3, 2))).tolist())
    assert method.alpha.tolist() == [1.0, 0.0, 0.0]
    assert method.population.noise.known.all()


def test_momentum_makes_steps_longer():
    """ηκ/(1 − μ) = .01 · 1/(1 − .9)."""
    method, steps = make("spcacw-plus", eta=0.01, smoothness=1.0, momentum=0.9), []
    method.population.add = lambda step, sampling: steps.append(step)
    play(method, 1, [[1, 0], [0, 0], [0, 0]])
    assert steps == pytest.approx([0.1])


def test_large_steps_count_noise_as_the_largest_step_of_the_theorems():
    """ηκ = .05 · 1e6 is beyond 1/8: α is that of any other such κ."""
    alphas = []
    for smoothness in (1e6, 1e9):
        method = make("spcacw-plus", smoothness=smoothness)
        rng = np.random.default_rng(0)
        for round_ in range(1, 9):
            play(method, round_, (1.0 + rng.standard_normal((3, 2))).tolist())
        alphas.append(method.alpha)
    np.testing.assert_allclose(*alphas)


def test_sampling_leaves_weights_at_the_cluster():
    """p = .3: seldom asked is not useless, and not free."""
    found = run(participation=0.3, epochs=20, eta=0.05)
    cluster = setting_of(found.config).oracle(0)
    assert found.alpha[cluster].sum() > 0.8
    assert found.accuracy[-1] > 85
