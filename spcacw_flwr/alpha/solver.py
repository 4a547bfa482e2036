"""The α solver, an exact walk over the faces of the simplex, and the projection onto the simplex.

Paper, Algorithm 1, line 9. The paper's appendix ("Practical Algorithmic Details", item "Numerical
Solver (PGD)") proposes projected gradient descent. The largest of the silos' gradients limits its
step, but the smallest decide the solution. If norms differ by orders of magnitude, the descent does
not arrive there. On a fixed support the problem is a small linear system, so a primal active-set
method solves it (J. Nocedal and S. J. Wright, Numerical Optimization, 2006, section 16.5), with
Newton's steps for the cubic term.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
_SIMPLEX_TOLERANCE = 1e-6  # for a start that was rounded to float32
_PROXIMAL_WEIGHTS = (1e-10, 1e-8, 1e-6)
_SMALLEST_SCALE = 1e-12
EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Solution:
    """Weights ``alpha`` (M,), their duality ``gap`` ≥ f(α) − min f, and the ``steps`` walked.

    The gap is in the units of H.
    """

    alpha: Vector
    gap: float
    steps: int


@dataclass(frozen=True)
class Objective:
    """f(α) = αᵀHα + cᵀα + λ Σ αᵢ³ over the simplex; H symmetric, positive semi-definite, λ ≥ 0.

    ``quadratic`` is H of shape (M, M), ``linear`` is c of shape (M,), ``cubic`` is λ.
    """

    quadratic: Matrix
    linear: Vector
    cubic: float

    def value(self, alpha: Vector) -> float:
        """f(α)."""
        smooth = alpha @ (self.quadratic @ alpha) + self.linear @ alpha
        return float(smooth + self.cubic * np.sum(alpha**3))

    def gradient(self, alpha: Vector) -> Vector:
        """∇f(α) = 2Hα + c + 3λα², with the square taken entry by entry."""
        slope = 2.0 * (self.quadratic @ alpha) + self.linear
        return slope + 3.0 * self.cubic * alpha**2 if self.cubic else slope

    def gap(self, alpha: Vector, gradient: Vector) -> float:
        """Frank–Wolfe duality gap ⟨∇f(α), α⟩ − minᵢ ∇f(α)ᵢ ≥ f(α) − min f, for α in the simplex.

        Jaggi, Revisiting Frank–Wolfe, ICML 2013. It is summed as Σ αᵢ (∇ᵢ − min ∇). All terms are
        non-negative, so nothing cancels.
        """
        return float(alpha @ (gradient - gradient.min()))

    def rounding(self, alpha: Vector) -> float:
        """Size of the rounding error of f and of the gap at α: M ε times f before cancellation.

        By Cauchy–Schwarz Σᵢⱼ αᵢ|Hᵢⱼ|αⱼ ≤ (Σ αᵢ √Hᵢᵢ)². Only silos with weight enter: a silo with
        huge gradients does not spoil the accuracy of a solution that leaves it out.
        """
        spread = float(alpha @ np.sqrt(np.abs(self.quadratic.diagonal()))) ** 2
        terms = spread + float(alpha @ np.abs(self.linear)) + self.cubic * float(np.sum(alpha**3))
        return alpha.size * EPSILON * terms


def minimise(
    H: Matrix, *, linear: Vector | None = None, cubic: float = 0.0, start: Vector | None = None
) -> Solution:
    """Minimise αᵀHα + cᵀα + λ Σ αᵢ³ over the simplex, Eq. (refined_objective).

    It ends where no face leads downhill by more than the rounding error of f. The problem is first
    divided by the power of two next to its largest coefficient. A common factor on H, c and λ thus
    does not change the result; a power of two changes no bit of it. Weights outside the support
    are exactly 0.0.

    ValueError if H is not square, a coefficient is not finite or of the wrong shape, λ < 0, or the
    start is not on the simplex.

    ``H`` (M, M) is positive semi-definite up to rounding, of any rank; its symmetric part is used.
    For an indefinite H, the answer would be a stationary point, and the gap no bound. ``linear`` is
    c, (M,); ``cubic`` is λ ≥ 0. ``start`` (M,) is the first point, uniform by default. If several
    points are optimal, it decides which is returned: with H = c = λ = 0, the start itself.
    """
    H = np.asarray(H, dtype=np.float64)
    if H.ndim != 2 or H.shape[0] != H.shape[1] or H.size == 0:
        raise ValueError(f"H must be a non-empty square matrix, not of shape {H.shape}.")
    c = np.zeros(len(H)) if linear is None else np.asarray(linear, dtype=np.float64)
    if c.shape != (len(H),):
        raise ValueError(f"The linear term must have shape {(len(H),)}, not {c.shape}.")
    if not (np.isfinite(H).all() and np.isfinite(c).all() and 0.0 <= cubic < math.inf):
        raise ValueError("H and the linear term must be finite, and cubic finite and >= 0.")
    exponent = math.frexp(max(np.abs(H).max(), np.abs(c).max(), cubic))[1]
    H, c, cubic = np.ldexp(H, -exponent), np.ldexp(c, -exponent), math.ldexp(cubic, -exponent)
    objective = Objective(0.5 * (H + H.T), c, cubic)
    alpha, steps = _walk(objective, _first_point(start, len(H)))
    gap = objective.gap(alpha, objective.gradient(alpha))
    return Solution(alpha, math.ldexp(gap, exponent), steps)


def _first_point(start: Vector | None, size: int) -> Vector:
    if start is None:
        return np.full(size, 1.0 / size)
    alpha = np.array(start, dtype=np.float64)
    on_simplex = alpha.shape == (size,) and (alpha >= 0.0).all()
    if not on_simplex or not abs(alpha.sum() - 1.0) <= _SIMPLEX_TOLERANCE:
        raise ValueError(f"The start must be {size} weights >= 0 that sum to 1.")
    return alpha / alpha.sum()


def _walk(objective: Objective, alpha: Vector) -> tuple[Vector, int]:
    """Walk downhill from face to face until no new silo would reduce f; count the steps.

    Every point on the way is feasible, and f does not rise beyond rounding. The first face is the
    support of ``alpha``. The number of steps is at most proportional to M; the gap shows how good
    the last point is.
    """
    active = alpha > 0.0
    for step in range(10 * alpha.size + 10):
        gradient = objective.gradient(alpha)
        direction = _newton_direction(objective, alpha, gradient, active)
        decrement = float(-gradient @ direction)
        settled = decrement <= objective.rounding(alpha)
        moved = _advance(objective, alpha, direction, compare=not settled)
        if moved is None:
            moved, settled = alpha, True
        blocked = np.count_nonzero(moved) < np.count_nonzero(active)
        alpha, active = moved, moved > 0.0
        if settled and not blocked:
            gradient = objective.gradient(alpha)
            entering = int(np.argmin(gradient))
            if active[entering] or objective.gap(alpha, gradient) <= objective.rounding(alpha):
                return alpha, step
            active[entering] = True
    return alpha, step + 1


def _newton_direction(
    objective: Objective, alpha: Vector, gradient: Vector, active: NDArray[np.bool_]
) -> Vector:
    """Newton's direction on a face: minimise the quadratic model over Σδ = 0, δ = 0 off the face.

    The system is scaled to unit diagonal, so that silos of very different gradient norms can share
    a face. A small proximal weight makes the answer unique (and the shortest) if silos are
    duplicates of one another or M > d. The weight is raised if float32 rounding in H has left the
    face's matrix indefinite.
    """
    face, direction = np.flatnonzero(active), np.zeros_like(alpha)
    if face.size == 1:  # at a corner, rounding alone would give a direction
        return direction
    hessian = 2.0 * objective.quadratic[np.ix_(face, face)]
    hessian[np.diag_indices_from(hessian)] += 6.0 * objective.cubic * alpha[face]
    scale = np.sqrt(np.abs(hessian.diagonal()))
    scale = np.maximum(scale, _SMALLEST_SCALE * (scale.max() or 1.0 / _SMALLEST_SCALE))
    hessian /= np.outer(scale, scale)
    # A linear term gives all silos a slope that changes no direction, but costs silos of small norm
    # their digits. Without one, slopes are in the range of H, and stay there if H is singular.
    common = gradient[face[scale.argmin()]] if objective.linear.any() else 0.0
    for weight in _PROXIMAL_WEIGHTS:
        regular = hessian + weight * np.eye(face.size)
        try:
            np.linalg.cholesky(regular)  # raises unless positive definite
        except np.linalg.LinAlgError:
            continue
        sides = np.stack(((gradient[face] - common) / scale, 1.0 / scale), axis=1)
        slope, normal = np.linalg.solve(regular, sides).T
        multiplier = (slope / scale).sum() / (normal / scale).sum()
        direction[face] = (multiplier * normal - slope) / scale
        break
    return direction


def _advance(
    objective: Objective, alpha: Vector, direction: Vector, compare: bool
) -> Vector | None:
    """Step along ``direction``, at most to the border of the simplex; None if no step helps.

    With ``compare`` the step is halved until f falls. Without it, the fall is below rounding.
    """
    falling = direction < 0.0
    limits = np.divide(-alpha, direction, out=np.full_like(alpha, np.inf), where=falling)
    step = min(1.0, float(limits.min()))
    value = objective.value(alpha)
    for _ in range(30):
        moved = alpha + step * direction
        moved[(limits <= step) | (moved < 0.0)] = 0.0
        moved /= moved.sum()
        if step > 0.0 and (not compare or objective.value(moved) < value):
            return moved
        step *= 0.5
    return None


def project_simplex(v: Vector) -> Vector:
    """Project onto the simplex: argmin over x ≥ 0, Σx = 1 of ‖x − v‖².

    The result is exact, by sorting, in O(M log M): max(v − τ, 0) with the one τ for which the
    entries sum to 1. Entries outside the support are exactly 0.0. M. Held, P. Wolfe and H. P.
    Crowder, Validation of subgradient optimization, Mathematical Programming 6, 1974; J. Duchi,
    S. Shalev-Shwartz, Y. Singer and T. Chandra, Efficient projections onto the ℓ1-ball for learning
    in high dimensions, ICML 2008, Figure 1.

    ``v`` is (M,), finite; entries of −inf are allowed next to a finite one, and become 0.
    ValueError if it is empty, not one-dimensional, holds NaN or +inf, or holds no finite entry.

    Examples
    --------
    >>> project_simplex(np.array([0.75, 0.25, -1.0]))
    array([0.75, 0.25, 0.  ])
    >>> project_simplex(np.array([2.0, 2.0, 1.0, -np.inf]))
    array([0.5, 0.5, 0. , 0. ])
    """
    v = np.asarray(v, dtype=np.float64)
    if v.ndim != 1 or v.size == 0:
        raise ValueError(f"project_simplex needs a non-empty vector, not shape {v.shape}.")
    top = v.max()  # NaN if any entry is NaN
    if not np.isfinite(top):
        raise ValueError(
            "project_simplex needs entries that are not NaN or +inf, one of them finite."
        )
    # A shift of v does not change the projection, and max(v) − 1 ≤ τ < max(v). The shift of the
    # largest entry to 0 keeps the sum exact to rounding at any magnitude of v. Shifted entries of
    # at most −1 (−inf and overflow too) are 0 in the answer, so −1 can replace them.
    with np.errstate(over="ignore"):
        shifted = np.maximum(v - top, -1.0)
    descending = -np.sort(-shifted)
    thresholds = (np.cumsum(descending) - 1.0) / np.arange(1, v.size + 1)
    support = np.count_nonzero(descending > thresholds)
    return np.maximum(shifted - thresholds[support - 1], 0.0)
