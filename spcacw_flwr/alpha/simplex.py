"""Projection onto the probability simplex, the constraint set of every weight vector α.

M. Held, P. Wolfe and H. P. Crowder, Validation of subgradient optimization, Mathematical
Programming 6, 1974; J. Duchi, S. Shalev-Shwartz, Y. Singer and T. Chandra, Efficient projections
onto the ℓ1-ball for learning in high dimensions, ICML 2008, Figure 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def project_simplex(v: NDArray[np.float64]) -> NDArray[np.float64]:
    """Project onto the simplex: argmin over x ≥ 0, Σx = 1 of ‖x − v‖².

    The step of projected gradient descent, appendix "Practical Algorithmic Details", item
    "Numerical Solver (PGD)". Exact, by sorting, in O(M log M): the answer is max(v − τ, 0) with
    the one τ for which the entries sum to 1.

    Parameters
    ----------
    v : (M,) array
        Any finite vector; entries of −inf are allowed beside a finite one, and become 0.

    Returns
    -------
    (M,) float64 array
        Entries outside the support are exactly 0.0.

    Raises
    ------
    ValueError
        If ``v`` is empty, not one-dimensional, holds NaN or +inf, or holds no finite entry.

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
    # The projection does not change when v is shifted, and max(v) − 1 ≤ τ < max(v): moving the
    # largest entry to 0 keeps the sum exact to rounding at any magnitude of v, and an entry at or
    # below −1 is 0 in the answer wherever it lies, so it can stand at −1 (−inf and overflow too).
    with np.errstate(over="ignore"):
        shifted = np.maximum(v - top, -1.0)
    descending = -np.sort(-shifted)
    thresholds = (np.cumsum(descending) - 1.0) / np.arange(1, v.size + 1)
    support = np.count_nonzero(descending > thresholds)
    projected: NDArray[np.float64] = np.maximum(shifted - thresholds[support - 1], 0.0)
    return projected
