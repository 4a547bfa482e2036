"""Synthetic silos: a target's cluster I₀ of n₀ silos, and an off-target cluster of known bias.

The paper's section "Illustrative Case Study: Pure Clusters": b^{(i)} = 0 in I₀, b^{(i)} = b in
I_off, and one σ for all. Silos 0…n₀−1 are I₀; silo 0 is the target. What silo i answers at w in
round t is ∇f^{(i)}(w) + noise, the noise a pure function of (seed, silo, round, draw), so that all
methods see the same noise. Methods see these problems through :class:`Pool`.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.silos.pool import Gradients
from spcacw_flwr.silos.protocol import Answers, Replies, Request, SiloInfo

Array = NDArray[np.float64]
BLOCK = 256
"""Rounds whose random numbers are drawn at once: a generator for each round would cost more."""
NOISE, SAMPLES, DATA = 101, 102, 103
"""Purposes of random streams, apart from those of the core."""


class Problem(Protocol):
    """What a study knows about a problem.

    A method is told L and a step size that is made of these constants; FC also n₀ or Δ, and the
    Oracle I₀.
    """

    @property
    def own(self) -> int:
        """n₀, the silos of the target's cluster."""

    @property
    def off(self) -> int:
        """The silos of the off-target cluster."""

    @property
    def start(self) -> Array:
        """w₁, (d,)."""

    @property
    def smoothness(self) -> float:
        """L of f^{(0)}."""

    @property
    def variance(self) -> float:
        """σ² = E‖g − ∇f‖² of each silo (at w₁, where it depends on w)."""

    @property
    def gap(self) -> float:
        """δ₁ = f^{(0)}(w₁) − min f^{(0)}."""

    def gradient(self, point: Array) -> Array:
        """Return ∇f^{(0)}(w), (d,), exactly."""

    def bias(self, point: Array, round_: int) -> Array:
        """Return b_t(w) = ∇f^{(off)}(w) − ∇f^{(0)}(w), (d,), exactly."""

    def answers(self, seed: int, point: Array, round_: int, draw: int) -> Array:
        """Return the gradients (M, d) that the silos compute in round t at w."""


class Pool:
    """A problem's silos, as the loop of :mod:`spcacw_flwr.engine.loop` asks them."""

    def __init__(self, problem: Problem, config: Config) -> None:
        self.problem, self.config = problem, config
        self.silos = tuple(range(problem.own + problem.off))

    def describe(self) -> tuple[SiloInfo, ...]:
        """Return what silos tell of themselves: one size, and the true cluster for the Oracle."""
        size, own = self.config.training.batch_size, self.problem.own
        cluster = tuple(range(own))
        return tuple(
            SiloInfo(i, size, (size,), float(i >= own), cluster if i < own else ())
            for i in self.silos
        )

    def answer(self, request: Request) -> Answers:
        """Return the gradients of some silos at one model (d,); losses are not made up: zeros."""
        found = self.gradients(request.points, request.round, request.silos, request.draw)
        return Answers(Replies(request.silos, found.rows, found.losses), norms=found.norms)

    def gradients(
        self, points: Tensor, round_: int, silos: tuple[int, ...], draw: int = 0
    ) -> Gradients:
        """Return the gradients of some silos at one model (d,); losses are not made up: zeros."""
        point = points.numpy().astype(np.float64)
        rows = self.problem.answers(self.config.run.seed, point, round_, draw)
        if len(silos) < len(self.silos):
            rows = rows[list(silos)]
        found = torch.from_numpy(rows.astype(np.float32))
        return Gradients(found, found.new_zeros(len(found)), torch.linalg.vector_norm(found, dim=1))
