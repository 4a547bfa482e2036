"""Exponentiated gradient on the simplex.

J. Kivinen and M. K. Warmuth, Exponentiated gradient versus gradient descent for linear predictors,
Information and Computation 132, 1997: xₜ₊₁ ∝ xₜ exp(−η∇ₜ), entry by entry, from x₁ uniform.
Written with all gradients at once, and with a step that needs no horizon and no bound,

    xₜ₊₁ ∝ exp(−ηₜ Σ_{τ≤t} ∇_τ),   ηₜ = √(ln M / Σ_{τ≤t} r_τ²),   r = ½ (max ∇ − min ∇),

which is the rule above if η is constant. For an η that falls, this form ("lazy", or dual
averaging) keeps a regret bound, the recursive one may not: F. Orabona and D. Pál, Scale-free online
learning, Theoretical Computer Science 716, 2018. r is the least ‖∇ − c1‖∞ over c: α sums to 1, so
that an amount common to all entries of ∇ must not slow the learner down.

Regret: by S. de Rooij, T. van Erven, P. Grünwald and W. Koolen, Follow the leader if you can, hedge
if you must, JMLR 15, 2014, it is at most ln M / η_T plus a sum of min{ηₜ₋₁ rₜ²/2, 2rₜ}. Where
rₜ² ≤ Σ_{τ<t} r_τ² the first is at most √(ln M / 2) rₜ² / √(Σ_{τ≤t} r_τ²); elsewhere the sum has at
least doubled. Adding up, the regret is at most ((1 + √2) √ln M + 2 / (1 − 1/√2)) √(Σ_{τ≤T} r_τ²).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.alpha.learners import Learner
from spcacw_flwr.alpha.solver import Solution


class ExponentiatedGradient(Learner):
    """EG, in the log domain: nothing overflows, and a weight is 0 only where it underflows.

    It starts from its own uniform point: α₀ = e₀ has zeros, which a product never leaves. The
    gradient is taken where the weights in use were; that they were α₀ before the first update
    costs at most 2r of that block.

    With new weights every K rounds, the rounds since the last are one block, whose gradient is
    their sum, and only blocks have an r. The larger K, the fewer and the longer the steps.
    """

    def __init__(
        self, num_silos: int, eta: float = 0.0, gradient_bound: float | None = None,
        retention: float = 1.0,
    ) -> None:  # fmt: skip
        super().__init__(num_silos, eta, gradient_bound, retention)
        self.total = np.zeros(num_silos)  # Σ ∇ of the blocks that are complete
        self._slope = np.zeros(num_silos)  # ∇ of the block
        self._spread = 0.0  # √Σ r²

    def add(
        self, H_t: NDArray[np.float64], alpha_played: NDArray[np.float64], *,
        smoothness: float = 0.0, gradient_norm: float | None = None,
    ) -> None:  # fmt: skip
        """Add ∇ₜ = 2Hₜxₜ to the block; L and g_max are not needed."""
        self._slope += 2.0 * (H_t @ alpha_played)

    def minimise(self, start: NDArray[np.float64] | None, cubic: float = 0.0) -> Solution:
        """Close the block and return the point after it, whatever ``start``; its gap is 0.

        Raises
        ------
        ValueError
            If ``cubic`` is not 0: the method sees gradients only.
        """
        if cubic:
            raise ValueError(f"Exponentiated gradient has no cubic term: not {cubic}, but 0.")
        self._spread = math.hypot(self._spread, 0.5 * float(np.ptp(self._slope)))
        self.total += self._slope
        self._slope = np.zeros_like(self._slope)
        logits = self.total.min() - self.total  # the best at 0
        if self._spread > 0.0:
            logits *= math.sqrt(math.log(logits.size)) / self._spread
        weights = np.exp(logits)
        return Solution(weights / weights.sum(), 0.0, 0)
