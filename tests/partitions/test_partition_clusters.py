"""The paper's CIFAR-100 setting: who holds what, how the test is weighted, what is augmented."""

import numpy as np
import pytest
import torch

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.partitions import clusters
from spcacw_flwr.partitions.clusters import crop_and_flip
from spcacw_flwr.partitions.images import load_cifar100

MEAN = torch.tensor([0.50708, 0.48655, 0.44092])[:, None, None]
STD = torch.tensor([0.26733, 0.25644, 0.27615])[:, None, None]
"""Of the pixels of each channel, as others print them."""


def class_mass(test):
    """What each class counts in the test, of 1."""
    return torch.zeros(100).index_add_(0, test.y, test.weight) / test.weight.sum()


def test_all_50000_images_are_dealt_out_in_the_shares_of_the_matrix(make):
    setting = make("cifar100-clusters", silos=20)
    assert setting.num_silos == 20
    assert setting.groups == [float(i // 5) for i in range(20)]
    assert setting.oracle(7) == [5, 6, 7, 8, 9]
    np.testing.assert_allclose(setting.allocation.sum(axis=0), 1)
    counts = np.stack([setting.train(i).label_counts(100).numpy() for i in range(20)])
    assert counts.sum(axis=0).tolist() == [500] * 100
    assert np.abs(counts - 500 * setting.allocation).max() <= 1
    dealt = np.concatenate([setting._rows("train", i) for i in range(20)])
    assert sorted(dealt) == list(range(50_000))


def test_a_silo_holds_the_images_of_its_rows_standardised(make, cifar_dir):
    setting = make("cifar100-clusters", epsilon=0.01)
    data, all_ = setting.train(3), load_cifar100(cifar_dir)
    dealt = setting._rows("train", 3)
    assert (data.x.dtype, data.x.shape[1:]) == (torch.float32, (3, 32, 32))
    assert data.y.tolist() == all_.y_train[dealt].tolist()
    pixels = torch.from_numpy(all_.x_train[dealt].astype(np.float32)) / 255
    unit = make("cifar100-clusters", epsilon=0.01, input_scale="unit").train(3)
    assert torch.equal(unit.x, pixels)
    torch.testing.assert_close(data.x * STD + MEAN, pixels, atol=1e-4, rtol=0)


def test_the_standardisation_is_that_of_the_training_pixels(cifar_dir):
    x = load_cifar100(cifar_dir).x_train
    for c in range(3):
        pixels = x[:, c].astype(np.float64) / 255
        assert clusters._MEAN[c].item() == pytest.approx(pixels.mean(), abs=1e-6)
        assert clusters._STD[c].item() == pytest.approx(pixels.std(), abs=1e-6)


def test_the_test_counts_each_class_as_the_silo_does(make):
    setting = make("cifar100-clusters")
    train, test = setting.train(12), setting.test(12)
    assert len(test.y) == 10_000
    share = train.label_counts(100) / len(train.y)
    torch.testing.assert_close(class_mass(test), share)
    assert test.weight.mean().item() == pytest.approx(1, abs=1e-5)
    # So the weighted accuracy is Σ_c p_c · accuracy on class c.
    hit = torch.rand(10_000, generator=torch.Generator().manual_seed(0)) < 0.3
    by_class = torch.stack([hit[test.y == c].float().mean() for c in range(100)])
    assert test.mean(hit) == pytest.approx(float(share @ by_class), abs=1e-6)
    assert setting.test(0).x is test.x, "123 MB that silos share"


def test_the_other_two_readings_of_the_test(make):
    uniform = make("cifar100-clusters", test_distribution="uniform").test(0)
    assert uniform.weight is None
    assert uniform.label_counts(100).tolist() == [100] * 100
    split = make("cifar100-clusters", test_distribution="split")
    counts = np.stack([split.test(i).label_counts(100).numpy() for i in range(20)])
    assert counts.sum(axis=0).tolist() == [100] * 100
    assert np.abs(counts - 100 * split.allocation).max() <= 1
    assert split.test(0).weight is None


def test_fewer_test_images_keep_all_classes_and_the_weights(make):
    setting = make("cifar100-clusters", test_samples=250)
    train, test = setting.train(5), setting.test(5)
    assert len(test.y) == 250
    assert set(test.label_counts(100).tolist()) == {2, 3}
    torch.testing.assert_close(class_mass(test), train.label_counts(100) / len(train.y))


def test_fewer_training_images_are_the_first_of_the_many(make):
    few, many = make("cifar100-clusters", samples_per_silo=32), make("cifar100-clusters")
    assert torch.equal(few.train(1).x, many.train(1).x[:32])
    assert torch.equal(few.test(1).weight, many.test(1).weight)


def test_the_deal_follows_the_seed(make):
    a, b = make("cifar100-clusters"), make("cifar100-clusters", seed=1)
    assert not np.array_equal(a.allocation, b.allocation)
    same = make("cifar100-clusters", epsilon=0.0), make("cifar100-clusters", seed=1, epsilon=0.0)
    assert np.array_equal(same[0].allocation, same[1].allocation)
    assert not torch.equal(same[0].train(0).x[:9], same[1].train(0).x[:9])


def test_augmentation_pads_with_black_and_can_be_off(make):
    setting = make("cifar100-clusters", data_dir="-")
    x = torch.ones(64, 3, 32, 32)
    seen = setting.augment(x, np.random.default_rng(0))
    colours = seen.flatten(2).min(-1).values.min(0).values
    torch.testing.assert_close(colours, (-MEAN / STD).flatten(), atol=1e-3, rtol=0)
    assert torch.equal(setting.augment(x, np.random.default_rng(0)), seen)
    unit = make("cifar100-clusters", data_dir="-", input_scale="unit")
    assert unit.augment(x, np.random.default_rng(0)).min() == 0
    plain = make("cifar100-clusters", data_dir="-", augmentation=False)
    assert plain.augment(x, np.random.default_rng(0)) is x


def test_other_settings_do_not_augment(make):
    x = torch.rand(2, 1, 8, 8)
    assert make("digits-relabel").augment(x, np.random.default_rng(0)) is x


def test_cluster_sizes_and_classes_are_keys(make):
    setting = make(
        "cifar100-clusters", data_dir="-", cluster_sizes="2,3", cluster_classes="10,90", epsilon=0.0
    )
    assert setting.groups == [0, 0, 1, 1, 1]
    assert (setting.allocation[:2, :10] == 0.5).all()
    assert setting.allocation[:2, 10:].sum() == 0


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"cluster_sizes": ",".join(["1"] * 101)}, "101 clusters cannot share 100 classes"),
        ({"cluster_classes": "50,50"}, "cluster-classes names 2 clusters with 100 classes"),
        ({"cluster_classes": "25,25,25"}, "cluster-classes names 3 clusters with 75"),
        ({"cluster_classes": "x"}, "cluster-classes = 'x'"),
        ({"epsilon": -1.0}, "epsilon = -1"),
        ({"cluster_sizes": "1000", "epsilon": 0.0}, "Silo 0 of .* has no data"),
    ],
)
def test_bad_input_is_one_sentence_before_any_data_are_read(make, changes, why):
    with pytest.raises(SpcacwError, match=why):
        make("cifar100-clusters", data_dir="-", **changes)


def test_a_silo_without_test_data_is_named(make):
    keys = {"cluster_sizes": "180,180", "epsilon": 0.0}
    make("cifar100-clusters", data_dir="-", **keys)
    with pytest.raises(SpcacwError, match=r"Silo \d+ of cifar100-clusters for the test has no"):
        make("cifar100-clusters", data_dir="-", test_distribution="split", **keys)


def one_by_one(x, rng, pad, edge):
    """The same as a plain loop: pad, cut out, mirror."""
    n, _, height, width = x.shape
    down, right = rng.integers(0, 2 * pad + 1, size=n), rng.integers(0, 2 * pad + 1, size=n)
    mirror = rng.integers(0, 2, size=n)
    out = []
    for i in range(n):
        padded = [
            torch.nn.functional.pad(plane, (pad,) * 4, value=float(colour))
            for plane, colour in zip(x[i], edge, strict=True)
        ]
        cut = torch.stack(padded)[:, down[i] : down[i] + height, right[i] : right[i] + width]
        out.append(cut.flip(-1) if mirror[i] else cut)
    return torch.stack(out)


@pytest.mark.parametrize("pad", [2, 0])
def test_agrees_with_a_loop(pad):
    x = torch.randn(40, 3, 6, 5, generator=torch.Generator().manual_seed(0))
    before, edge = x.clone(), torch.tensor([-1.0, 0.5, 2.0])
    got, other = (crop_and_flip(x, np.random.default_rng(s), edge, pad) for s in (3, 4))
    assert torch.equal(got, one_by_one(x, np.random.default_rng(3), pad, edge))
    assert got.is_contiguous()
    assert torch.equal(x, before)
    assert not torch.equal(got, other)
