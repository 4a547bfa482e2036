"""The maths of α, from arrays to arrays, with NumPy and PyTorch and nothing else of this project.

Each round calls :class:`BiasTracker` (Eq. (alg_single_est)), :func:`grams` and :func:`cost_matrix`
(Eq. (CostDef)), and a learner's ``add``; when new weights are due, also its ``minimise`` (Algorithm
1, line 9). :class:`CountSketch` maps vectors to few dimensions. :class:`Evidence` separates biases
from noise. :class:`RegretMeter` and :func:`optimal_weights` compare a run with the theory.
"""

from spcacw_flwr.alpha.bias import BiasTracker
from spcacw_flwr.alpha.closed_form import OptimalWeights, optimal_weights
from spcacw_flwr.alpha.cost import RegretMeter, RunningVariance, cost, cost_matrix
from spcacw_flwr.alpha.learners import FollowTheApproximateLeader, FollowTheLeader, Learner
from spcacw_flwr.alpha.noise import Evidence, NoiseTracker, differences
from spcacw_flwr.alpha.online import ExponentiatedGradient, OnlineNewtonStep
from spcacw_flwr.alpha.population import Population
from spcacw_flwr.alpha.products import CountSketch, grams, norms_of
from spcacw_flwr.alpha.smoothness import Smoothed, noise_curvature, spectral_norm
from spcacw_flwr.alpha.solver import Solution, minimise, project_simplex

__all__ = [
    "BiasTracker", "CountSketch", "Evidence", "ExponentiatedGradient", "FollowTheApproximateLeader",
    "FollowTheLeader", "Learner", "NoiseTracker", "OnlineNewtonStep", "OptimalWeights",
    "Population", "RegretMeter", "RunningVariance", "Smoothed", "Solution", "cost", "cost_matrix",
    "differences", "grams", "minimise", "noise_curvature", "norms_of", "optimal_weights",
    "project_simplex", "spectral_norm",
]  # fmt: skip
