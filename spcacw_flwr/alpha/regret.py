"""The regret of the weights that were played, beside the bound of the theory.

Paper, section "Overcoming Uncertainty via Regret Minimization": R_T = Σ L̂ₜ(αₜ) − min_α Σ L̂ₜ(α)
and the theorem on FTAL, 64 (1/γ + GD) M (1 + log T).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.alpha.cost import cost
from spcacw_flwr.alpha.leaders import DIAMETER, LargestGradient, exp_concavity, gradient_bound
from spcacw_flwr.alpha.solver import minimise

T = TypeVar("T", float, NDArray[np.float64])


@dataclass(frozen=True)
class Regret:
    """What :meth:`RegretMeter.report` says, in the units of the cost.

    ``played`` is Σ L̂ₜ(αₜ); ``best`` is min_α Σ L̂ₜ(α), attained by ``alpha`` (M,) and larger than
    the true minimum by no more than ``gap``; ``bound`` is the theorem's for this many ``rounds``.
    """

    rounds: int
    played: float
    best: float
    alpha: NDArray[np.float64]
    gap: float
    bound: float

    @property
    def regret(self) -> float:
        """R_T = played − best, from below up to ``gap``."""
        return self.played - self.best


class _Sum(Generic[T]):
    """A running sum that carries its rounding error along (Knuth's two-sum), entry by entry."""

    def __init__(self, zero: T) -> None:
        self.high: T = zero
        self.low: T = zero

    def add(self, x: T) -> None:
        total = self.high + x
        old = total - x
        self.low = self.low + ((self.high - old) + (x - (total - old)))
        self.high = total

    @property
    def value(self) -> T:
        return self.high + self.low


class RegretMeter:
    """Measures R_T, from O(M²) numbers.

    Regret is a small difference of long sums: they carry their rounding errors along, so that R_T
    is right to a few ε of the sums, not T ε.

    The theorem speaks of one γ and G. Here they change with L, and with g_max where it is
    measured: the bound takes the largest 1/γ and G seen. It is FTAL's with new weights in every
    round. With new weights every K = ``every`` rounds it is applied to the T/K blocks, of which
    each has K times the G and 1/γ of a round.

    Parameters
    ----------
    num_silos : int
        M.
    eta : float
        Step size η.
    gradient_bound : float or None
        g_max; with None, the largest ``gradient_norm`` passed to :meth:`add` so far.
    every : int
        K.

    Raises
    ------
    ValueError
        For a bound that is not positive and finite, or K < 1.
    """

    def __init__(
        self, num_silos: int, eta: float, gradient_bound: float | None = None, every: int = 1
    ) -> None:
        if every < 1:
            raise ValueError(f"There must be at least 1 round between updates, not {every}.")
        self.eta = eta
        self.every = every
        self.gradients = LargestGradient(gradient_bound)
        self.rounds = 0
        self._played = _Sum(0.0)
        self._total = _Sum(np.zeros((num_silos, num_silos)))
        self._constant = 0.0  # largest 1/γ + GD

    def add(
        self,
        H_t: NDArray[np.float64],
        alpha_played: NDArray[np.float64],
        smoothness: float,
        gradient_norm: float | None = None,
    ) -> None:
        """Fold in one round, as for a learner; ValueError if it has a cost and g_max is unknown."""
        self.gradients.see(gradient_norm)
        self.rounds += 1
        if not H_t.any():
            return
        self._played.add(cost(alpha_played, H_t))
        self._total.add(H_t)
        known = self.eta, smoothness, self.gradients.value
        constant = 1.0 / exp_concavity(*known) + gradient_bound(*known) * DIAMETER
        self._constant = max(self._constant, constant)

    def report(self) -> Regret:
        """Return costs, regret and bound of the rounds so far; one solve of the α problem."""
        total = self._total.value
        found = minimise(total)
        blocks = math.ceil(self.rounds / self.every)
        growth = 1.0 + math.log(max(1, blocks))
        return Regret(
            rounds=self.rounds,
            played=self._played.value,
            best=cost(found.alpha, total),
            alpha=found.alpha,
            gap=found.gap,
            bound=64.0 * self.every * self._constant * len(total) * growth,
        )
