"""Accelerated projected gradient descent by itself, without the finish that follows it."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from spcacw_flwr.alpha import minimise
from spcacw_flwr.alpha.descent import descend
from spcacw_flwr.alpha.objective import Objective


def spread(condition, size=20):
    """Eigenvalues from 1/condition to 1 in random directions; the optimum is the centre."""
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(size, size)))[0]
    H = (basis * np.logspace(-np.log10(condition), 0, size)) @ basis.T
    return Objective(H, -2.0 * H @ np.full(size, 1.0 / size), 0.0)


def test_first_step_by_hand():
    # ∇ = 2 (2, 1/2) at (1/2, 1/2); step 1/8: (1/2 - 1/2, 1/2 - 1/8), each plus 5/16 to sum to 1.
    objective = Objective(np.diag([4.0, 1.0]), np.zeros(2), 0.0)
    alpha, used = descend(objective, np.array([0.5, 0.5]), 8.0, 1e-10, 1)
    assert_allclose(alpha, [5 / 16, 11 / 16], atol=1e-15)
    assert used == 1


def test_needs_no_step_at_the_optimum():
    objective = Objective(np.diag([3.0, 1.0]), np.zeros(2), 0.0)
    assert descend(objective, np.array([0.25, 0.75]), 6.0, 1e-10, 100)[1] == 0


@pytest.mark.parametrize("cubic", [0.0, 1.0])
def test_never_rises(cubic):
    objective = Objective(spread(1e6).quadratic, np.linspace(0, 1e-3, 20), cubic)
    alpha = np.eye(20)[0]
    values = [objective.value(descend(objective, alpha, 2 + 6 * cubic, 0, n)[0]) for n in range(80)]
    assert (np.diff(values) <= 1e-14).all()
    assert values[-1] < values[0]


def test_restarts_keep_acceleration():
    """588 steps when written; 816 without the gradient rule, over 5000 without momentum."""
    objective = spread(1e3)
    alpha, used = descend(objective, np.eye(20)[0], 2.0, 1e-9, 5000)
    assert used < 700
    best = minimise(objective.quadratic, linear=objective.linear)
    assert_allclose(alpha, best.alpha, atol=1e-5)
