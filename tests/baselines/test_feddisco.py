"""FedDisco by hand."""

from math import log, sqrt

import numpy as np
import pytest

from spcacw_flwr.baselines.feddisco import discrepancies
from spcacw_flwr.config.declare import SpcacwError
from tests.baselines.by_hand import make

COUNTS = [[50, 30, 20], [20, 20, 20], [5, 5, 40], [100, 60, 40]]


def disco(counts, target=0, **own):
    sizes = [sum(row) for row in counts]
    return make("feddisco", sizes=sizes, label_counts=counts, own=own, target=target)


@pytest.mark.parametrize(
    ("measure", "found", "alpha"),
    [
        ("kl", [0.115413, 0.0, 0.769174, 0.115413], [0.269326, 0.231821, 0.0, 0.498852]),
        ("kl-raw", [0.068959, 0.0, 0.459580, 0.068959], [0.278988, 0.222111, 0.0, 0.498900]),
    ],
)
def test_known_answer_with_the_authors_reference(measure, found, alpha):
    """a = .5, b = .1; d_0 = .5 ln 1.5 + .3 ln .9 + .2 ln .6 = .068959, silo 2 is cut off at 0."""
    d = discrepancies(np.array(COUNTS, dtype=float), np.full(3, 1 / 3), measure)
    np.testing.assert_allclose(d, found, atol=5e-7)
    made = disco(COUNTS, reference="uniform", measure=measure)
    np.testing.assert_allclose(made.alpha, alpha, atol=5e-7)


def test_the_targets_labels_are_the_default_reference():
    """Counts (3, 1) and (1, 3): T = (3, 1)/4 as it is, d = (0, 1) once rescaled, p = ½ each."""
    weights = 0.5 - 0.5 * np.array([0.0, 1.0]) + 0.1
    np.testing.assert_allclose(disco([[3, 1], [1, 3]]).alpha, weights / weights.sum())
    other = disco([[3, 1], [1, 3]], target=1, a=0.9)
    assert other.alpha[1] > other.alpha[0]


def test_known_answer_with_the_targets_labels():
    """No class is missing, so nothing is smoothed: T = (.5, .3, .2), d_0 = d_3 = 0."""
    expected = [0.301830, 0.182275, 0.0, 0.515894]
    np.testing.assert_allclose(disco(COUNTS).alpha, expected, atol=5e-7)


def test_a_class_that_the_target_lacks_is_far_and_finite():
    """It counts once, T = (8, 1)/9: without that KL is inf, and inf/inf makes every weight NaN."""
    d = np.array([log(9 / 8), log(9), 0.5 * log(9 / 16) + 0.5 * log(9 / 2)])
    weights = np.maximum(1 / 3 - 0.5 * d / d.sum() + 0.1, 0)
    found = disco([[8, 0], [0, 8], [4, 4]]).alpha
    np.testing.assert_allclose(found, weights / weights.sum())


def test_l2_by_hand():
    """Counts (4, 0), (0, 4): d = (0, √2); p − a d + b = (.6, .6 − .25 √2)."""
    made = disco([[4, 0], [0, 4]], measure="l2", a=0.25)
    peer = 0.6 - 0.25 * sqrt(2)
    np.testing.assert_allclose(made.alpha, [0.6 / (0.6 + peer), peer / (0.6 + peer)])


def test_it_is_blind_to_what_labels_mean():
    """Equal counts leave sizes and b alone: (p + b)/Σ with p = (.5, .25, .25), b = .1."""
    made = disco([[8, 8], [4, 4], [4, 4]], reference="uniform")
    np.testing.assert_allclose(made.alpha, np.array([0.6, 0.35, 0.35]) / 1.3)


def test_no_positive_weight_is_an_error_that_names_the_keys():
    with pytest.raises(SpcacwError, match=r"feddisco\.a = 1 and feddisco\.b = -2 leave no silo"):
        disco(COUNTS, a=1.0, b=-2.0)


@pytest.mark.parametrize("reference", ["target", "uniform"])
def test_labels_that_are_numbers_have_no_counts_to_compare(reference):
    with pytest.raises(SpcacwError, match=r"feddisco compares counts of labels, .* are numbers"):
        disco([[], [], []], reference=reference)
