"""FedProx and SCAFFOLD with one local step are FedAvg."""

import torch

from tests.baselines.by_hand import close, converse, make, quadratics

CENTRES = torch.tensor([[1.0, 2.0], [-3.0, 0.5], [0.0, 4.0]])
ETA, MU = 0.1, 7.0


def prox(w):
    """One step of each silo on f_i(x) + (μ/2)‖x − w‖² from x = w, and the mean."""
    x = w.expand(3, -1)
    return (x - ETA * (x - CENTRES + MU * (x - w))).mean(0)


def scaffold(w, own):
    """One corrected step of each silo, and its new control variate (option II, K = 1)."""
    y = w - ETA * (w - CENTRES - own + own.mean(0))
    return y.mean(0), own - own.mean(0) + (w - y) / ETA


def test_one_local_step_leaves_nothing_to_correct():
    method = make("fedavg", (5.0, -5.0), [64] * 3, eta=ETA)
    one = other = method.parameters.clone()
    variates = torch.tensor([[9.0, 9.0], [0.0, -3.0], [1.0, 1.0]])
    for t in range(1, 6):
        before = method.parameters.clone()
        converse(method, t, quadratics(CENTRES))
        one, (other, variates) = prox(one), scaffold(other, variates)
        close(one, method.parameters)
        close(other, method.parameters)
    close(variates, before - CENTRES)
