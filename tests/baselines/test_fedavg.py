"""FedProx and SCAFFOLD with one local step are FedAvg."""

import torch

from tests.baselines.by_hand import PLAIN, converse, make, quadratics

CENTRES = torch.tensor([[1.0, 2.0], [-3.0, 0.5], [0.0, 4.0]])
ETA, MU = 0.1, 7.0


def prox(w):
    """One step of each silo on f_i(x) + (μ/2)‖x − w‖² from x = w, and the mean."""
    x = w.expand(3, -1)
    return (x - ETA * (x - CENTRES + MU * (x - w))).mean(0)


def scaffold(w, state):
    """One corrected step of each silo, and its new control variate (option II, K = 1)."""
    own, common = state["own"], state["own"].mean(0)
    y = w - ETA * (w - CENTRES - own + common)
    state["own"] = own - common + (w - y) / ETA
    return y.mean(0)


def test_one_local_step_leaves_nothing_to_correct():
    method = make("fedavg", (5.0, -5.0), [64] * 3, eta=ETA, **PLAIN)
    one = other = method.parameters.clone()
    state = {"own": torch.tensor([[9.0, 9.0], [0.0, -3.0], [1.0, 1.0]])}
    for t in range(1, 6):
        converse(method, t, quadratics(CENTRES))
        one, other = prox(one), scaffold(other, state)
        torch.testing.assert_close(one, method.parameters)
        torch.testing.assert_close(other, method.parameters)
    torch.testing.assert_close(state["own"], w_before(method) - CENTRES)


def w_before(method):
    """Return the w at which the last round's gradients were, from w⁺ = w − η (w − mean c)."""
    return (method.parameters - ETA * CENTRES.mean(0)) / (1 - ETA)
