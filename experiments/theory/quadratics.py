"""Quadratic silos with Gaussian noise: every assumption of the lemmas holds, or fails by choice."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from .problems import BLOCK, NOISE, Array


@lru_cache(maxsize=4)
def _normal(seed: int, draw: int, block: int, silos: int, dimension: int) -> NDArray[np.float32]:
    streams = (np.random.default_rng((NOISE, seed, i, draw, block)) for i in range(silos))
    each = [rng.standard_normal((BLOCK, dimension), dtype=np.float32) for rng in streams]
    return np.stack(each, axis=1)


@dataclass(frozen=True)
class Quadratics:
    """f^{(i)}(w) = ½(w − c_i)ᵀA_i(w − c_i) with c₀ = 0 and Gaussian noise of total variance σ².

    In the basis of A, which changes nothing: methods see inner products, and the noise has no
    direction. The eigenvalues of A fall evenly from L to L/2.

    With one A for all, b = −A c_off is constant in w: the stationary bias of the paper's lemmas.
    Otherwise b moves: with w where A_off is another matrix, or because it appears in some round.
    """

    own: int = 8
    off: int = 8
    noise: float = 10.0
    """σ²."""
    distance: float = 1.0
    """‖b‖ (at w = c₀ where it moves with w): the separation Δ of the clusters' gradients."""
    gap: float = 1.0
    dimension: int = 20
    smoothness: float = 1.0
    stretch: float = 0.0
    """A_off = (1 + stretch) A, so that b = b(c₀) + stretch · A (w − c₀)."""
    onset: int = 0
    """The round before which b = 0."""

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
        """w₁: each coordinate adds as much to δ₁."""
        start: Array = np.sqrt(2 * self.gap / self.dimension / self.spectrum)
        return start

    def gradient(self, point: Array) -> Array:
        """Return A w."""
        return self.spectrum * point

    def bias(self, point: Array, round_: int) -> Array:
        """Return b_t(w); b(c₀) has all coordinates alike."""
        if round_ < self.onset:
            return np.zeros(self.dimension)
        return self.distance / np.sqrt(self.dimension) + self.stretch * self.gradient(point)

    def answers(self, seed: int, point: Array, round_: int, draw: int) -> Array:
        """Return the silos' gradients."""
        block, place = divmod(round_, BLOCK)
        unit = _normal(seed, draw, block, self.own + self.off, self.dimension)[place]
        rows = self.gradient(point) + np.sqrt(self.noise / self.dimension) * unit
        rows[self.own :] += self.bias(point, round_)
        return rows
