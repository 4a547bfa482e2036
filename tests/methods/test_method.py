"""Methods by hand: who is asked, how replies become a step, and what SP-CACW learns from them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from examples.algorithm1 import MOMENTUM, SMOOTHNESS, train
from spcacw_flwr import simulate
from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.registry import METHODS, method_class
from spcacw_flwr.silos.protocol import LOSSES, Fault, Replies, Request
from spcacw_flwr.silos.setup import setting_of
from tests.baselines.by_hand import converse, make
from tests.conftest import make_method, make_pool, one_sentence


def play(method, round_, rows, silos=(0, 1, 2), smoothness=1.0):
    """Run a round of one question, which ``silos`` answer."""
    gradients = torch.as_tensor(rows, dtype=torch.float32)
    replies = Replies(silos, gradients, torch.ones(len(rows)), smoothness)
    assert len(converse(method, round_, lambda _: replies)) == 1


@pytest.mark.parametrize(
    ("method", "alpha", "asked"),
    [
        ("local", [1, 0, 0], (0,)),
        ("fedavg", [0.5, 0.25, 0.25], (0, 1, 2)),
        ("oracle-averaged", [0.5, 0, 0.5], (0, 2)),
        ("spcacw", [1, 0, 0], (0, 1, 2)),
    ],
)
def test_first_weights_and_who_is_asked(method, alpha, asked):
    made = make(method, oracle=(0, 2))
    np.testing.assert_array_equal(made.alpha, alpha)
    assert made.request(1).silos == asked


@pytest.mark.parametrize(("wrong", "words"), [
    ({"want": "loss"}, "want = 'loss'"), ({"silos": (2, 0, 1)}, "silos = (2, 0, 1)"),
    ({"silos": (0, 0)}, "silos = (0, 0)"), ({"silos": (0, 3)}, "silos = (0, 3)"),
    ({"points": torch.zeros(2, 4)}, "points of shape (2, 4) for 3 silos"),
    ({"want": LOSSES}, "points of shape (4,) for 3 silos"),
    ({"samples": (4, 0, 4)}, "samples = (4, 0, 4)"), ({"draw": -1}, "draw = -1"),
])  # fmt: skip
def test_a_question_that_silos_would_refuse_is_its_methods_mistake(wrong, words, monkeypatch):
    """In every engine; behind Flower it would look like a mistake of the node."""
    method = make("fedavg")
    asked = replace(Request(1, (0, 1, 2), torch.zeros(4)), **wrong)
    monkeypatch.setattr(method, "round", lambda _: iter([asked]))
    with one_sentence("Method 'fedavg' asks with", words):
        next(method.play(1))


def test_a_question_may_be_for_nobody():
    """As the Oracle's, if no part of a small mini-batch is of a silo that takes part."""
    assert not Request(1, (), torch.zeros(4), samples=()).fault(3)


@pytest.mark.parametrize("method", ["local", "spcacw"])
def test_at_first_the_target_trusts_itself_whatever_its_number(method):
    assert make(method, target=2).alpha.tolist() == [0, 0, 1]


@pytest.mark.parametrize("method", ["oracle", "oracle-averaged"])
def test_oracle_needs_the_truth(method):
    with pytest.raises(SpcacwError, match="true cluster of target silo 0"):
        make(method)


def test_step_by_hand_with_momentum_and_weight_decay():
    """FedAvg, α = (.5, .25, .25), η = .1, μ = .9, λ = .5; w starts at 0.

    Round 1: g = .5·(1, 0) + .25·(0, 4) + .25·(0, 0) = (.5, 1); buffer = g; w = (−.05, −.1).
    Round 2: g = (.5, 1) + λw = (.475, .95); buffer = .9·(.5, 1) + g = (.925, 1.85);
    w = (−.05, −.1) − .1·(.925, 1.85) = (−.1425, −.285).
    """
    method = make("fedavg", eta=0.1, momentum=0.9, weight_decay=0.5)
    rows = [[1, 0], [0, 4], [0, 0]]
    play(method, 1, rows)
    torch.testing.assert_close(method.parameters, torch.tensor([-0.05, -0.1]))
    play(method, 2, rows)
    torch.testing.assert_close(method.parameters, torch.tensor([-0.1425, -0.285]))


def test_clipping_the_aggregate_by_hand():
    """Σαg = (.5, 1) + … as above has norm √1.25; clipped to 1 it is (.5, 1)/√1.25."""
    method = make("fedavg", eta=1.0, clip="aggregate", max_norm=1.0)
    play(method, 1, [[1, 0], [0, 4], [0, 0]])
    torch.testing.assert_close(method.parameters, -torch.tensor([0.5, 1.0]) / 1.25**0.5)


def test_spcacw_by_hand():
    """M = 3, d = 2, β = .5, η = .1, L = 1 fixed, K = 2; g_0 = (1, 0), g_1 = (1, 0), g_2 = (−1, 0).

    b̂_1 = 0 throughout. b̂_2 after one round: .5·(−2, 0) = (−1, 0), after two: (−1.5, 0).
    B̂B̂ᵀ summed: only entry (2, 2): 1 + 2.25 = 3.25.
    ηL GGᵀ summed: .1·2 = .2 times the signs' outer product (1, 1, −1).
    cost(α) = 3.25 α_2² + .2 (α_0 + α_1 − α_2)²; with α_0 + α_1 = 1 − α_2 its derivative in α_2 is
    6.5 α_2 − .8 (1 − 2 α_2) = 0, so α_2 = .8/8.1. The rest is free between silos 0 and 1.
    Steps 1 and 2 use α_0 = e_0, so w = −.1·(1, 0) twice.
    """
    method = make("spcacw", beta=0.5, eta=0.1, smoothness=1.0)
    rows = [[1, 0], [1, 0], [-1, 0]]
    play(method, 1, rows)
    np.testing.assert_array_equal(method.alpha, [1, 0, 0])
    torch.testing.assert_close(method.bias.estimate[2], torch.tensor([-1.0, 0.0]))
    play(method, 2, rows)
    torch.testing.assert_close(method.parameters, torch.tensor([-0.2, 0.0]))
    assert method.alpha_round == 2
    assert method.alpha[2] == pytest.approx(0.8 / 8.1, abs=1e-6)
    report = method.epoch_report()
    # L̂_t(e_0) = ηL‖g_0‖² = .1 in both rounds.
    assert report["cost"] == pytest.approx(0.1)
    assert report["L"] == 1.0
    assert report["lambda_reg"] == 0.0


def test_t_start_and_update_every():
    """With T_start = 3 and K = 1, rounds 1 and 2 neither count nor update."""
    method = make("spcacw", t_start=3, update_every=1, smoothness=1.0)
    rows = [[1, 0]] * 3
    play(method, 1, rows)
    play(method, 2, rows)
    assert method.alpha_round == 0
    assert not method.learner.total.any()
    play(method, 3, rows)
    assert method.alpha_round == 3


@pytest.mark.parametrize(
    ("before", "silos", "after"),
    [
        ([0.2, 0.2, 0.6], [0, 0, 1], [0.5, 0.5, 0]),
        ([0.2, 0.2, 0.6], [0, 1, 0], [0.25, 0, 0.75]),  # .2 and .6 of the .8 that are left
        ([0, 0.4, 0.6], [0, 1, 1], [1, 0, 0]),
    ],
)
def test_weight_in_quarantine_goes_to_the_others_in_proportion(before, silos, after):
    method = make("spcacw")
    method.set_weights(np.array(before), 1)
    method.quarantine(np.array(silos, dtype=bool), 2)
    np.testing.assert_allclose(method.alpha, after)


GIVEN = [[1, 0], [3, 4], [0, 0], [2, 0]]


@pytest.mark.parametrize(
    ("own", "keys", "expected"),
    [
        (GIVEN, {}, [0, 34, 34, 2]),
        (GIVEN, {"target": 1}, [0, 34, 34, 2]),  # the others' gradients have no variance
        # Updated in each round λ is 0 while one gradient is all there is, and 34 until the second
        # epoch ends.
        (GIVEN, {"update_every": 1}, [0, 34, 34, 2]),
        # Updated once, after (1, 0), (3, 4), (2, 2): variances (1, 4), .5 · 17.
        ([[1, 0], [3, 4], [2, 2], [2, 0]], {"update_every": 3}, [0, 0, 8.5, 8.5]),
        # Four rounds an epoch. Until the first ends λ is of what there is: variances 4/3, 16/3.
        ([[1, 0], [3, 4], [3, 4]], {"batch_size": 16, "update_every": 1}, [0, 34, 136 / 9]),
        (GIVEN, {"batch_size": 64}, [0, 34, 34, 2]),  # an epoch is one round: λ is of two
    ],
)
def test_lambda_reg_by_hand(own, keys, expected):
    """g_0 = (1, 0), (3, 4): sample variances (2, 8), squared norm 68; γ = .5 gives λ = 34.

    The next epoch of K = 2 rounds counts for itself: (0, 0), (2, 0), variances (2, 0), λ = .5 · 4.
    """
    method, found = make("spcacw-reg", smoothness=1.0, **keys, **{"spcacw-reg.gamma": 0.5}), []
    for round_, gradient in enumerate(own, 1):
        rows = [[0, 0]] * 3
        rows[method.target] = gradient
        play(method, round_, rows)
        found.append(method.epoch_report()["lambda_reg"])
    assert found == pytest.approx(expected)


def test_the_cubic_term_by_hand():
    """β = 1: b̂_i is g_i − g_0 = (.75, .75) for both peers, squared norm 9/8; ηL is hardly 0.

    g_0 = (0, 0), (2, 0): variances (2, 0), λ = 4. For α = (1 − 2x, x, x) two rounds cost
    2 (2x)² 9/8 + 4 ((1 − 2x)³ + 2x³), whose derivative 18x − 24 (1 − 2x)² + 24x² is 0 at x = ¼.
    """
    method = make("spcacw-reg", beta=1, eta=1e-9, smoothness=1.0)
    play(method, 1, [[0, 0], [0.75, 0.75], [0.75, 0.75]])
    play(method, 2, [[2, 0], [2.75, 0.75], [2.75, 0.75]])
    np.testing.assert_allclose(method.alpha, [0.5, 0.25, 0.25], atol=1e-5)


def test_what_an_unknown_silo_would_get_the_target_keeps():
    """All send the same, so that the cubic term alone decides: ⅓ each. Silo 2 is never heard."""
    method = make("spcacw-reg", smoothness=1.0)
    play(method, 1, [[1, 0], [1, 0]], silos=(0, 1))
    play(method, 2, [[3, 4], [3, 4]], silos=(0, 1))
    np.testing.assert_allclose(method.alpha, [2 / 3, 1 / 3, 0], atol=1e-5)


def test_a_peer_that_disagrees_gets_exactly_zero_and_a_twin_is_trusted():
    """Silo 2 errs in the direction in which silo 1 errs a little: it cannot cancel anything."""
    rng = np.random.default_rng(0)
    method = make("spcacw", smoothness=10.0, update_every=20)
    for t in range(1, 61):
        noise = rng.normal(size=(3, 2))
        play(method, t, np.array([[0, 0], [0.3, 0.3], [9, 9]]) + noise)
    assert method.alpha[2] == 0.0
    assert method.alpha[1] > 0.2


def test_a_dead_silo_gains_no_weight():
    """A silo that stops answering must not look like a free gradient of norm 0."""
    rng = np.random.default_rng(1)
    method = make("spcacw", smoothness=1.0, update_every=10)
    for t in range(1, 101):
        play(method, t, rng.normal(size=(3, 2)) + 1)
    before = method.alpha[2]
    for t in range(101, 301):
        play(method, t, rng.normal(size=(2, 2)) + 1, silos=(0, 1))
    assert before > 0.1
    assert method.alpha[2] < before


def test_partial_participation_is_unbiased_and_its_estimates_move_only_on_reports():
    """p = .5: the sampled peers' rows count double, the target's once."""
    method = make("fedavg", participation=0.5, eta=1.0)
    play(method, 1, [[1, 0], [0, 4]], silos=(0, 1))
    # .5·(1, 0) + .25·(0, 4)/.5 = (.5, 2), and silo 2, not sampled, adds nothing.
    torch.testing.assert_close(method.parameters, -torch.tensor([0.5, 2.0]))

    learner = make("spcacw", participation=0.5, beta=0.5, smoothness=1.0)
    play(learner, 1, [[0, 0], [2, 0]], silos=(0, 1))
    torch.testing.assert_close(learner.bias.estimate, torch.tensor([[0.0, 0], [1, 0], [0, 0]]))


def test_who_is_sampled_is_a_pure_function_and_the_target_always_is():
    one, other = (make("spcacw", participation=0.3) for _ in range(2))
    asked = [one.request(t).silos for t in range(1, 2001)]
    assert all(0 in silos for silos in asked)
    assert np.mean([1 in silos for silos in asked]) == pytest.approx(0.3, abs=0.03)
    assert asked[::-1] == [other.request(t).silos for t in range(2000, 0, -1)]


def test_without_the_target_a_round_is_an_error():
    for smoothness in (1.0, None):
        with pytest.raises(SpcacwError, match="Target silo 0 did not answer round 1"):
            play(make("spcacw"), 1, [[1, 0]] * 2, (1, 2), smoothness)


@pytest.mark.parametrize(
    ("reason", "how"),
    [("not-finite", "has probably diverged: choose a smaller eta"), ("shape", "check the node")],
)
def test_a_target_whose_answer_is_of_no_use_is_told_what_to_do(reason, how):
    replies = Replies((1, 2), torch.ones(2, 2), torch.ones(2), 1.0)
    replies.faults[0] = Fault(reason, "its loss is not finite")
    with pytest.raises(SpcacwError, match=how):
        converse(make("fedavg"), 1, lambda _: replies)


def test_smoothness_is_asked_at_its_interval_and_its_absence_is_an_error():
    method = make("spcacw", smoothness_interval=3)
    assert method.request(1).smoothness
    with pytest.raises(SpcacwError, match="smoothness L"):
        play(method, 1, [[1, 0]] * 3, smoothness=None)
    play(method, 1, [[1, 0]] * 3)
    assert [method.request(t).smoothness for t in range(2, 8)] == [False, False, True] * 2
    assert not make("spcacw", smoothness=2.0).request(1).smoothness


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"method": "spcacw-reg", "solver": "ons"}, "cubic term"),
        ({"method": "spcacw-plus", "beta": 1}, "beta below 1"),
        ({"method": "spcacw-closed-form", "beta": 1}, "beta below 1"),
        ({"method": "spcacw-plus", "solver": "ftal"}, "solver does not go with spcacw-plus"),
        ({"method": "spcacw-plus", "g_max": 1.0}, "g-max does not go with spcacw-plus"),
        ({"sketch": 5000}, "sketch = 5000 is more than the model's 4810 parameters"),
        ({"guard": 1}, "guard = 1 is not allowed: of the 200 training samples"),
        ({"guard": 201}, "one in 2 to 200 can be kept apart"),
        ({"guard": 5, "epochs": 1}, "at least 2 epochs"),
    ],
)
def test_keys_that_do_not_go_together_are_one_sentence(keys, message):
    config = Config.from_keys(**keys)
    with pytest.raises(SpcacwError, match=message):
        make_method(config, make_pool(config))


def test_a_method_of_ones_own_by_import_path():
    assert method_class("spcacw_flwr.baselines.fedavg:FedAvg") is method_class("fedavg")
    for name, message in (
        ("fedavgg", "did you mean fedavg"),
        ("baselines.nothing:Nothing", "cannot be imported"),
        ("pathlib:Path", "is no method"),
    ):
        with pytest.raises(SpcacwError, match=message):
            method_class(name)


@pytest.mark.parametrize("alpha", [[1.0, 0.0], [[1.0], [0.0], [0.0]], [np.nan, 1.0, 0.0]])
def test_weights_that_are_not_a_finite_number_for_each_silo_are_one_sentence(alpha, monkeypatch):
    method = make("fedavg")
    with pytest.raises(SpcacwError, match=r"fedavg gives weights .* must be 3 finite numbers"):
        method.set_weights(np.array(alpha), 1)
    monkeypatch.setattr(type(method), "initial_weights", lambda _: alpha)
    with pytest.raises(SpcacwError, match="must be 3 finite numbers, one for each silo"):
        make("fedavg")
    monkeypatch.setattr(type(method), "initial_weights", lambda _: [0.5, 0.25, 0.25])
    assert make("fedavg").alpha.tolist() == [0.5, 0.25, 0.25]


def test_every_name_is_a_method_that_knows_its_name():
    for name in METHODS:
        assert method_class(name).name == name


@pytest.mark.slow
def test_the_reading_twin_and_the_package_agree():
    keys = {"method": "spcacw", "epochs": 6, "compare_alone": False}
    config = Config.from_keys(smoothness=SMOOTHNESS, **keys)
    assert config.training.momentum == MOMENTUM
    found = simulate(config)
    model, alpha = train(setting_of(config), epochs=6)
    np.testing.assert_allclose(alpha, found.alpha, atol=2e-5)
    assert 0.01 < alpha[1] < alpha[0]
    ours = [part.numpy().ravel() for part in found.parameters.values()]
    twins = [part.detach().numpy().ravel() for part in model.parameters()]
    np.testing.assert_allclose(np.concatenate(twins), np.concatenate(ours), atol=1e-5)


@pytest.mark.parametrize(("smoothness", "warned"), [(19.0, 0), (21.0, 1)])
def test_a_step_far_beyond_the_theorems_is_said_once(smoothness, warned, caplog):
    """η = .05: ηL is .95 or 1.05."""
    for method in ("spcacw", "spcacw-plus"):
        caplog.clear()
        keys = {"method": method, "epochs": 1, "compare_alone": False, "eta": 0.05}
        simulate(Config.from_keys(smoothness=smoothness, **keys))
        assert caplog.text.count("where the theorems want at most 1/8") == warned
        assert ("or method = 'spcacw-plus'" in caplog.text) is (warned > 0 and method == "spcacw")


@pytest.mark.parametrize(("beta", "said"), [(0.4, False), (0.1, True)])
def test_a_run_too_short_for_its_bias_estimates_is_said(beta, said, caplog):
    """One epoch of digits is 7 rounds; 2/β is 5 or 20."""
    simulate(Config.from_keys(epochs=1, compare_alone=False, beta=beta))
    assert ("A run of 7 rounds is shorter than the 20" in caplog.text) is said
