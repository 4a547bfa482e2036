"""ε against closed forms, against dp-accounting, and against counting by hand."""

import math

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy.stats import norm

from spcacw_flwr.config.config import Config
from spcacw_flwr.silos import accounting
from spcacw_flwr.silos.accounting import Ledger, gaussian_delta, gaussian_epsilon, sampled_epsilon
from spcacw_flwr.silos.batches import batch_indices
from spcacw_flwr.silos.privacy import ANY, PASS, SAMPLED, Mechanism
from spcacw_flwr.silos.protocol import LOSSES, Federation, Request, SiloInfo


def test_delta_is_the_analytic_gaussian_mechanisms():
    """Balle & Wang, theorem 8, written out; and by integrating the privacy loss of N(0,1), N(1,1).

    δ(ε) = ∫ max(0, p(x) − e^ε q(x)) dx for p = N(μ, 1), q = N(0, 1).
    """
    x = np.linspace(-15, 20, 700_001)
    for mu, epsilon in ((1.0, 1.0), (0.5, 0.2), (3.0, 4.0)):
        cut = epsilon / mu
        written = norm.cdf(mu / 2 - cut) - math.exp(epsilon) * norm.cdf(-mu / 2 - cut)
        density = norm.pdf(x - mu) - math.exp(epsilon) * norm.pdf(x)
        integral = np.trapezoid(np.maximum(density, 0), x)
        assert gaussian_delta(epsilon, mu) == pytest.approx(written, rel=1e-9)
        assert gaussian_delta(epsilon, mu) == pytest.approx(integral, rel=1e-6)


def test_epsilon_of_a_known_case():
    """z = 1, δ = 1e-5: ε = 4.377, and δ of that ε is 1e-5 again."""
    assert gaussian_epsilon(1, 1.0, 1e-5) == pytest.approx(4.3772, abs=1e-3)
    assert gaussian_delta(gaussian_epsilon(1, 1.0, 1e-5), 1.0) == pytest.approx(1e-5, rel=1e-9)
    assert gaussian_epsilon(0, 1.0, 1e-5) == 0
    assert gaussian_epsilon(1, 1e6, 1e-5) == 0  # δ(0) is below δ already


@pytest.mark.parametrize("noise", [0.05, 0.3, 1.0, 4.0, 50.0])
@pytest.mark.parametrize("uses", [1, 50, 4550])
@pytest.mark.parametrize("delta", [1e-5, 1e-3])
def test_composed_gaussians_agree_with_dp_accounting(noise, uses, delta):
    expected = get_epsilon_gaussian(noise / math.sqrt(uses), delta)
    assert gaussian_epsilon(uses, noise, delta) == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("noise", [0.8, 2.0])
def test_composed_gaussians_agree_with_privacy_loss_distributions(noise):
    """Which compose 20 of them numerically."""
    accountant = PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    expected = accountant.compose(dp.GaussianDpEvent(noise), 20).get_epsilon(1e-5)
    assert gaussian_epsilon(20, noise, 1e-5) == pytest.approx(expected, rel=2e-3)


def test_sampling_amplifies_and_never_harms():
    accountant = RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    event = dp.SampledWithoutReplacementDpEvent(2900, 32, dp.GaussianDpEvent(2.0))
    own = accountant.compose(event, 4550).get_epsilon(1e-5)  # with orders of its own
    found = sampled_epsilon(4550, 32, 2900, 2.0, 1e-5)
    assert found == pytest.approx(own, rel=0.02)
    assert found < 0.2 * gaussian_epsilon(4550, 2.0, 1e-5)
    assert sampled_epsilon(3, 32, 32, 2.0, 1e-5) == gaussian_epsilon(3, 2.0, 1e-5)
    assert sampled_epsilon(1, 199, 200, 0.1, 1e-5) <= gaussian_epsilon(1, 0.1, 1e-5)


def test_without_dp_accounting_no_sampling_is_counted_on(monkeypatch):
    monkeypatch.setattr(accounting, "find_spec", lambda name: None)
    found = sampled_epsilon.__wrapped__(40, 32, 700, 2.0, 1e-5)
    assert found == gaussian_epsilon(40, 2.0, 1e-5)


def ledger(batches: str, size: int = 70, **keys) -> Ledger:
    one = Mechanism(2.0, 1.0, 1e-5, True, batches)
    infos = SiloInfo(0, 70, (70,)), SiloInfo(1, size, (), privacy=one)
    return Ledger(Config.from_keys(batch_size=32, **keys), Federation(infos, 0, 32))


def ask(book: Ledger, *rounds: int, **more) -> Ledger:
    for round_ in rounds:
        book.note(Request(round_, (0, 1), None, **more), (0, 1))
    return book


def spent(answers: int) -> float:
    return gaussian_epsilon(answers, 2.0, 1e-5)


def test_a_pass_uses_each_sample_once_and_so_counts_once():
    """70 samples are 3 rounds a pass; rounds of other passes, draws and questions add up."""
    book = ask(ledger(PASS), 1, 2, 3)
    assert book.epsilon(1) == spent(1)
    assert book.answers[1] == 3
    assert math.isinf(book.epsilon(0))
    assert ask(book, 4, 5, 6).epsilon(1) == spent(2)
    assert ask(book, 6).epsilon(1) == spent(3)  # the same batch again, at another model
    assert ask(book, 4, 5, 6, draw=1).epsilon(1) == spent(4)
    assert ask(book, 7, want=LOSSES).answers[1] == 10


def test_each_batch_of_a_mean_counts():
    """With local-batches = 3 a pass of rounds is three passes of batches."""
    book = ask(ledger(PASS, local_batches=3), 1, 2, 3)
    assert (book.uses[1] == 3).all()
    assert book.answers[1] == 9


def test_the_sample_that_was_used_most_often_decides():
    """Who is asked in few rounds has told less; a prefix of a batch counts its samples only."""
    book, by_hand = ask(ledger(PASS), 1, 5, 9, samples=(32, 6)), np.zeros(70, dtype=int)
    for round_ in (1, 5, 9):
        by_hand[batch_indices(0, 1, round_, 70, 32)[:6]] += 1
    np.testing.assert_array_equal(book.uses[1], by_hand)
    assert book.epsilon(1) == spent(int(by_hand.max()))


def test_of_unknown_batches_every_answer_counts():
    assert ask(ledger(ANY), 1, 2, 3).epsilon(1) == spent(3)


def test_sampled_answers_are_counted():
    book = ask(ledger(SAMPLED, size=700), *range(1, 41))
    assert book.epsilon(1) == sampled_epsilon(40, 32, 700, 2.0, 1e-5) < spent(40)


@pytest.mark.parametrize("batches", [PASS, ANY])
def test_a_ledger_goes_on_where_it_stopped(batches):
    first, second = ledger(batches), ledger(batches)
    ask(first, 1, 2, 4)
    for silo, counts in first.state().items():
        second.restore(int(silo), counts)
    for book in (first, second):
        ask(book, 7)
    assert first.summary() == second.summary()


def test_of_other_data_or_batches_than_before_every_sample_was_in_every_answer():
    book, before = ledger(PASS), ask(ledger(ANY), 1, 2, 3).state()
    book.restore(1, before["1"])
    assert book.epsilon(1) == spent(3)
    assert ask(book, 4).epsilon(1) == spent(4)
