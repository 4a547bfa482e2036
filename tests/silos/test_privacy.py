"""Private silos: clipping, noise, whose chance it is, and what is refused."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.gate import Gate, judge
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.silos import privacy
from spcacw_flwr.silos.batches import batch_indices
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.privacy import PASS, Mechanism, clipped_mean, privatise
from spcacw_flwr.silos.protocol import LOSSES, Answers, Request
from spcacw_flwr.silos.setup import checked_setting
from spcacw_flwr.silos.streams import Secret, seeded
from tests.conftest import answer, make_method, make_pool, one_sentence
from tests.silos.test_gradients import plain


def private(**keys) -> Config:
    return Config.from_keys(**({"epochs": 2, "compare_alone": False, "privacy_noise": 0.5} | keys))


def rows(pool: SiloPool, round_=1, silos=tuple(range(7)), **more) -> torch.Tensor:
    """The gradients that silos send at the first model."""
    asked = Request(round_, silos, pool.initial_parameters(), **more)
    return pool.gradients(asked).rows.clone()


def mechanism(noise=0.5, max_norm=2.0, per_sample=True) -> Mechanism:
    return Mechanism(noise, max_norm, 1e-5, per_sample, PASS)


@pytest.mark.parametrize(("per_sample", "deviation"), [(True, 0.0625), (False, 2.0)])
@pytest.mark.parametrize("chances", [seeded(0), Secret])
def test_the_noise_has_mean_0_and_the_promised_deviation(per_sample, deviation, chances):
    """z = .5, C = 2, b = 32: .5 · 2·2/32 = 1/16, or .5 · 2·2 = 2; tests fail one time in 10⁶."""
    gradient = torch.zeros(200_000)
    chance = chances(privacy.OWN_NOISE, 1, 1, 0, 0)
    privatise(gradient, 32, mechanism(per_sample=per_sample), chance)
    drawn = gradient.double().numpy() / deviation
    assert stats.kstest(drawn, "norm").pvalue > 1e-6
    assert abs(drawn.mean()) < 5 / math.sqrt(len(drawn))
    assert abs(drawn.var() - 1) < 5 * math.sqrt(2 / len(drawn))


def test_a_gradient_is_clipped_before_it_is_noised():
    """Length 5 to length 2; a short one stays; one that is not finite becomes 0."""
    rows = [torch.tensor([3.0, 4.0]), torch.tensor([0.6, 0.8]), torch.tensor([torch.nan, 1.0])]
    for row, expected in zip(rows, ([1.2, 1.6], [0.6, 0.8], [0.0, 0.0]), strict=True):
        privatise(row, 1, mechanism(noise=1e-12), seeded(0)(privacy.OWN_NOISE, 0, 1, 0, 0))
        torch.testing.assert_close(row, torch.tensor(expected))


@pytest.mark.parametrize("room", [privacy.ROOM, 4810 * 5])
def test_each_sample_is_clipped_as_in_a_loop_by_hand(room, monkeypatch):
    """Half of them are; also where only five samples' gradients have room at once."""
    monkeypatch.setattr(privacy, "ROOM", room)
    pool = make_pool(private())
    point = torch.randn(pool.layout.size, generator=torch.Generator().manual_seed(0)) / 4
    data = pool.setting.train(3)
    x, y = data.x[:32], data.y[:32]
    own, _ = plain(pool.model, point, x[:, None], y[:, None])
    norms = [float(one.norm()) for one in own]
    middle = float(np.median(norms))
    found = clipped_mean(pool.compute, point, x, y, middle, seed=0)
    expected = sum(one * min(1.0, middle / n) for one, n in zip(own, norms, strict=True)) / 32
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_replacing_a_sample_moves_the_answer_by_at_most_the_sensitivity():
    """Any two clipped gradients are at most 2C apart, and 1/b of that stays."""
    pool = make_pool(private())
    point = torch.randn(pool.layout.size, generator=torch.Generator().manual_seed(1))
    data = pool.setting.train(2)
    x, y = data.x[:8].clone(), data.y[:8].clone()
    before = clipped_mean(pool.compute, point, x, y, 1.0, seed=0)
    x[3], y[3] = 1e4, (y[3] + 5) % 10
    after = clipped_mean(pool.compute, point, x, y, 1.0, seed=0)
    bound = mechanism(noise=1.0, max_norm=1.0).deviation(8)
    assert 0.1 * bound < float((after - before).norm()) <= bound * (1 + 1e-5)
    x[3] = torch.inf
    poisoned = clipped_mean(pool.compute, point, x, y, 1.0, seed=0)
    assert float((poisoned - before).norm()) <= bound * (1 + 1e-5)


def noiseless(pool: SiloPool, **keys) -> SiloPool:
    """The same silos with noise too small to see."""
    return make_pool(Config.from_flat(pool.config.to_flat() | {"privacy-noise": 1e-9, **keys}))


@pytest.mark.parametrize("clip", ["sample", "batch"])
def test_the_noise_of_a_short_batch_is_that_of_its_sensitivity(clip):
    """Round 7 of 200 samples has a batch of 8: per-sample noise is four times that of round 6."""
    pool, spread = make_pool(private(privacy_clip=clip)), []
    for round_ in (6, 7):
        noisy, plain = rows(pool, round_), rows(noiseless(pool), round_)
        assert torch.equal(noisy[0], plain[0])  # the target's stays at home
        spread.append((noisy - plain)[1:].std().item())
    expected = [2 * 0.5 / b for b in (32, 8)] if clip == "sample" else [1.0, 1.0]
    np.testing.assert_allclose(spread, expected, rtol=0.02)


def test_only_the_named_silos_are_private_and_tell_neither_loss_nor_labels():
    pool, plain = make_pool(private(privacy_silos="2,5")), make_pool(private(privacy_noise=0))
    request = Request(1, tuple(range(7)), pool.initial_parameters())
    found, bare = pool.gradients(request), plain.gradients(request)
    for silo, info in enumerate(pool.describe()):
        hidden = silo in (2, 5)
        assert torch.equal(found.rows[silo], bare.rows[silo]) != hidden
        assert math.isnan(found.losses[silo]) == hidden
        assert (info.label_counts == ()) == hidden
        assert (info.privacy is not None) == hidden


def test_each_question_has_noise_of_its_own_and_a_run_repeats_it():
    pool = make_pool(private())
    first = rows(pool, 1, (1,))
    assert torch.equal(first, rows(pool, 1, (1,)))
    same_silo = [rows(pool, 1, (1,), number=1), rows(pool, 2, (1,)), rows(pool, 1, (1,), draw=1)]
    for other in (*same_silo, rows(pool, 1, (2,))):
        assert abs(np.corrcoef(first[0], other[0])[0, 1]) < 0.1


def test_a_methods_questions_are_numbered_within_a_round(monkeypatch):
    """A silo may be asked for one batch at several models: equal noise would cancel."""
    seen, original = [], SiloPool.gradients

    def spy(self, request):
        seen.append((request.round, request.number))
        return original(self, request)

    monkeypatch.setattr(SiloPool, "gradients", spy)
    simulate(private(epochs=2, guard=5, samples_per_silo=64))
    assert seen[:4] == [(1, 0), (1, 1), (1, 2), (2, 0)]


def test_a_secret_is_no_function_of_what_the_target_knows():
    """Silos that are told the same draw other noise, and other batches, than each other."""
    config = private()

    def told(chances):
        return rows(SiloPool(config, checked_setting(config), range(7), chances), 1, (1,))

    known, hidden = ([told(chances) for _ in range(2)] for chances in (None, Secret))
    assert torch.equal(*known)
    for one, other in ((hidden[0], hidden[1]), (hidden[0], known[0])):
        assert abs(np.corrcoef(one[0], other[0])[0, 1]) < 0.1
    batches = [tuple(Secret().choice(200, 32, replace=False)) for _ in range(2)]
    assert batches[0] != batches[1]


@pytest.mark.parametrize("chances", [seeded(3), Secret])
def test_a_sampled_batch_is_a_uniform_subset(chances):
    """Each of 10 samples is in 3 of 10 such batches; χ² fails one time in 10⁶."""
    drawn = [
        chances(privacy.OWN_BATCH, 1, t, 0, 0).choice(10, 3, replace=False) for t in range(3000)
    ]
    assert all(len(set(one.tolist())) == 3 for one in drawn)
    counts = np.bincount(np.concatenate(drawn), minlength=10)
    assert stats.chisquare(counts).pvalue > 1e-6


def test_sampled_batches_are_those_that_the_silo_uses():
    pool = noiseless(make_pool(private(privacy_batches="sampled", privacy_clip="batch")))
    point = pool.initial_parameters()
    found = rows(pool, 1, (0, 4))
    drawn = seeded(0)(privacy.OWN_BATCH, 4, 1, 0, 0).choice(200, 32, replace=False)
    for row, silo, at in ((found[0], 0, batch_indices(0, 0, 1, 200, 32)), (found[1], 4, drawn)):
        data, at = pool.setting.train(silo), torch.from_numpy(at)
        (expected,), _ = plain(pool.model, point, data.x[at][None], data.y[at][None])
        expected *= min(1.0, 1.0 / float(expected.norm()))
        torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-6)


def test_an_honest_answer_is_hardly_ever_longer_than_its_bound():
    """The bound is not far above what is seen: by (√d + 6.4)/√d of the noise, and C."""
    pool = make_pool(private())
    for round_, samples in ((1, 32), (7, 8)):
        norms = rows(pool, round_)[1:].norm(dim=1)
        bound = pool.private.mechanisms[1].norm_bound(pool.layout.size, samples)
        assert float(norms.max()) < bound < 1.2 * float(norms.min()) + 1


def test_the_gate_knows_how_long_noise_may_be(tmp_path):
    """Nothing honest is dropped; with a norm-bound of one's own, what is longer is."""
    for name, keys, dropped in (("free", {}, []), ("bound", {"norm_bound": 1.5}, [*"123456"])):
        output = str(tmp_path / name)
        simulate(private(output=output, participation=0.7, method="fedavg", **keys))
        summary = json.loads((tmp_path / name / "summary.json").read_text())
        assert sorted(summary["rejections"]) == dropped


def test_a_private_silo_cannot_send_what_no_noise_could_be():
    pool = make_pool(private())
    method, gate = make_method(pool.config, pool), Gate(pool.config, 7)
    request = Request(1, tuple(range(7)), method.parameters)
    bounds = gate._bounds_of_noise(method, request)
    replies = answer(pool, request)
    replies.gradients[3] *= 1.3 * bounds[3] / replies.gradients[3].norm()
    good, faults = judge(request, Answers(replies), gate.bound, bounds)
    assert good.silos == (0, 1, 2, 4, 5, 6)
    assert faults[3].reason == "too-long"
    assert 0 not in bounds  # the target's is the clipping norm


def test_a_sample_is_read_off_a_gradient_and_not_off_a_noisy_one():
    """The gradient of the first layer for one sample x is δ xᵀ, that of its offset δ."""
    setting = {"batch_size": 1, "max_norm": 1.0}

    def recovered(pool):
        parts = list(pool.layout.unflatten(rows(pool, 5, (0, 1))).values())
        delta = parts[1][1]
        unit = int(delta.abs().argmax())
        return parts[0][1][unit] / delta[unit]

    pool = make_pool(private(privacy_noise=0, **setting))
    data = pool.setting.train(1)
    x = data.x[batch_indices(0, 1, 5, len(data.y), 1)].flatten()
    torch.testing.assert_close(recovered(pool), x, rtol=1e-3, atol=1e-4)
    noisy = recovered(make_pool(private(privacy_noise=1.0, **setting)))
    assert abs(np.corrcoef(noisy, x)[0, 1]) < 0.5


def test_a_private_run_says_what_was_spent(tmp_path):
    result = simulate(private(privacy_silos="2,5", output=str(tmp_path / "run"), method="fedavg"))
    summary = json.loads((result.directory / "summary.json").read_text())
    assert set(summary["privacy"]) == {"2", "5"}
    told = summary["privacy"]["2"]
    assert (told["answers"], told["noise"], told["clip"], told["batches"]) == (
        14, 0.5, "sample", "pass",
    )  # fmt: skip
    table = pd.read_csv(result.directory / "silos.csv")
    spent = table[table.silo == 2].epsilon.to_list()
    assert spent[1] == pytest.approx(told["epsilon"])
    assert 0 < spent[0] < spent[1]
    assert table[table.silo == 1].epsilon.isna().all()


@pytest.mark.parametrize(("method", "epochs"), [("spcacw", 10), ("spcacw-plus", 30)])
def test_noise_takes_weight_from_a_silo_and_from_no_other(method, epochs):
    """Of two peers of the target's cluster, the noisy one keeps less than a tenth of the other."""
    keys = {"method": method, "epochs": epochs}
    alpha = simulate(private(privacy_silos="2", privacy_noise=1.0, **keys)).alpha
    assert alpha[2] < 0.1 * alpha[1]
    assert alpha[0] < 0.9


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"clip": "aggregate"}, ["privacy-noise", "clip = 'silo'"]),
        ({"max_norm": 0.0}, ["privacy-noise", "max-norm above 0"]),
        ({"privacy_silos": "7"}, ["privacy-silos = '7'", "0…6"]),
        ({"privacy_silos": "two"}, ["privacy-silos = 'two'", "0…6"]),
        ({"privacy_silos": "0,2"}, ["Silo 0 is private and cannot be the target"]),
        ({"method": "ifca"}, ["ifca", "losses", "silo 1", "spcacw"]),
        ({"method": "fedfomo"}, ["fedfomo", "losses"]),
        ({"method": "fedala"}, ["fedala", "losses"]),
        ({"method": "feddisco"}, ["feddisco", "label counts"]),
        ({"privacy_clip": "patch"}, ["privacy-clip = 'patch'", "one of sample, batch"]),
    ],
)
def test_what_cannot_be_private_is_refused_in_one_sentence(keys, words):
    with one_sentence(*words):
        simulate(private(**keys))


def test_a_silo_refuses_what_would_not_be_noised_whoever_asks():
    pool = make_pool(private(privacy_silos="3"))
    point = pool.initial_parameters()
    with one_sentence("Silo 3 keeps its data private", "its losses"):
        answer(pool, Request(1, (1, 3), point[None], want=LOSSES))
    with one_sentence("Silo 3 keeps its data private", "its accuracy"):
        pool.evaluate(point, 3)
    with one_sentence("Silo 3 keeps its data private", "its smoothness"):
        pool.smoothness(point, 1, 3)


def test_batchnorm_leaves_no_sample_a_gradient_of_its_own():
    keys = {"model": f"{__name__}:normalised"}
    with pytest.raises(SpcacwError, match="does not go with BatchNorm"):
        make_pool(private(**keys))
    found = make_pool(private(privacy_clip="batch", **keys))
    assert rows(found).isfinite().all()


def normalised(shape, classes):
    size = math.prod(shape)
    layers = torch.nn.Flatten(), torch.nn.BatchNorm1d(size), torch.nn.Linear(size, classes)
    return torch.nn.Sequential(*layers)


def test_without_dp_accounting_sampled_batches_name_the_extra(monkeypatch):
    monkeypatch.setattr(privacy, "find_spec", lambda name: None)
    with pytest.raises(SpcacwError, match=r"spcacw-flwr\[privacy\]"):
        checked_setting(private(privacy_batches="sampled"))
    checked_setting(private())
