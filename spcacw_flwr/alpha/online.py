"""Two standard methods of online convex optimisation on the simplex, for comparison.

Both use only the gradient ∇ₜ = 2Hₜxₜ of a round. With new weights every K rounds, the rounds since
the last update are one block. The cost of a block is the sum of their costs, and its gradient is
the sum of their gradients at the one point played in all of them.

``ons``, the online Newton step (E. Hazan, A. Agarwal and S. Kale, Logarithmic regret algorithms for
online convex optimization, Machine Learning 69, 2007): with Aₜ = εI + Σ ∇∇ᵀ over rounds up to t,

    xₜ₊₁ = Π(xₜ − (1/β) Aₜ⁻¹ ∇ₜ),   Π the projection in the norm of Aₜ,   ε = 1/(β²D²).

The authors bound its regret by 5 (1/γ + GD) M log T.

``eg``, exponentiated gradient (J. Kivinen and M. K. Warmuth, Exponentiated gradient versus gradient
descent for linear predictors, Information and Computation 132, 1997): xₜ₊₁ ∝ xₜ exp(−η∇ₜ), entry by
entry, from x₁ uniform. Here it uses the sum of all gradients, and a step that needs no horizon and
no bound:

    xₜ₊₁ ∝ exp(−ηₜ Σ_{τ≤t} ∇_τ),   ηₜ = √(ln M / Σ_{τ≤t} r_τ²),   r = ½ (max ∇ − min ∇),

If η is constant, this is the rule above. If η falls, this form ("lazy", or dual averaging) keeps a
regret bound, and the recursive form may not: F. Orabona and D. Pál, Scale-free online learning,
Theoretical Computer Science 716, 2018. r is the least ‖∇ − c1‖∞ over c: because α sums to 1, an
amount common to all entries of ∇ must not slow the learner down.

Its regret is at most ((1 + √2) √ln M + 2 / (1 − 1/√2)) √(Σ_{τ≤T} r_τ²): by S. de Rooij, T. van
Erven, P. Grünwald and W. Koolen, Follow the leader if you can, hedge if you must, JMLR 15, 2014, it
is at most ln M / η_T plus a sum of min{ηₜ₋₁ rₜ²/2, 2rₜ}. If rₜ² ≤ Σ_{τ<t} r_τ², the first of both
is at most √(ln M / 2) rₜ² / √(Σ_{τ≤t} r_τ²). Otherwise Σ r_τ² at least doubles.
"""

import math

import numpy as np

from spcacw_flwr.alpha.learners import DIAMETER, Learner, ftal_beta
from spcacw_flwr.alpha.solver import Matrix, Solution, Vector, minimise


class OnlineNewtonStep(Learner):
    """ONS: a step and its projection are one quadratic problem, and no Aₜ⁻¹ is needed.

    The projection minimises ½(x − y)ᵀβAₜ(x − y) over the simplex, at y = xₜ − (βAₜ)⁻¹∇ₜ. This is

        ∇ₜᵀ(x − xₜ) + ½(x − xₜ)ᵀ βAₜ (x − xₜ)

    up to a constant. ``metric`` is βAₜ (M, M). In this scale β may differ between rounds (through
    L and a measured g_max): each round adds βₜ∇ₜ∇ₜᵀ, and the regret proof still holds. The part
    1/(βD²) · I of the metric uses the smallest β so far. With one β this is the published
    algorithm. The first point is the first one played.

    Because Σ∇ (Σ∇)ᵀ ≼ (Σ 1/γₜ) Σ γₜ∇∇ᵀ, a block's 1/γ is the sum of its rounds' 1/γ. Its G and
    its 1/β are the sums of theirs too (1/β is K/β for equal ones).
    """

    def begin(self, num_silos: int) -> None:
        """Start uniform, with a metric of 0."""
        self.metric = np.zeros((num_silos, num_silos))
        self.point = np.full(num_silos, 1.0 / num_silos)
        self._regular = 0.0  # the multiple of I in the metric
        self._slope = np.zeros(num_silos)  # ∇ of the block
        self._inverse_beta = 0.0  # 1/β of the block; 0 while it has no cost

    def add(
        self, H_t: Matrix, alpha_played: Vector, *,
        smoothness: float, gradient_norm: float | None = None,
    ) -> None:  # fmt: skip
        """Add ∇ₜ = 2Hₜxₜ to the block; ValueError if g_max is unknown."""
        self.gradients.see(gradient_norm)
        self.point = alpha_played.copy()
        slope = 2.0 * (H_t @ alpha_played)
        if slope.any():
            self._inverse_beta += 1.0 / ftal_beta(self.eta, smoothness, self.gradients.value)
            self._slope += slope

    def minimise(self, start: Vector | None, cubic: float = 0.0) -> Solution:
        """Take one step from the point played; stay at ``start`` if no cost was added since.

        The gap is that of the step's quadratic problem. ValueError if ``cubic`` is not 0.
        """
        if cubic:
            raise ValueError(f"The online Newton step has no cubic term: not {cubic}, but 0.")
        if self._inverse_beta == 0.0:
            return Solution(self.point if start is None else start, 0.0, 0)
        regular = max(self._regular, self._inverse_beta / DIAMETER**2)
        self.metric[np.diag_indices_from(self.metric)] += regular - self._regular
        self.metric += np.outer(self._slope, self._slope) / self._inverse_beta
        linear = self._slope - self.metric @ self.point
        solution = minimise(0.5 * self.metric, linear=linear, start=self.point)
        self.point, self._regular = solution.alpha, regular
        self._slope, self._inverse_beta = np.zeros_like(self._slope), 0.0
        return solution


class ExponentiatedGradient(Learner):
    """EG in the log domain: nothing overflows, and a weight is 0 only if it underflows.

    It starts from its own uniform point, because α₀ = e₀ has zeros and a product leaves them 0.
    The gradient is taken at the weights in use. Before the first update these are α₀, which costs
    at most 2r of that block. Each block has one r, so a larger K gives fewer and longer steps.
    """

    def begin(self, num_silos: int) -> None:
        """Start uniform."""
        self.total = np.zeros(num_silos)  # Σ ∇ of the blocks that are complete
        self._slope = np.zeros(num_silos)  # ∇ of the block
        self._spread = 0.0  # √Σ r²

    def add(
        self, H_t: Matrix, alpha_played: Vector, *,
        smoothness: float = 0.0, gradient_norm: float | None = None,
    ) -> None:  # fmt: skip
        """Add ∇ₜ = 2Hₜxₜ to the block; L and g_max are not needed."""
        self._slope += 2.0 * (H_t @ alpha_played)

    def minimise(self, start: Vector | None, cubic: float = 0.0) -> Solution:
        """Close the block and return the point after it; ValueError if ``cubic`` is not 0."""
        if cubic:
            raise ValueError(f"Exponentiated gradient has no cubic term: not {cubic}, but 0.")
        self._spread = math.hypot(self._spread, 0.5 * float(np.ptp(self._slope)))
        self.total += self._slope
        self._slope = np.zeros_like(self._slope)
        logits = self.total.min() - self.total  # the best is 0
        if self._spread > 0.0:
            logits *= math.sqrt(math.log(logits.size)) / self._spread
        weights = np.exp(logits)
        return Solution(weights / weights.sum(), 0.0, 0)
