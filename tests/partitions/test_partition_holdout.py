"""Held out for tuning: a part of the target's training data in place of its test data."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.keys import PartitionKeys
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.silos.setting import SiloData
from spcacw_flwr.silos.setup import HeldOut, checked_setting, make_setting
from tests.conftest import make_pool
from tests.flower.grid import LocalGrid
from tests.flower.test_strategy import play
from tests.partitions.conftest import rows


def samples(data):
    """Images with their labels, as a set: no two digits of a silo are equal."""
    return set(zip(rows(data.x), data.y.tolist(), strict=True))


def digits(share=0.2, target=2, seed=0):
    setting = make_setting("digits-relabel", PartitionKeys(), seed)
    return setting, HeldOut(setting, target, share)


def test_the_targets_training_data_are_split_and_nothing_else_changes():
    setting, held_out = digits()
    train, held = held_out.train(2), held_out.test(2)
    assert (len(train.y), len(held.y)) == (160, 40)
    assert not samples(train) & samples(held)
    assert samples(train) | samples(held) == samples(setting.train(2))
    for silo in (0, 1, 3, 4, 5, 6):
        assert held_out.train(silo) is setting.train(silo)
        assert held_out.test(silo) is setting.test(silo)
    assert held_out.train(2) is train


def test_of_those_that_are_kept_as_large_a_share_is_independent():
    class Twins(type(digits()[0])):
        def train(self, silo):
            return replace(super().train(silo), independent=100.0)

    assert HeldOut(Twins(PartitionKeys(), 0), 2, 0.2).train(2).independent == 80


def test_the_test_set_of_the_target_is_never_read():
    class Guarded(type(digits()[0])):
        def test(self, silo):
            raise AssertionError("test data were read")

    setting = Guarded(PartitionKeys(), 0)
    assert len(HeldOut(setting, 2, 0.5).test(2).y) == 100
    with pytest.raises(AssertionError, match="were read"):
        HeldOut(setting, 2, 0.5).test(1)


def test_it_is_drawn_by_the_seed():
    first, again = (digits(seed=1)[1].test(2) for _ in range(2))
    assert torch.equal(first.x, again.x)
    setting, _ = digits()
    drawn = setting.held_out(2, 0.2)[1]
    assert not np.array_equal(drawn, np.arange(160, 200))
    assert not np.array_equal(drawn, setting.held_out(3, 0.2)[1])
    setting.seed = 1
    assert not np.array_equal(drawn, setting.held_out(2, 0.2)[1])


def test_it_is_the_setting_in_all_other_respects():
    setting, held_out = digits()
    for name in ("name", "num_silos", "num_classes", "input_shape", "groups", "group_kind"):
        assert getattr(held_out, name) == getattr(setting, name)
    assert held_out.oracle(2) == setting.oracle(2) == [0, 1, 2]
    assert not held_out.augments
    held_out.prepare()


def test_augmentation_is_kept(make):
    setting = make("cifar100-clusters")
    held_out = HeldOut(setting, 0, 0.2)
    assert held_out.augments
    x = torch.rand(4, 3, 32, 32)
    one, other = (each.augment(x, np.random.default_rng(3)) for each in (setting, held_out))
    assert torch.equal(one, other)
    assert not torch.equal(one, x)


@pytest.mark.parametrize(
    ("share", "why"),
    [(0.001, "none to hold out: hold out more"), (0.999, "none to train on: hold out less")],
)
def test_none_left_is_one_sentence(share, why):
    with pytest.raises(SpcacwError, match=rf"holdout = {share} of the 200 .* silo 2 leaves {why}"):
        digits(share)[1].train(2)


@pytest.mark.parametrize(("stride", "samples"), [(50, 0), (7, 0), (7, 60)])
def test_shakespeare_holds_out_the_last_words_of_each_role(make, stride, samples):
    keys = {"window_stride": stride, "roles_per_silo": 2, "samples_per_silo": samples}
    setting = make("shakespeare", silos=2, **keys)
    held_out = HeldOut(setting, 1, 0.25)
    train, held = held_out.train(1), held_out.test(1)
    whole = setting.train(1)
    assert len(held.y) == pytest.approx(len(whole.y) / 4, abs=2)
    assert len(whole.y) >= len(train.y) + len(held.y) > 0.9 * len(whole.y)
    # Of each role, what is trained on was said before what is held out, and nothing is in both.
    texts, _ = setting._texts("train", 1)
    for text in texts:
        windows = np.lib.stride_tricks.sliding_window_view(text, 51).tolist()
        place = {tuple(window): at for at, window in enumerate(windows)}
        first, last = ([place[w] for w in said(data) if w in place] for data in (train, held))
        assert max(first) + 50 <= min(last)
        assert min(first) < 0.2 * len(text)
        assert max(last) > 0.9 * len(text)


def said(data):
    """The windows of 51 characters that inputs and labels were cut from."""
    return [(*x, y[-1]) for x, y in zip(data.x.tolist(), data.y.tolist(), strict=True)]


X, Y = torch.rand(10, 2, 2), torch.arange(10) % 3


def load(silo):
    if silo != 1:
        raise FileNotFoundError("not on this node")
    return (X, Y), (X[:1], Y[:1])


def test_data_of_ones_own_and_a_node_that_holds_nobody_elses():
    keys = {"silo": f"{__name__}:load", "silos": 3, "classes": 3, "input_shape": "2,2"}
    config = Config.from_keys(setting="own", holdout=0.3, target=1, **keys)
    setting = checked_setting(config)
    setting.prepare()
    assert (len(setting.train(1).y), len(setting.test(1).y)) == (7, 3)
    both = torch.cat((setting.train(1).x, setting.test(1).x)).flatten(1).sum(1)
    torch.testing.assert_close(both.sort().values, X.flatten(1).sum(1).sort().values)


@pytest.mark.parametrize("method", ["spcacw", "local"])
def test_flower_and_the_loop_hold_out_the_same(method):
    """160 samples are 5 rounds an epoch; accuracy is on 40 samples."""
    config = Config.from_keys(method=method, holdout=0.2, epochs=2, compare_alone=False)
    result = simulate(config)
    strategy = play(config, LocalGrid(config, 2), rounds=10)
    accuracy = [line["accuracy"] for line in strategy.history.epochs]
    assert accuracy == result.accuracy
    assert [40 * a / 100 for a in accuracy] == pytest.approx([round(0.4 * a) for a in accuracy])
    assert [line["round"] for line in result.epochs] == [5, 10]
    assert strategy.method.federation.sizes.tolist() == [160] + [200] * 6


def test_nothing_of_it_is_trained_on():
    pool = make_pool(Config.from_keys(holdout=0.2, target=3))
    x, y = pool.data.of(3)
    assert not samples(SiloData(x, y)) & samples(pool.setting.test(3))
