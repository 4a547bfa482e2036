"""Local (Only-My-Data): the target trains alone, α = e_0.

The row "Local" of the paper's Table 1 and its bound for Autarky (appendix, lemma autarky):
O(σ/√T), untouched by peers and unhelped by them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.methods.base import WeightedGradients


class Local(WeightedGradients):
    """α_t = e_0 for all t; no peer is asked."""

    name = "local"

    def initial_weights(self) -> NDArray[np.float64]:
        """Return e_0, the unit vector of the target."""
        return np.eye(self.federation.num_silos)[self.federation.target]
