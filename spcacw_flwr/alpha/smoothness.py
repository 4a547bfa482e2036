"""The smoothness constant L, from Hessian-vector products of the target's loss.

Paper, appendix "Practical Algorithmic Details", item "Lipschitz Constant Estimation": power
iteration with the products of B. A. Pearlmutter, Fast exact multiplication by the Hessian, Neural
Computation 6, 1994. The caller supplies the products.

L is a worst case. To second order, a step costs the curvature along the step. For the noise of
mini-batches of covariance Σ this is tr(HΣ) (S. McCandlish et al., An empirical model of large-batch
training, arXiv 1812.06162), so tr(HΣ)/tr(Σ) takes L's place: docs/theory.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

NOT_FINITE = "A Hessian-vector product is not finite, so L cannot be estimated."


def spectral_norm(
    matvec: Callable[[Tensor], Tensor], start: Tensor, iterations: int, tolerance: float = 1e-3
) -> float:
    """Return the largest |eigenvalue| of a symmetric operator, by power iteration.

    The result is ‖Hv‖ for the last unit vector v, not the Rayleigh quotient vᵀHv. If +λ and −λ are
    both eigenvalues, v does not converge and vᵀHv can take any value between them, but ‖Hv‖ still
    grows to λ. ‖Hv‖ never decreases from one step to the next and never exceeds the true norm. It
    is 0.0 for the zero operator.

    ValueError if ``start`` is zero, a product or ``start`` is not finite, or ``iterations`` < 1.

    ``matvec`` is v ↦ Hv for tensors of the shape of ``start``; H symmetric, of any signature.
    ``start`` should not be orthogonal to the top eigenvector: draw it at random. There are at
    most ``iterations`` products, and fewer if ‖Hv‖ changes by less than ``tolerance`` of itself.
    """
    length = float(start.norm())
    if iterations < 1 or not 0.0 < length < math.inf:
        raise ValueError(
            "Power iteration needs a finite start that is not zero, and iterations >= 1."
        )
    vector, previous, norm = start / length, math.inf, 0.0
    for _ in range(iterations):
        product = matvec(vector)
        norm = float(product.norm())
        if not math.isfinite(norm):
            raise ValueError(NOT_FINITE)
        if norm == 0.0 or abs(norm - previous) < tolerance * norm:
            break
        vector, previous = product / norm, norm
    return norm


def noise_curvature(matvec: Callable[[Tensor], Tensor], noise: Tensor) -> float:
    """Return vᵀHv/‖v‖² for v = ``noise``, or 0 if that is negative or there is no noise.

    If v has mean 0 and covariance Σ, as the difference of two mini-batch gradients of one silo at
    one model has, the result estimates tr(HΣ)/tr(Σ), which is at most L. ``matvec`` is v ↦ Hv, H
    symmetric. ValueError if the product is not finite.
    """
    squared = float(noise @ noise)
    if squared == 0.0:
        return 0.0
    curvature = float(noise @ matvec(noise)) / squared
    if not math.isfinite(curvature):
        raise ValueError(NOT_FINITE)
    return max(0.0, curvature)


@dataclass
class Smoothed:
    """Exponential smoothing of a scalar over rounds: L ← decay · L + (1 − decay) · new.

    The paper estimates L "dynamically" without saying how estimates are combined; ``decay = 0``
    keeps only the newest. ``value`` is NaN until the first :meth:`update`, which sets it.
    """

    decay: float
    value: float = math.nan

    def update(self, x: float) -> None:
        """Add one estimate."""
        first = math.isnan(self.value)
        self.value = x if first else self.decay * self.value + (1.0 - self.decay) * x
