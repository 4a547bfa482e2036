"""The maths of α: arrays in, arrays out; NumPy and PyTorch, nothing of this project.

Round by round: :class:`BiasTracker` (Eq. (alg_single_est)), :func:`grams` and :func:`cost_matrix`
(Eq. (CostDef)), a learner's ``add`` and, when new weights are due, its ``minimise`` (Algorithm 1,
line 9). :class:`CountSketch` keeps all of it in few dimensions.
"""

from spcacw_flwr.alpha.bias import BiasTracker
from spcacw_flwr.alpha.cost import RunningVariance, cost, cost_matrix
from spcacw_flwr.alpha.learners import (
    FollowTheApproximateLeader,
    FollowTheLeader,
    Learner,
    make_learner,
)
from spcacw_flwr.alpha.products import grams
from spcacw_flwr.alpha.simplex import project_simplex
from spcacw_flwr.alpha.sketch import CountSketch
from spcacw_flwr.alpha.smoothness import Smoothed, spectral_norm
from spcacw_flwr.alpha.solver import Solution, minimise

__all__ = [
    "BiasTracker",
    "CountSketch",
    "FollowTheApproximateLeader",
    "FollowTheLeader",
    "Learner",
    "RunningVariance",
    "Smoothed",
    "Solution",
    "cost",
    "cost_matrix",
    "grams",
    "make_learner",
    "minimise",
    "project_simplex",
    "spectral_norm",
]
