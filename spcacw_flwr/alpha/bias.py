"""Running estimate of every peer's gradient bias with respect to the target.

Paper, section "Estimating the Biases", Eq. (alg_single_est); Algorithm 1, lines 2 and 6.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spcacw_flwr.alpha.crew import shares, spread

SCHEDULES = ("constant", "harmonic")
NEGLIGIBLE, EVERY = 1e-30, 32
"""Entries below NEGLIGIBLE are set to 0, once in EVERY rounds.

A gradient entry can become exactly 0 (a dead unit, a pixel that stays black). Its estimate then
decays without end, and reaches the subnormal floats after some 800 rounds. Subnormal floats slow
down every product that contains them.
"""


class BiasTracker:
    """Bias estimates b̂, one row per silo, from the gradients of each round.

    Eq. (alg_single_est): b̂ᵢ ← (1 − βₜ) b̂ᵢ + βₜ (gᵢ − g₀), from b̂ = 0 (Algorithm 1, line 2). The
    constant schedule βₜ = β is the remark "Practical Adaptation via Constant Smoothing"; the
    harmonic schedule βₜ = 1/t is the sample mean of the cumulative bias-variance lemma.

    A silo's estimate changes only when the silo reports, and its t counts its own reports. With
    partial participation, the harmonic estimate therefore stays the mean of what was observed.
    (The paper is silent here. With a common t the estimate would shrink towards its start.)

    ``beta`` is β in (0, 1]; the harmonic schedule does not use it. ``target`` is the row of the
    target silo; its bias is 0 by definition. ValueError for a target, β or schedule outside its
    range.

    ``estimate`` is b̂, (M, d) float32; the target's row is exactly zero. ``reports`` (M,) counts
    how often each silo has reported.
    """

    def __init__(
        self, num_silos: int, dimension: int, *, target: int = 0, beta: float = 0.1,
        schedule: str = "constant", device: torch.device | str | None = None,
    ) -> None:  # fmt: skip
        if not 0 <= target < num_silos:
            raise ValueError(
                f"The target must be one of the silos 0 to {num_silos - 1}, not {target}."
            )
        if not 0.0 < beta <= 1.0:
            raise ValueError(f"The smoothing factor beta must lie in (0, 1], not {beta}.")
        if schedule not in SCHEDULES:
            raise ValueError(
                f"The schedule must be one of {', '.join(SCHEDULES)}, not {schedule!r}."
            )
        self.estimate = torch.zeros(num_silos, dimension, dtype=torch.float32, device=device)
        self.reports: NDArray[np.int64] = np.zeros(num_silos, dtype=np.int64)
        self.target, self.beta, self.schedule = target, beta, schedule

    def update(self, gradients: Tensor, silos: Sequence[int]) -> None:
        """Update b̂ with one round, in place: Algorithm 1, line 6.

        The form b̂ + β (g − b̂) − β g₀ needs no temporary array of shape (M, d). Its rounding is
        relative to β‖g‖, far below the noise of a mini-batch gradient. ValueError if a shape is
        wrong, or if the target did not report: every bias is relative to its gradient.

        ``gradients`` (k, d), of any floating type, are those of ``silos``, in ascending order.
        """
        shape = (len(silos), self.estimate.shape[1])
        if gradients.shape != shape:
            raise ValueError(f"Expected gradients {shape}, not {tuple(gradients.shape)}.")
        if self.target not in silos:
            raise ValueError(f"The target, silo {self.target}, must report in every round.")
        self.reports[list(silos)] += 1
        gradients = gradients.to(self.estimate.dtype)
        own = gradients[silos.index(self.target)]
        if len(silos) == len(self.estimate):
            spread(lambda rows: self._fold(rows, gradients[rows], own), shares(len(silos)))
        else:  # row by row uses views; indexing many rows would copy both matrices
            for row, silo in enumerate(silos):
                self._fold(slice(silo, silo + 1), gradients[row : row + 1], own)
        self.estimate[self.target] = 0.0  # a fused multiply-add may leave a rounding error
        if self.reports[self.target] % EVERY == 0:
            torch.hardshrink(self.estimate, NEGLIGIBLE, out=self.estimate)

    def rates(self, silos: Sequence[int]) -> NDArray[np.float64]:
        """Return βₜ, (k,), with which the last :meth:`update` moved the estimates of ``silos``."""
        if self.schedule == "constant":
            return np.full(len(silos), self.beta)
        return 1.0 / self.reports[list(silos)]

    def level(self) -> NDArray[np.float64]:
        """Return (M,) factors that correct each b̂ᵢ for rounds in which its silo did not report.

        b̂ starts at 0; after n reports it holds a share 1 − (1 − β)ⁿ of the bias. Uncorrected, few
        reports would look like less bias. The factor is 1 after reports in all rounds, or in none.
        """
        if self.schedule != "constant":
            return np.ones(len(self.reports))
        share = 1.0 - (1.0 - self.beta) ** self.reports
        return np.divide(share[self.target], share, out=np.ones_like(share), where=share > 0.0)

    def _fold(self, rows: slice, gradients: Tensor, own: Tensor) -> None:
        estimate = self.estimate[rows]
        if self.schedule == "constant":
            estimate.lerp_(gradients, self.beta).sub_(own, alpha=self.beta)
        else:
            betas = torch.from_numpy(1.0 / self.reports[rows]).to(estimate).unsqueeze(1)
            estimate.lerp_(gradients, betas).addcmul_(betas, own, value=-1.0)
