"""FedPer by hand, and at the end of its key."""

import torch

from tests.baselines.by_hand import PLAIN, converse, heard, make
from tests.baselines.on_digits import distance, trained
from tests.baselines.test_fedrep import TWO, products


def test_head_and_body_step_together_by_hand():
    """φ = h = 1, η = .1, y = (2, 0, 4): errors hφ − y = (−1, 1, −3) are all gradients.

    h = 1 − .1 (−1, 1, −3); φ = 1 − .1 (.5 · −1 + .25 · 1 + .25 · −3) = 1.1.
    Round 2, silo 1 silent: errors h φ − y = (−.79, –, −2.57), ∂_h = φ e and ∂_φ = h e:
    φ = 1.1 − .1 (.5 · 1.1 · −.79 + .25 · 1.3 · −2.57) = 1.226975, h_0 = 1.1 + .1 · 1.1 · .79.
    """
    method = make("fedper", [1.0, 1.0], layout=TWO, eta=0.1, **PLAIN, fedper={"head-tensors": 1})
    (request,) = converse(method, 1, products)
    assert request.floats() == (1, 1)
    torch.testing.assert_close(method.heads[:, 0], torch.tensor([1.1, 0.9, 1.3]))
    torch.testing.assert_close(method.personal, torch.tensor([1.1, 1.1]))
    converse(method, 2, lambda r: heard(products(r), (0, 2)))
    torch.testing.assert_close(method.heads[:, 0], torch.tensor([1.1869, 0.9, 1.5827]))
    torch.testing.assert_close(method.personal, torch.tensor([1.226975, 1.1869]))
    assert method.epoch_report()["target_gradients"] == 2


def test_each_part_has_its_own_momentum():
    """μ = .5: gradients of round 2 plus half of those of round 1."""
    keys = PLAIN | {"momentum": 0.5}
    method = make("fedper", [1.0, 1.0], layout=TWO, eta=0.1, **keys, fedper={"head-tensors": 1})
    for t in (1, 2):
        converse(method, t, products)
    second = 0.5 * 1.1 * -0.79 + 0.25 * 0.9 * 0.99 + 0.25 * 1.3 * -2.57
    expected = [1.1 - 0.1 * (second - 0.5), 1.1 - 0.1 * (1.1 * -0.79 - 0.5)]
    torch.testing.assert_close(method.personal, torch.tensor(expected))


def test_without_a_head_it_is_fedavg_and_with_one_neither_that_nor_local():
    assert distance(trained("fedper", fedper={"head-tensors": 0}), trained("fedavg")) < 1e-4
    for other in ("fedavg", "local", "fedrep"):
        assert distance(trained("fedper"), trained(other)) > 0.1
    assert trained("fedper", 8).accuracy[-1] > trained("fedavg", 8).accuracy[-1]
