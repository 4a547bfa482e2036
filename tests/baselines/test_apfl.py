"""APFL by hand: the mixture, the chain rule's one α, and the step of α itself."""

import pytest
import torch

from tests.baselines.by_hand import PLAIN, converse, make, replies_of
from tests.baselines.on_digits import trained

V, W = [1.0, 0.0], [0.0, 1.0]


def one_round(gradient, **keys):
    made = make("apfl", start=W, eta=0.1, apfl={"alpha": 0.5} | keys, **PLAIN)
    made.v = torch.tensor(V)
    rows = {1: [gradient], 3: [[1.0, 1.0]] * 3}
    asked = converse(made, 1, lambda r: replies_of(r, rows[len(r.silos)]))
    return made, asked


def test_known_answer():
    """v̄ = .5 (1, 0) + .5 (0, 1) = (.5, .5); g(v̄) = (1, 2).

    v = (1, 0) − .1 · .5 · (1, 2) = (.95, −.1); w = (0, 1) − .1 · (1, 1) = (−.1, .9).
    v̄ is then .5 (.95, −.1) + .5 (−.1, .9) = (.425, .4), and α = .5 stays.
    """
    made, asked = one_round([1.0, 2.0])
    assert [r.silos for r in asked] == [(0,), (0, 1, 2)]
    torch.testing.assert_close(asked[0].points, torch.tensor([0.5, 0.5]))
    torch.testing.assert_close(made.v, torch.tensor([0.95, -0.1]))
    torch.testing.assert_close(made.parameters, torch.tensor([-0.1, 0.9]))
    torch.testing.assert_close(made.personal, torch.tensor([0.425, 0.4]))
    assert made.epoch_report()["mixing"] == 0.5


@pytest.mark.parametrize(
    ("gradient", "mixing"),
    # ⟨v − w, g⟩ with v − w = (1, −1): 1 − 2 = −1, so .5 + .1; then −10 and 10, clipped.
    [([1.0, 2.0], 0.6), ([0.0, 10.0], 1.0), ([10.0, 0.0], 0.0)],
)
def test_adaptive_mixing_sees_v_and_w_before_they_move(gradient, mixing):
    made, _ = one_round(gradient, adaptive=True)
    assert made.epoch_report()["mixing"] == pytest.approx(mixing)
    # The step of v used the old α, .5.
    torch.testing.assert_close(made.v, torch.tensor(V) - 0.05 * torch.tensor(gradient))


def test_adaptive_learns_to_trust_itself_where_labels_disagree():
    mixing = [epoch["mixing"] for epoch in trained("apfl", 8, apfl={"adaptive": True}).epochs]
    assert mixing[0] == pytest.approx(0.5, abs=0.02)
    assert mixing[-1] > 0.8
