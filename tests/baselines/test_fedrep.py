"""FedRep: heads at home, one body; what is fixed does not move."""

import pytest
import torch

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.silos.layout import Layout
from tests.baselines.by_hand import PLAIN, converse, heard, make, quadratics, replies_of
from tests.baselines.on_digits import trained

TWO = Layout((("body", torch.Size([1])), ("head", torch.Size([1]))))


def products(request):
    """Silos with f_i(φ, h) = ½(hφ − y_i)², y = (2, 0, 4): ∂_φ = h(hφ − y), ∂_h = φ(hφ − y)."""
    y = torch.tensor([2.0, 0.0, 4.0])[list(request.silos)]
    body, head = request.points.T
    error = head * body - y
    return replies_of(request, torch.stack((head * error, body * error), dim=1))


def test_two_head_steps_and_a_body_step_by_hand():
    """φ = h = 1, η = .1, τ = 2, α = (.5, .25, .25).

    Heads: h ← h − .1 (h − y) = .9 h + .1 y, twice: .81 + .19 y = (1.19, .81, 1.57).
    Body, at the new heads: ∂_φ = h (h − y) = (1.19·−.81, .81·.81, 1.57·−2.43)
    = (−.9639, .6561, −3.8151), averaged −.48195 + .164025 − .953775 = −1.2717.
    """
    method = make("fedrep", [1.0, 1.0], layout=TWO, eta=0.1, **PLAIN,
                  fedrep={"head-tensors": 1, "head-steps": 2})  # fmt: skip
    asked = converse(method, 1, products)
    torch.testing.assert_close(method.heads[:, 0], torch.tensor([1.19, 0.81, 1.57]))
    torch.testing.assert_close(method.body, torch.tensor([1.12717]))
    torch.testing.assert_close(method.personal, torch.tensor([1.12717, 1.19]))
    assert [request.draw for request in asked] == [1, 2, 0]
    # Only the body travels.
    assert [request.floats() for request in asked] == [(0, 0), (0, 0), (1, 1)]
    assert method.epoch_report()["floats"] == 2 * 2
    assert method.epoch_report()["target_gradients"] == 3


def test_weights_of_the_body():
    for weights, alpha in {"uniform": [1 / 3] * 3, "size": [0.5, 0.25, 0.25]}.items():
        table = {"weights": weights, "head-tensors": 1}
        assert make("fedrep", [1.0, 1.0], layout=TWO, fedrep=table).alpha == pytest.approx(alpha)


def test_what_is_fixed_does_not_drift():
    """Momentum and weight decay act on a part in its own steps only: as if trained by itself.

    With f_i = ½‖w − c_i‖² the parts do not meet, so torch's SGD on each part alone is the truth.
    """
    layout = Layout((("body", torch.Size([2])), ("head", torch.Size([1]))))
    centres = torch.tensor([[1.0, 2.0, 3.0], [0.0, 4.0, -2.0], [2.0, 0.0, 1.0]])
    start = torch.tensor([0.5, -0.5, 1.0])
    method = make("fedrep", start.tolist(), layout=layout, eta=0.1, momentum=0.9,
                  weight_decay=0.5, max_norm=0.0, fedrep={"head-tensors": 1})  # fmt: skip
    body, heads = start[:2].clone().requires_grad_(), start[2:].repeat(3, 1).requires_grad_()
    sgd = torch.optim.SGD([body, heads], lr=0.1, momentum=0.9, weight_decay=0.5)
    mean = torch.tensor([0.5, 0.25, 0.25]) @ centres
    for t in range(1, 6):
        converse(method, t, quadratics(centres))
        body.grad, heads.grad = body.detach() - mean[:2], heads.detach() - centres[:, 2:]
        sgd.step()
        torch.testing.assert_close(method.body, body.detach())
        torch.testing.assert_close(method.heads, heads.detach())


def test_a_silent_silo_keeps_its_head_and_the_others_go_on():
    method = make("fedrep", [1.0, 1.0], layout=TWO, **PLAIN, fedrep={"head-tensors": 1})
    asked = converse(method, 1, lambda r: heard(products(r), (0, 2)))
    assert [request.silos for request in asked] == [(0, 1, 2), (0, 2)]
    assert method.heads[1] == 1.0
    assert (method.heads[[0, 2]] != 1.0).all()


def test_a_body_must_be_left():
    with pytest.raises(SpcacwError, match=r"head-tensors = 4 leaves nothing to share.*at most 3"):
        trained("fedrep", fedrep={"head-tensors": 4})
