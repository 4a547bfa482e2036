"""Latent clusters: the paper's algorithm against a case worked out by hand."""

import numpy as np
import pytest
from scipy.stats import entropy

from spcacw_flwr.partitions.allocation import (
    allocate,
    base_mass,
    check_nobody_empty,
    cluster_of_class,
    counts_of,
    deal,
    latent_clusters,
)
from tests.conftest import one_sentence

# 4 silos, 2 clusters of 2 (so B = 1/2), 4 classes (so P = 2).
NOISE = np.array([
    [0.5, -0.5, 0.25, -1.0],
    [0.0, 0.5, -0.25, 0.0],
    [0.5, -1.0, 0.5, -0.5],
    [-0.1, 1.0, 0.0, 0.5],
])  # fmt: skip
# Base mass and noise added, negative sums set to 0:
#   silo 0: ½ + ½ = 1    ½ − ½ = 0    0 + ¼ = ¼    0 − 1 → 0
#   silo 1: ½ + 0 = ½    ½ + ½ = 1    0 − ¼ → 0    0 + 0 = 0
#   silo 2: 0 + ½ = ½    0 − 1 → 0    ½ + ½ = 1    ½ − ½ = 0
#   silo 3: 0 − .1 → 0   0 + 1 = 1    ½ + 0 = ½    ½ + ½ = 1
# and divided by the sums of the columns: 2, 2, 7/4, 1.
BY_HAND = np.array([
    [1 / 2, 0, 1 / 7, 0],
    [1 / 4, 1 / 2, 0, 0],
    [1 / 4, 0, 4 / 7, 0],
    [0, 1 / 2, 2 / 7, 1],
])  # fmt: skip


def test_four_silos_by_hand():
    base = base_mass([2, 2], cluster_of_class(4, 2))
    assert base.tolist() == [[0.5, 0.5, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5], [0, 0, 0.5, 0.5]]
    np.testing.assert_allclose(allocate(base, NOISE), BY_HAND, rtol=1e-15)


def test_rows_first_by_hand():
    # Rows of the rectified matrix sum to 5/4, 3/2, 3/2, 5/2; then class 3 is silo 3's alone, and
    # class 0 is split 4/5 : 1/3 : 1/3.
    base = base_mass([2, 2], cluster_of_class(4, 2))
    x = allocate(base, NOISE, "rows")
    np.testing.assert_allclose(x.sum(axis=0), 1)
    total = 4 / 5 + 1 / 3 + 1 / 3
    np.testing.assert_allclose(x[:, 0], [4 / 5 / total, 1 / 3 / total, 1 / 3 / total, 0])
    np.testing.assert_allclose(x[:, 3], [0, 0, 0, 1])


def test_a_class_that_the_noise_takes_from_everybody_goes_as_without_noise():
    base = base_mass([1, 1], cluster_of_class(2, 2))
    x = allocate(base, np.array([[-2.0, 0.0], [-2.0, 1.0]]))
    assert x.tolist() == [[1.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize(
    ("classes", "clusters", "expected"),
    [(4, 2, [0, 0, 1, 1]), (3, 3, [0, 1, 2]), (5, 2, [0, 0, 0, 1, 1]), (3, 1, [0, 0, 0])],
)
def test_classes_of_clusters_follow_kP_j_k1P(classes, clusters, expected):
    p = classes / clusters
    literal = [next(k for k in range(clusters) if k * p <= j < (k + 1) * p) for j in range(classes)]
    assert cluster_of_class(classes, clusters).tolist() == expected == literal


def test_named_class_sizes():
    assert cluster_of_class(4, 2, [1, 3]).tolist() == [0, 1, 1, 1]
    for sizes in ([1, 2], [4], [1, 1, 2]):
        with one_sentence("cluster-classes"):
            cluster_of_class(4, 2, sizes)


@pytest.mark.parametrize(
    ("epsilon_is", "deviation"), [("variance", 3.0), ("deviation", 9.0), ("fourth-power", 3**0.5)]
)
def test_the_deviation_of_the_noise(epsilon_is, deviation):
    """ε = 9; one silo of a cluster without that class shows half of the noise, unscaled."""
    drawn = np.random.default_rng(5).normal(0, deviation, size=(2, 4))
    base = base_mass([1, 1], cluster_of_class(4, 2))
    x = latent_clusters([1, 1], 4, 9.0, np.random.default_rng(5), epsilon_is=epsilon_is)
    np.testing.assert_array_equal(x, allocate(base, drawn))


def test_the_papers_two_columns_have_their_effective_number_of_classes():
    """READING row 14: about 37 classes a silo with ε = 10, 46 with .01, by exp of the entropy."""

    for epsilon, effective in ((10.0, 37), (0.01, 46)):
        x = latent_clusters([5] * 4, 100, epsilon, np.random.default_rng(0))
        counts = counts_of(x, np.full(100, 500))
        assert np.exp(entropy(counts, axis=1)).mean() == pytest.approx(effective, abs=2)


def test_without_noise_clusters_share_their_classes_alone():
    x = latent_clusters([2, 3], 10, 0.0, np.random.default_rng(0))
    assert (x[:2, :5] == 0.5).all()
    np.testing.assert_allclose(x[2:, 5:], 1 / 3)
    assert x[:2, 5:].sum() == x[2:, :5].sum() == 0


def test_dealing_gives_each_sample_to_one_silo_in_the_right_numbers():
    labels = np.random.default_rng(1).permutation(np.repeat([0, 1, 2, 3], [10, 10, 7, 10]))
    dealt = deal(BY_HAND, labels, np.random.default_rng(0))
    assert sorted(np.concatenate(dealt)) == list(range(37))
    # Class 0: running sums 5, 7.5, 10, 10, rounded 5, 8, 10, 10.
    counts = [np.bincount(labels[rows], minlength=4).tolist() for rows in dealt]
    assert counts == [[5, 0, 1, 0], [3, 5, 0, 0], [2, 0, 4, 0], [0, 5, 2, 10]]
    again, other = (deal(BY_HAND, labels, np.random.default_rng(s)) for s in (0, 1))
    assert all(np.array_equal(a, b) for a, b in zip(dealt, again, strict=True))
    assert set(dealt[3]) != set(other[3]), "which samples of a class is drawn, too"
    # In random order: not class after class.
    assert (np.diff(labels[dealt[3]]) < 0).any()


@pytest.mark.parametrize("seed", range(3))
def test_shares_are_within_a_sample_of_what_x_says(seed):
    x = latent_clusters([3, 4], 20, 10.0, np.random.default_rng(seed))
    counts = counts_of(x, np.full(20, 333))
    assert counts.sum() == 20 * 333
    assert np.abs(counts - 333 * x).max() <= 1


def test_a_silo_without_data_is_named():
    check_nobody_empty(np.ones((3, 2), int), "a setting")
    with one_sentence("Silo 1 of a setting has no data"):
        check_nobody_empty(np.array([[1, 0], [0, 0], [0, 2]]), "a setting")
