"""The cost matrix of a round of SP-CACW, and the book that is kept of all of them.

Eq. (CostDef) with estimated biases: L̂_t(α) = αᵀ H_t α, H_t = B̂B̂ᵀ + ηL G̃G̃ᵀ. Three switches of the
run config act here: ``participation`` (Prop. partial participation), ``bias-correction`` (the noise
of b̂ is taken out of B̂B̂ᵀ) and ``diagnostics`` (regret, and what is known of each silo).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spcacw_flwr.alpha import (
    BiasTracker,
    Evidence,
    PositivePart,
    RegretMeter,
    cost,
    cost_matrix,
    differences,
    grams,
)
from spcacw_flwr.config.config import Config
from spcacw_flwr.methods.base import Weights
from spcacw_flwr.silos.protocol import Federation

Matrix = NDArray[np.float64]
LOGGED = 1000
"""Most silos of which diagnostics are kept: beyond, their M × M matrices outgrow the gradients."""


@dataclass(frozen=True)
class Heard:
    """The gradients of a round as bias and products see them: sketched, or as they came."""

    rows: Tensor
    """(k, d) or (k, sketch)"""
    silos: tuple[int, ...]
    factors: Weights
    """(k,) z/p of Prop. partial participation."""
    silent: list[int] = field(default_factory=list)
    """Silos that were to be heard, and were not."""


class CostBook:
    """Makes each round's H_t and keeps what is reported of them.

    ``bias`` is the method's b̂, read here and never moved. Of the regret's bound, ``bound`` is g_max
    (None: the largest norm seen) and ``every`` K; ``retention`` is the learner's ρ (``half-life``).
    ``evidence`` says whether the method itself needs ``self.evidence``.
    """

    def __init__(
        self, config: Config, federation: Federation, bias: BiasTracker, *,
        bound: float | None, every: int, retention: float, evidence: bool,
    ) -> None:  # fmt: skip
        keys, silos, self.target = config.spcacw, federation.num_silos, federation.target
        self.config, self.bias, self.num_silos = config, bias, silos
        self.eta = config.training.eta
        diagnostics = keys.diagnostics and silos <= LOGGED
        self.evidence: Evidence | None = None
        if diagnostics or keys.bias_correction or evidence:
            self.evidence = Evidence(silos, self.target, retention)
        self.positive = PositivePart(silos, retention) if keys.bias_correction else None
        self.regret: RegretMeter | None = None
        if diagnostics:
            self.regret = RegretMeter(silos, self.eta, bound, every)
        self._costs: list[float] = []

    def matrix(self, heard: Heard, smoothness: float, *, counts: bool) -> tuple[Matrix, float]:
        """Return H_t (M, M) and the largest norm of a g̃ in it.

        ``counts`` says whether the round is one of those that are summed up (t ≥ T_start).
        """
        biases, products = self._products(heard)
        silos = heard.silos
        if self.evidence:
            betas = np.zeros(self.num_silos)
            betas[list(silos)] = self.bias.rates(silos)
            betas[self.target] = 0.0
            part = products[: len(silos), : len(silos)]
            differing = differences(part, silos, self.target, self.num_silos)
            corrected = self.evidence.add(biases, differing, betas, counts=counts)
            if self.positive and counts:
                biases = self.positive.add(corrected)
        gradients = self._of_all(heard, products)
        matrix = cost_matrix(biases, gradients, self.eta, smoothness)
        return matrix, math.sqrt(gradients.diagonal().max())

    def _products(self, heard: Heard) -> tuple[Matrix, Matrix]:
        """Return B̂B̂ᵀ (M, M), and GGᵀ of the silos heard, then of the silent ones.

        A silo that was to be heard and was not must not look like a free gradient of norm 0, or
        weight would flow to the dead: its row is what b̂ predicts, g_0 + b̂_i (− b̂_0, which
        is 0 unless biases have a reference of their own), which carries all of the target's noise
        and so promises no variance reduction.
        """
        rows = heard.rows
        if heard.silent:
            reference = rows[heard.silos.index(self.target)] - self.bias.estimate[self.target]
            rows = torch.cat((rows, reference + self.bias.estimate[heard.silent]))
        biases, products = grams(self.bias.estimate, rows)
        return biases, products

    def _of_all(self, heard: Heard, products: Matrix) -> Matrix:
        """Return G̃G̃ᵀ (M, M), in which silos that were not sampled have g̃ = 0."""
        silos, silent = heard.silos, heard.silent
        if self.config.training.participation < 1:
            predicted = np.full(len(silent), 1 / self.config.training.participation)
            factors = np.concatenate((heard.factors, predicted))
            products = products * np.outer(factors, factors)
        everyone = [*silos, *silent]
        if everyone == list(range(self.num_silos)):
            return products
        full = np.zeros((self.num_silos, self.num_silos))
        full[np.ix_(everyone, everyone)] = products
        return full

    def note(self, matrix: Matrix, alpha: Weights, smoothness: float, norm: float | None) -> None:
        """Note what the weights that were played cost; ``norm`` None is of a round before T_start.

        The regret is of the rounds that are summed up.
        """
        self._costs.append(cost(alpha, matrix))
        if self.regret and norm is not None:
            self.regret.add(matrix, alpha, smoothness=smoothness, gradient_norm=norm)

    def report(self) -> dict[str, float]:
        """Return the mean of L̂_t(α_{t−1}) since the last report, and the regret so far.

        Σ L̂_t(α_{t−1}), the least of any fixed α, their difference R_T, and the theorem's bound.
        """
        mean = math.fsum(self._costs) / max(1, len(self._costs))
        self._costs.clear()
        if self.regret is None:
            return {"cost": mean}
        found = self.regret.report()
        return {
            "cost": mean,
            "cumulative_cost": found.played,
            "best_fixed_cost": found.best,
            "regret": found.regret,
            "regret_bound": found.bound,
        }
