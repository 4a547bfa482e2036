"""The average over silos where a method's own rule does not weigh them: all alike, or by size."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.silos.protocol import Federation

UNIFORM, SIZE = "uniform", "size"
AVERAGES = (UNIFORM, SIZE)
"""The values of a key ``weights``."""


def average_weights(federation: Federation, weights: str) -> NDArray[np.float64]:
    """Return 1/M for every silo (``uniform``), or its share n_i / Σ n of the samples (``size``)."""
    if weights == SIZE:
        return federation.shares
    return np.full(federation.num_silos, 1 / federation.num_silos)
