"""Oracle, averaged-gradient variant: uniform weights on the target's true cluster.

The paper's Oracle trains on "the aggregated data of a client's true latent cluster"; this variant
(READING.md 16) gives each silo of the cluster the same weight. It needs a setting that knows the
truth, so it is a reference for experiments and not a method for practice.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.core.method import WeightedGradients
from spcacw_flwr.keys import SpcacwError


class Oracle(WeightedGradients):
    """α = 1/|C_0| on the target's true cluster C_0, 0 elsewhere."""

    name = "oracle"

    def initial_weights(self) -> NDArray[np.float64]:
        """Return the uniform weights on the true cluster.

        Raises
        ------
        SpcacwError
            If the target's silo does not know its true cluster.
        """
        cluster = list(self.federation.silos[self.federation.target].oracle)
        if not cluster:
            raise SpcacwError(
                f"method = 'oracle' needs a setting that knows the true cluster of target silo "
                f"{self.federation.target}; choose another method, or a setting with clusters."
            )
        weights = np.zeros(self.federation.num_silos)
        weights[cluster] = 1 / len(cluster)
        return weights
