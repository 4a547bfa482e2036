"""What an online learner of α is (paper, Algorithm 1, line 9).

``ftl`` is its practical objective, ``ftal`` the algorithm as published
(:mod:`spcacw_flwr.alpha.leaders`). For comparison there are two standard methods of online convex
optimisation: ``ons`` (:mod:`spcacw_flwr.alpha.newton`), of the same paper and the same order of
regret as FTAL, and ``eg`` (:mod:`spcacw_flwr.alpha.exponentiated`). The key ``solver`` names one of
them, or a class of the user's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.alpha.solver import Solution


class Learner(ABC):
    """A learner of M weights on the simplex.

    Parameters
    ----------
    num_silos : int
        M.
    eta : float
        Step size η.
    gradient_bound : float or None
        g_max: the clipping norm where gradients are clipped. None: the largest ``gradient_norm``
        passed to :meth:`add` so far.
    retention : float
        ρ: what is left of the sum of costs when a round is added.

    Raises
    ------
    ValueError
        For a retention outside (0, 1], or ρ < 1 where there is no sum of costs that could fade.
    """

    exact: ClassVar[bool] = False
    """Whether it minimises a sum of costs. Only then can rounds fade, and λ_reg enter."""

    def __init__(
        self, num_silos: int, eta: float = 0.0, gradient_bound: float | None = None,
        retention: float = 1.0,
    ) -> None:  # fmt: skip
        if not 0.0 < retention <= 1.0:
            raise ValueError(f"The retention must lie in (0, 1], not {retention}.")
        if retention < 1.0 and not self.exact:
            raise ValueError(f"{type(self).__name__} needs retention 1, not {retention}.")
        self.retention = retention

    @abstractmethod
    def add(
        self, H_t: NDArray[np.float64], alpha_played: NDArray[np.float64], *,
        smoothness: float, gradient_norm: float | None = None,
    ) -> None:  # fmt: skip
        """Fold in one round: its cost matrix (M, M) and the weights (M,) that were used in it."""

    @abstractmethod
    def minimise(self, start: NDArray[np.float64] | None, cubic: float = 0.0) -> Solution:
        """Weights for the next round; λ_reg = ``cubic`` enters once, not once a round."""
