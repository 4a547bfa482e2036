"""Synthetic silos: a target's cluster I₀ of n₀ silos, and an off-target cluster of known bias.

The paper's section "Illustrative Case Study: Pure Clusters": b^{(i)} = 0 in I₀, b^{(i)} = b in
I_off, and one σ for all. Silos 0…n₀−1 are I₀; silo 0 is the target. At w in round t silo i answers
∇f^{(i)}(w) + noise. The noise is a pure function of (seed, silo, round, draw), so all methods get
the same noise. Methods see these problems through :class:`Pool`.

:class:`Quadratics` have Gaussian noise: every assumption of the lemmas holds, or fails by choice.
The silos of :class:`Logistic` draw samples: the noise is that of a mini-batch. Both classes have
the constants of a study: ``own`` (n₀) and ``off``, the silos of each cluster; ``start``, w₁ (d,);
``smoothness``, L of f^{(0)}; ``variance``, σ² = E‖g − ∇f‖² of each silo (at w₁, if it depends on
w); ``gap``, δ₁ = f^{(0)}(w₁) − min f^{(0)}; ``gradient``, ∇f^{(0)}(w) (d,); ``bias``,
∇f^{(off)}(w) − ∇f^{(0)}(w) (d,); and ``answers``, the gradients (M, d) that the silos compute in a
round. A method gets L and a step size made of these constants. FC also gets n₀ or Δ, and the Oracle
gets I₀.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from spcacw_flwr.config.config import Config
from spcacw_flwr.silos.protocol import Answers, Replies, Request, SiloInfo

Array = NDArray[np.float64]
BLOCK = 256
"""Random numbers of so many rounds are drawn at once: a generator per round would cost more."""
NOISE, SAMPLES, DATA = 101, 102, 103
"""Purposes of random streams, different from those of the core."""


class Pool:
    """A problem's silos, in the form that :mod:`spcacw_flwr.engine.loop` asks."""

    def __init__(self, problem: Problem, config: Config) -> None:
        self.problem, self.config = problem, config
        self.silos = tuple(range(problem.own + problem.off))

    def describe(self) -> tuple[SiloInfo, ...]:
        """Return the silos' descriptions: one size for all, and the true cluster for the Oracle."""
        size, own = self.config.training.batch_size, self.problem.own
        cluster = tuple(range(own))
        return tuple(
            SiloInfo(i, size, (size,), float(i >= own), cluster if i < own else ())
            for i in self.silos
        )

    def answer(self, request: Request) -> Answers:
        """Return the gradients of some silos at one model (d,); losses are zeros."""
        point, silos = request.points.numpy().astype(np.float64), request.silos
        rows = self.problem.answers(self.config.run.seed, point, request.round, request.draw)
        found = torch.from_numpy(rows[list(silos)].astype(np.float32))
        norms = torch.linalg.vector_norm(found, dim=1)
        return Answers(Replies(silos, found, found.new_zeros(len(found))), norms=norms)


@lru_cache(maxsize=4)
def _normal(seed: int, draw: int, block: int, silos: int, dimension: int) -> NDArray[np.float32]:
    streams = (np.random.default_rng((NOISE, seed, i, draw, block)) for i in range(silos))
    each = [rng.standard_normal((BLOCK, dimension), dtype=np.float32) for rng in streams]
    return np.stack(each, axis=1)


@dataclass(frozen=True)
class Quadratics:
    """f^{(i)}(w) = ½(w − c_i)ᵀA_i(w − c_i) with c₀ = 0 and Gaussian noise of total variance σ².

    All is in the basis of A. This changes nothing: methods see inner products, and the noise has no
    direction. The eigenvalues of A fall evenly from L to L/2.

    With one A for all, b = −A c_off is constant in w: the stationary bias of the paper's lemmas.
    Otherwise b moves: with w if A_off is another matrix, or because it appears in some round.
    """

    own: int = 8
    off: int = 8
    noise: float = 10.0
    """σ²."""
    distance: float = 1.0
    """‖b‖ (at w = c₀ if it moves with w): the separation Δ of the clusters' gradients."""
    gap: float = 1.0
    dimension: int = 20
    smoothness: float = 1.0
    stretch: float = 0.0
    """A_off = (1 + stretch) A, so that b = b(c₀) + stretch · A (w − c₀)."""
    onset: int = 0
    """The round before which b = 0."""
    noises: tuple[float, ...] = ()
    """σᵢ² of each silo as a multiple of σ²; () is 1 for all."""
    shifts: tuple[float, ...] = ()
    """‖bᵢ‖ of each silo as a multiple of Δ, each in its own direction; () is one b for all
    off-target silos."""

    @property
    def variance(self) -> float:
        """σ²."""
        return self.noise

    @cached_property
    def spectrum(self) -> Array:
        """The eigenvalues of A, (d,)."""
        return self.smoothness * np.linspace(1.0, 0.5, self.dimension)

    @cached_property
    def start(self) -> Array:
        """w₁: each coordinate adds the same amount to δ₁."""
        return np.sqrt(2 * self.gap / self.dimension / self.spectrum)

    @cached_property
    def variances(self) -> Array:
        """σᵢ², (M,)."""
        return self.noise * np.array(self.noises or (1.0,) * (self.own + self.off))

    @cached_property
    def turns(self) -> Array:
        """The factors that turn b into the silos' bᵢ, entry by entry: (M, d) or (M, 1)."""
        silos = range(self.own + self.off)
        if not self.shifts:
            return np.array([[float(i >= self.own)] for i in silos])
        signs = [np.random.default_rng((DATA, i)).choice((-1, 1), self.dimension) for i in silos]
        return np.array(self.shifts)[:, None] * np.array(signs)

    def biases(self, point: Array, round_: int) -> Array:
        """Return bᵢ of all silos, (M, d)."""
        return self.turns * self.bias(point, round_)

    def gradient(self, point: Array) -> Array:
        """Return A w."""
        return self.spectrum * point

    def bias(self, point: Array, round_: int) -> Array:
        """Return b_t(w); all coordinates of b(c₀) are equal."""
        if round_ < self.onset:
            return np.zeros(self.dimension)
        return self.distance / np.sqrt(self.dimension) + self.stretch * self.gradient(point)

    def answers(self, seed: int, point: Array, round_: int, draw: int) -> Array:
        """Return the silos' gradients."""
        block, place = divmod(round_, BLOCK)
        unit = _normal(seed, draw, block, self.own + self.off, self.dimension)[place]
        noise = np.sqrt(self.variances / self.dimension)[:, None] * unit
        return self.gradient(point) + noise + self.biases(point, round_)


@lru_cache(maxsize=4)
def _indices(
    seed: int, draw: int, block: int, silos: int, samples: int, batch: int
) -> NDArray[np.int64]:
    streams = (np.random.default_rng((SAMPLES, seed, i, draw, block)) for i in range(silos))
    return np.stack([rng.integers(samples, size=(BLOCK, batch)) for rng in streams], axis=1)


@dataclass(frozen=True)
class Logistic:
    """Logistic regression; D⁽⁰⁾ is uniform on N fixed samples, so ∇f⁽⁰⁾ is exact.

    x ~ N(0, I), y = ±1 with P(y = 1) = s(4 xᵀu), u a unit vector. The off-target silos draw from
    the same x, with labels of a u that is turned by ``angle``. Because x is shared, b is the mean
    of ½(y⁽⁰⁾ − y⁽ᵒᶠᶠ⁾)x and stationary. The noise is not: as w nears the minimum, it falls in I₀
    and grows in the other cluster. Each silo draws ``batch`` samples a round with replacement.
    """

    own: int = 8
    off: int = 8
    angle: float = 90.0
    """Degrees."""
    batch: int = 1
    dimension: int = 10
    samples: int = 1024

    @cached_property
    def data(self) -> Array:
        """y x for each of the two clusters and N samples, (2, N, d)."""
        rng = np.random.default_rng(DATA)
        x = rng.standard_normal((self.samples, self.dimension))
        turn, chance = np.radians(self.angle), rng.random(self.samples)
        true = np.zeros((2, self.dimension))
        true[0, 0] = 4.0
        true[1, :2] = 4.0 * np.cos(turn), 4.0 * np.sin(turn)
        labels = np.where(chance < 1 / (1 + np.exp(-true @ x.T)), 1.0, -1.0)
        return labels[:, :, None] * x

    @property
    def start(self) -> Array:
        """w₁ = 0."""
        return np.zeros(self.dimension)

    @cached_property
    def smoothness(self) -> float:
        """L = λ_max(XᵀX/N)/4, since s' ≤ ¼."""
        x = self.data[0]
        return float(np.linalg.eigvalsh(x.T @ x / self.samples)[-1] / 4)

    @cached_property
    def variance(self) -> float:
        """σ² at w₁."""
        each = -0.5 * self.data[0]
        return float(np.square(each - each.mean(axis=0)).sum(axis=1).mean() / self.batch)

    @cached_property
    def gap(self) -> float:
        """δ₁, from Newton's method."""
        x, w = self.data[0], self.start
        for _ in range(50):
            p = 1 / (1 + np.exp(x @ w))
            w = w + np.linalg.solve((x * (p * (1 - p))[:, None]).T @ x, x.T @ p)
        return float(np.log(2) - np.logaddexp(0, -x @ w).mean())

    def _mean(self, x: Array, point: Array) -> Array:
        return -(x.T @ (1 / (1 + np.exp(x @ point)))) / len(x)

    def gradient(self, point: Array) -> Array:
        """Return ∇f⁽⁰⁾(w)."""
        return self._mean(self.data[0], point)

    def bias(self, point: Array, round_: int) -> Array:
        """Return b(w)."""
        return self._mean(self.data[1], point) - self._mean(self.data[0], point)

    def answers(self, seed: int, point: Array, round_: int, draw: int) -> Array:
        """Return the silos' mini-batch gradients."""
        block, place = divmod(round_, BLOCK)
        silos = self.own + self.off
        chosen = _indices(seed, draw, block, silos, self.samples, self.batch)[place]
        cluster = (np.arange(silos) >= self.own).astype(int)
        x = self.data[cluster[:, None], chosen]  # (M, batch, d)
        weights = 1 / (1 + np.exp(x @ point))
        return -np.einsum("mb,mbd->md", weights, x) / self.batch


Problem = Quadratics | Logistic
