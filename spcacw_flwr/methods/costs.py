"""The cost matrix of each round of SP-CACW, and a record of all of them.

Eq. (CostDef) with estimated biases: L̂_t(α) = αᵀ H_t α, H_t = B̂B̂ᵀ + ηL E G̃G̃ᵀ. Two switches of the
run config act here: ``participation`` (Prop. partial participation) and ``diagnostics`` (regret,
and what is known about each silo).

Let g̃ᵢ = gᵢ zᵢ/p with independent draws zᵢ, and z = 1 for the target. The mean over the draws is

    E⟨g̃ᵢ, g̃ⱼ⟩ = ⟨gᵢ, gⱼ⟩,    E‖g̃ᵢ‖² = ‖gᵢ‖² + (1/p − 1)‖gᵢ‖²  for a peer,

the proposition's mean and variance. H_t uses this mean, not the draw of the round. With the draw,
the gradient of a silo that was not asked would seem to cost nothing.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spcacw_flwr.alpha import BiasTracker, Evidence, RegretMeter, cost, cost_matrix, grams
from spcacw_flwr.alpha.noise import differences
from spcacw_flwr.alpha.solver import Matrix, Vector
from spcacw_flwr.config.config import Config
from spcacw_flwr.config.keys import BF16
from spcacw_flwr.methods.base import Weights
from spcacw_flwr.silos.protocol import Federation

LOGGED = 1000
"""Most silos with diagnostics: with more, their M × M matrices outgrow the gradients."""


class CostBook:
    """Make each round's H_t, and keep the figures that are reported about them.

    ``bias`` is the method's b̂, read and never changed. The regret's bound uses g_max = ``bound``
    (None: the largest norm so far) and K = ``every``. ``evidence`` says whether the method itself
    needs ``self.evidence``.
    """

    def __init__(
        self, config: Config, federation: Federation, bias: BiasTracker, *,
        bound: float | None, every: int, evidence: bool,
    ) -> None:  # fmt: skip
        keys, silos, self.target = config.spcacw, federation.num_silos, federation.target
        self.config, self.bias, self.num_silos = config, bias, silos
        self.eta = config.training.eta
        diagnostics = keys.diagnostics and silos <= LOGGED
        self.evidence: Evidence | None = None
        if diagnostics or evidence:
            self.evidence = Evidence(silos, self.target)
        self.regret: RegretMeter | None = None
        if diagnostics:
            self.regret = RegretMeter(silos, self.eta, bound, every)
        self.last: tuple[Matrix, Vector, Vector]
        """Last round's GGᵀ (M, M), βᵢ (M,; 0 without a report), and (1/p − 1)‖gᵢ‖² (M,)."""
        self._costs: list[float] = []
        self.silent = np.ones(silos, dtype=np.int64)
        """(M,) how many of its last questions each silo left unanswered; 1 if never asked."""
        self._last: Tensor | None = None  # (M, d), each silo's last gradient, if some are not asked
        if config.training.participation < 1 or keys.probe < 1:
            self._last = torch.zeros_like(bias.estimate)

    @property
    def known(self) -> NDArray[np.bool_]:
        """(M,) which silos may have weight: those that reported twice, or in every round."""
        reports = self.bias.reports
        return (reports > 1) | (reports == reports[self.target])

    def matrix(
        self, rows: Tensor, silos: tuple[int, ...], silent: Sequence[int], smoothness: float, *,
        counts: bool,
    ) -> tuple[Matrix, float]:  # fmt: skip
        """Return H_t (M, M) and the largest √E‖g̃‖² in it.

        ``rows`` are the gradients of ``silos``, (k, d) or (k, sketch); ``silent`` were asked and
        did not answer. ``counts`` says whether the round enters the sum (t ≥ T_start). A silo that
        is not :attr:`known` yet has the row of the target, as if it were a copy of the target.
        """
        biases, products = self._products(rows, list(silos), silent)
        sampling = (1.0 / self.config.training.participation - 1.0) * products.diagonal()
        sampling[self.target] = 0.0
        betas = np.zeros(self.num_silos)
        betas[list(silos)] = self.bias.rates(silos)
        self.last = products, betas, sampling
        if self.evidence:
            differing = differences(products, silos, self.target)
            self.evidence.noise.update(biases, differing, betas)
            if counts:
                self.evidence.add(sampling)
        level = self.bias.level()
        if (level != 1.0).any():
            biases = np.outer(level, level) * biases
        matrix = cost_matrix(biases, products, self.eta, smoothness)
        matrix[np.diag_indices_from(matrix)] += self.eta * smoothness * sampling
        if not (known := self.known).all():
            as_of = np.where(known, np.arange(self.num_silos), self.target)
            matrix = matrix[np.ix_(as_of, as_of)]
        return matrix, math.sqrt((products.diagonal() + sampling).max())

    def _products(
        self, rows: Tensor, silos: list[int], silent: Sequence[int]
    ) -> tuple[Matrix, Matrix]:
        """Return B̂B̂ᵀ and GGᵀ, (M, M); G has a row for each silo, whether it reported or not.

        A silo that was not asked keeps its last gradient, with the silo's own noise. A silo that
        was asked and is silent must not look like a free gradient of norm 0, nor like a silo that
        still answers. Otherwise weight would flow to dead silos. Until it reports again, its row is
        g_0 + b̂_i: this has all of the target's noise, so it promises no variance reduction.
        """
        bias = self.bias
        self.silent[silent] += 1
        self.silent[silos] = 0
        if len(silos) < self.num_silos or self._last is not None:
            absent = np.setdiff1d(np.arange(self.num_silos), silos)
            every, predicted = self._last, absent
            if every is None:
                every = rows.new_empty(bias.estimate.shape)
            else:
                predicted = absent[self.silent[absent] > 0]
            every[silos] = rows
            own, level = every[self.target], bias.level()
            for silo in predicted:  # row by row, which needs memory for one row
                torch.add(own, bias.estimate[silo], alpha=level[silo], out=every[silo])
            rows = every
        low = self.config.run.precision == BF16
        biases, products = grams(bias.estimate, rows, low=low)
        return biases, products

    def note(self, matrix: Matrix, alpha: Weights, smoothness: float, norm: float | None) -> None:
        """Record the cost of the weights that were played; ``norm`` is None before T_start.

        The regret covers only rounds from T_start on.
        """
        self._costs.append(cost(alpha, matrix))
        if self.regret and norm is not None:
            self.regret.add(matrix, alpha, smoothness=smoothness, gradient_norm=norm)

    def report(self) -> dict[str, float]:
        """Return the mean of L̂_t(α_{t−1}) since the last report, and the regret so far."""
        mean = math.fsum(self._costs) / max(1, len(self._costs))
        self._costs.clear()
        return {"cost": mean} | (self.regret.report() if self.regret else {})
