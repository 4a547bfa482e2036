"""FedRep and FedPer: heads at home, one body; what is fixed does not move."""

import torch

from tests.baselines.by_hand import (
    close,
    converse,
    heard,
    make,
    play,
    quadratics,
    replies_of,
    shaped,
)
from tests.baselines.on_digits import trained


def products(request):
    """Silos with f_i(φ, h) = ½(hφ − y_i)², y = (2, 0, 4): ∂_φ = h(hφ − y), ∂_h = φ(hφ − y)."""
    y = torch.tensor([2.0, 0.0, 4.0])[list(request.silos)]
    body, head = request.points.T
    error = head * body - y
    return replies_of(request, torch.stack((head * error, body * error), dim=1))


def built(name, eta=0.1, momentum=0.0, **own):
    layout, own = shaped(body=(1,), head=(1,)), {"head-tensors": 1} | own
    return make(name, [1.0, 1.0], own=own, layout=layout, eta=eta, momentum=momentum)


def test_two_head_steps_and_a_body_step_by_hand():
    """φ = h = 1, η = .1, τ = 2, α = (.5, .25, .25).

    Heads: h ← h − .1 (h − y) = .9 h + .1 y, twice: .81 + .19 y = (1.19, .81, 1.57).
    Body, at the new heads: ∂_φ = h (h − y) = (1.19·−.81, .81·.81, 1.57·−2.43)
    = (−.9639, .6561, −3.8151), averaged −.48195 + .164025 − .953775 = −1.2717.
    """
    method = built("fedrep", **{"head-steps": 2})
    asked = converse(method, 1, products)
    close(method.heads[:, 0], [1.19, 0.81, 1.57])
    close(method.body, [1.12717])
    close(method.personal, [1.12717, 1.19])
    assert [request.draw for request in asked] == [1, 2, 0]
    # Only the body travels.
    assert [request.floats() for request in asked] == [(0, 0), (0, 0), (1, 1)]
    assert method.epoch_report()["floats"] == 2 * 2
    assert method.epoch_report()["target_gradients"] == 3


def test_what_is_fixed_does_not_drift():
    """Momentum and weight decay act on a part in its own steps only: as if trained by itself.

    With f_i = ½‖w − c_i‖² the parts do not meet, so torch's SGD on each part alone is the truth.
    """
    centres = torch.tensor([[1.0, 2.0, 3.0], [0.0, 4.0, -2.0], [2.0, 0.0, 1.0]])
    start = torch.tensor([0.5, -0.5, 1.0])
    method = make(
        "fedrep", start.tolist(), own={"head-tensors": 1}, layout=shaped(body=(2,), head=(1,)),
        eta=0.1, momentum=0.9, weight_decay=0.5,
    )  # fmt: skip
    body, heads = start[:2].clone().requires_grad_(), start[2:].repeat(3, 1).requires_grad_()
    sgd = torch.optim.SGD([body, heads], lr=0.1, momentum=0.9, weight_decay=0.5)
    mean = torch.tensor([0.5, 0.25, 0.25]) @ centres
    for t in range(1, 6):
        converse(method, t, quadratics(centres))
        body.grad, heads.grad = body.detach() - mean[:2], heads.detach() - centres[:, 2:]
        sgd.step()
        close(method.body, body.detach())
        close(method.heads, heads.detach())


def test_a_silent_silo_keeps_its_head_and_the_others_go_on():
    method = built("fedrep")
    asked = converse(method, 1, lambda r: heard(products(r), (0, 2)))
    assert [request.silos for request in asked] == [(0, 1, 2), (0, 2)]
    assert method.heads[1] == 1.0
    assert (method.heads[[0, 2]] != 1.0).all()


def test_fedpers_head_and_body_step_together_by_hand():
    """φ = h = 1, η = .1, y = (2, 0, 4): errors hφ − y = (−1, 1, −3) are all gradients.

    h = 1 − .1 (−1, 1, −3); φ = 1 − .1 (.5 · −1 + .25 · 1 + .25 · −3) = 1.1.
    Round 2, silo 1 silent: errors h φ − y = (−.79, –, −2.57), ∂_h = φ e and ∂_φ = h e:
    φ = 1.1 − .1 (.5 · 1.1 · −.79 + .25 · 1.3 · −2.57) = 1.226975, h_0 = 1.1 + .1 · 1.1 · .79.
    """
    method = built("fedper")
    (request,) = converse(method, 1, products)
    assert request.floats() == (1, 1)
    close(method.heads[:, 0], [1.1, 0.9, 1.3])
    close(method.personal, [1.1, 1.1])
    converse(method, 2, lambda r: heard(products(r), (0, 2)))
    close(method.heads[:, 0], [1.1869, 0.9, 1.5827])
    close(method.personal, [1.226975, 1.1869])
    assert method.epoch_report()["target_gradients"] == 2


def test_each_part_of_fedper_has_its_own_momentum():
    """μ = .5: gradients of round 2 plus half of those of round 1."""
    method = built("fedper", momentum=0.5)
    play(method, 2, products)
    second = 0.5 * 1.1 * -0.79 + 0.25 * 0.9 * 0.99 + 0.25 * 1.3 * -2.57
    close(method.personal, [1.1 - 0.1 * (second - 0.5), 1.1 - 0.1 * (1.1 * -0.79 - 0.5)])


def test_fedper_is_better_than_fedavg():
    assert trained("fedper", 8).accuracy[-1] > trained("fedavg", 8).accuracy[-1]
