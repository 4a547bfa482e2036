"""Logistic regression on silos that draw samples: the noise is what a mini-batch makes it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from .problems import BLOCK, DATA, SAMPLES, Array


@lru_cache(maxsize=4)
def _indices(
    seed: int, draw: int, block: int, silos: int, samples: int, batch: int
) -> NDArray[np.int64]:
    streams = (np.random.default_rng((SAMPLES, seed, i, draw, block)) for i in range(silos))
    return np.stack([rng.integers(samples, size=(BLOCK, batch)) for rng in streams], axis=1)


@dataclass(frozen=True)
class Logistic:
    """Logistic regression; D⁽⁰⁾ is uniform on N fixed samples, so that ∇f⁽⁰⁾ is exact.

    x ~ N(0, I), y = ±1 with P(y = 1) = s(4 xᵀu), u a unit vector; the off-target silos draw from
    the same x with labels of a u that is turned by ``angle``. As x is shared, b is the mean of
    ½(y⁽⁰⁾ − y⁽ᵒᶠᶠ⁾)x and stationary. The noise is not: it falls in I₀ as w nears the minimum, and
    grows in the other cluster. Each silo draws ``batch`` samples a round with replacement.
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
        """y x for each of both clusters and N samples, (2, N, d)."""
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
        mean: Array = -(x.T @ (1 / (1 + np.exp(x @ point)))) / len(x)
        return mean

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
        rows: Array = -np.einsum("mb,mbd->md", weights, x) / self.batch
        return rows
