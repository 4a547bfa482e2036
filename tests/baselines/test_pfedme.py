"""pFedMe by hand: inner steps on one mini-batch, and a personal model that is a copy."""

import pytest
import torch

from tests.baselines.by_hand import close, converse, heard, make, quadratics, sending

CENTRES = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
SILOS = quadratics(CENTRES)
KEYS = {"lambda": 2.0, "inner-steps": 2, "personal-learning-rate": 0.1, "beta": 0.5,
        "update-every": 1}  # fmt: skip


def made(**own):
    return make("pfedme", own=KEYS | own, eta=0.05)


def test_known_answer():
    """w = 0 and f_i = ½‖x − c_i‖², so g(θ) = θ − c; η_p = .1, λ = 2, K = 2, η = .05, β = .5.

    θ: .1 c; then .1 c − .1 (.1 c − c + 2 · .1 c) = .17 c.
    w_i = 0 − .05 · 2 · (0 − .17 c) = .017 c; Σ p_i w_i = .017 (.5, .25), p = (.5, .25, .25);
    w = .5 · that = (.00425, .002125).
    """
    method = made()
    asked = converse(method, 1, SILOS)
    assert [(r.silos, r.draw) for r in asked] == [((0, 1, 2), 0)] * 2
    close(asked[1].points, 0.1 * CENTRES)
    close(method.personal, [0.17, 0.0])
    close(method.parameters, [0.00425, 0.002125])


def test_two_local_rounds_by_hand():
    """K = 1, β = 1; else as above. θ and w_i go on, w waits: θ = .1 c, w_i = .1 · .1 c = .01 c;

    then θ = .1 c − .1 (.1 c − c + 2 (.1 − .01) c) = .172 c, w_i = (.01 + .1 (.172 − .01)) c =
    .0262 c, and w = .0262 (.5, .25). Round 3 starts there.
    """
    method = made(**{"update-every": 2, "inner-steps": 1, "beta": 1.0})
    first, *_ = converse(method, 1, SILOS)
    assert not method.parameters.any()
    second, *_ = converse(method, 2, SILOS)
    close(second.points, 0.1 * CENTRES)
    assert (first.floats(), second.floats()) == ((2, 0), (0, 2))
    close(method.personal, [0.172, 0.0])
    close(method.parameters, [0.0131, 0.00655])
    third, *_ = converse(method, 3, SILOS)
    close(third.points, method.parameters.expand(3, 2))


@pytest.mark.parametrize(
    ("steps", "floats"), [(1, [(2, 2)]), (2, [(2, 0), (0, 2)]), (3, [(2, 0), (0, 0), (0, 2)])]
)
def test_a_round_counts_one_model_each_way(steps, floats):
    method = made(**{"inner-steps": steps})
    asked = converse(method, 1, SILOS)
    assert [r.floats() for r in asked] == floats
    cost = {"target_gradients": steps, "floats": 2 * 4, "bytes": 4 * 2 * 4}
    assert method.epoch_report() == {"loss": 0.5, **cost}


def test_inner_steps_are_plain_and_the_step_of_w_has_momentum():
    """η = .1, μ = .5, λ = 1, K = 1, η_p = 1, constant gradients −1 of all: θ = w + 1.

    The step of w is along λ (w − θ) = −1: w = .1, then .1 + .1 (1 + .5) = .25.
    """
    own = {"lambda": 1.0, "inner-steps": 1, "personal-learning-rate": 1.0, "update-every": 1}
    method = make("pfedme", (0.0,), own=own, eta=0.1, momentum=0.5)
    for expected in (0.1, 0.25):
        before = method.parameters.clone()
        converse(method, 1, sending(-torch.ones(3, 1)))
        close(method.personal, before + 1)
        close(method.parameters, [expected])


def test_a_silo_that_falls_silent_half_way_is_left_out():
    """Silo 1 answers the first inner step only: p = (.5, .25) of silos 0 and 2 become 2/3, 1/3."""
    method, answering = made(beta=1.0), iter([(0, 1, 2), (0, 2)])
    asked = converse(method, 1, lambda request: heard(SILOS(request), next(answering)))
    assert [request.silos for request in asked] == [(0, 1, 2), (0, 1, 2)]
    close(method.parameters, [2 / 3 * 0.017, 0.0])
