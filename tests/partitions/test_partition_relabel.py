"""Label switching: clusters, permutations, and who holds which images."""

import numpy as np
import pytest
import torch

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.partitions.images import load_digits
from spcacw_flwr.partitions.relabel import permutations
from tests.conftest import one_sentence
from tests.partitions.conftest import rows


def test_shift_by_hand():
    got = [p.tolist() for p in permutations(3, 4, "shift", seed=0)]
    assert got == [[0, 1, 2, 3], [1, 2, 3, 0], [2, 3, 0, 1]]


def test_random_permutations_are_distinct_seeded_and_start_with_the_identity():
    got = [p.tolist() for p in permutations(6, 3, "random", seed=0)]
    assert got[0] == [0, 1, 2]
    assert all(sorted(p) == [0, 1, 2] for p in got)
    assert len({tuple(p) for p in got}) == 6, "3! = 6, so these are all of them"
    ten = [np.stack(permutations(3, 10, "random", seed=s)) for s in (1, 1, 2)]
    assert np.array_equal(ten[0], ten[1])
    assert not np.array_equal(ten[0], ten[2])


@pytest.mark.parametrize(("how", "most"), [("shift", 3), ("random", 6)])
def test_more_clusters_than_permutations_is_refused(how, most):
    assert len(permutations(most, 3, how, seed=0)) == most
    with pytest.raises(SpcacwError, match=f"at most {most}"):
        permutations(most + 1, 3, how, seed=0)


@pytest.mark.parametrize("how", ["shift", "random"])
def test_digits_silos_hold_disjoint_images_with_their_clusters_labels(make, how):
    setting = make("digits-relabel", label_permutation=how)
    assert setting.num_silos == 7
    assert setting.groups == [0, 0, 0, 1, 1, 2, 2]
    assert [setting.oracle(i) for i in (0, 3, 6)] == [[0, 1, 2], [3, 4], [5, 6]]
    x_all, y_all = load_digits()
    index = {row: i for i, row in enumerate(rows(torch.from_numpy(x_all.copy())))}
    assert len(index) == 1797, "no two digits are equal, so images identify themselves"
    maps = permutations(3, 10, how, seed=0)
    seen = []
    for silo, cluster in enumerate([0, 0, 0, 1, 1, 2, 2]):
        data = setting.train(silo)
        assert (data.x.dtype, data.x.shape) == (torch.float32, (200, 1, 8, 8))
        assert (data.y.dtype, data.y.shape) == (torch.int64, (200,))
        held = [index[row] for row in rows(data.x)]
        assert data.y.tolist() == maps[cluster][y_all[held]].tolist()
        seen += held
    test = [index[row] for row in rows(setting.test(0).x)]
    assert (len(seen), len(set(seen)), len(test)) == (1400, 1400, 397)
    assert set(seen) | set(test) == set(range(1797))


def test_test_labels_follow_the_silos_own_cluster(make):
    setting = make("digits-relabel")
    plain, shifted = setting.test(0), setting.test(5)
    assert torch.equal(plain.x, shifted.x)
    assert torch.equal(shifted.y, (plain.y + 2) % 10)
    assert shifted.label_counts(10).tolist() == np.roll(plain.label_counts(10), 2).tolist()


def test_the_split_depends_on_the_seed_alone(make):
    first, same, other = (make("digits-relabel", seed=s) for s in (3, 3, 4))
    for part in ("train", "test"):
        a, b, c = (getattr(s, part)(1) for s in (first, same, other))
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.y, b.y)
        assert not torch.equal(a.x, c.x)
    # Order of the questions, permutation and scale leave the images alone.
    random = make("digits-relabel", seed=3, label_permutation="random", cluster_sizes="2,2,3")
    random.test(6)
    assert torch.equal(random.train(1).x, first.train(1).x)


def test_more_samples_contain_the_fewer(make):
    few, many = make("digits-relabel", samples_per_silo=10), make("digits-relabel")
    assert torch.equal(few.train(4).x, many.train(4).x[:10])


def test_standard_scale_of_digits_is_over_the_training_images(make):
    unit, standard = make("digits-relabel"), make("digits-relabel", input_scale="standard")
    pool = torch.cat([standard.train(i).x for i in range(7)])
    assert pool.mean().abs() < 1e-5
    assert abs(pool.std() - 1) < 1e-3
    a, b = unit.test(0).x, standard.test(0).x
    raw = torch.cat([unit.train(i).x for i in range(7)])
    torch.testing.assert_close(b * raw.std(unbiased=False) + raw.mean(), a, atol=1e-5, rtol=0)


@pytest.mark.parametrize("sizes", ["", "3,,2", "3,0", "3,-1", "3,x", "2.5", "3;2", "²"])
def test_bad_cluster_sizes_are_refused(make, sizes):
    with pytest.raises(SpcacwError, match=r"cluster-sizes = .*3,2,2"):
        make("digits-relabel", cluster_sizes=sizes)


def test_cluster_sizes_may_have_spaces_and_any_order(make):
    assert make("digits-relabel", cluster_sizes=" 2, 2 ,3").groups == [0, 0, 1, 1, 2, 2, 2]
    assert make("digits-relabel", cluster_sizes="4").oracle(2) == [0, 1, 2, 3]


def test_too_many_samples_are_refused_with_the_numbers(make):
    with one_sentence("1400 training images", "7 silos × 201", "1407", "at most 200"):
        make("digits-relabel", samples_per_silo=201)


def test_mnist_relabel_by_its_defaults_is_standardised(make):
    setting = make("mnist-relabel")
    data = setting.train(0)
    assert data.x.shape == (2900, 1, 28, 28)
    assert data.x.mean().abs() < 0.03
    assert abs(data.x.std() - 1) < 0.03
    # Black, the most common pixel, is (0 − .1307) / .3081.
    assert data.x.min().item() == pytest.approx(-0.42421, abs=1e-4)
    assert data.x.max().item() == pytest.approx(2.82149, abs=1e-4)
