"""SP-CACW plus: SP-CACW for targets with few data, without options (ours; docs/plus.md).

The rounds, the bias estimates and the step are those of Algorithm 1. α minimises another estimate
of the same error, :mod:`spcacw_flwr.alpha.population`, with three differences from Eq. (CostDef):
biases are those between populations, free of noise; each silo has the error of its finite sample;
and noise meets the curvature κ along it, not the largest. It asks for no gradient, message or byte
more than SP-CACW does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from spcacw_flwr.alpha import Population, differences
from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.keys import SPCACWKeys
from spcacw_flwr.methods.spcacw import SPCACWMethod
from spcacw_flwr.silos.batches import rounds_per_pass
from spcacw_flwr.silos.protocol import Federation, Replies, Request

LARGEST_STEP = 1 / 8
"""Of ηκ: the theorems are about ηL ≤ 1/8; beyond, the quadratic term bounds nothing."""
NOT_ITS = ("solver", "bias_correction", "g_max")
"""Keys of SP-CACW that have no meaning here."""


class PlusSPCACW(SPCACWMethod):
    """α ← argmin of the estimated risk ‖Σ α b‖² + Σ α² F + ηκ ‖Σ α g̃‖² over the rounds so far."""

    name = "spcacw-plus"
    defaults: ClassVar[Mapping[str, Any]] = {"curvature": "noise"}

    def __init__(self, config: Config, federation: Federation, parameters: Tensor) -> None:
        super().__init__(config, federation, parameters)
        self.book.regret = None  # that of another cost
        size = config.samples_per_round
        told = [self._told(silo, len(parameters)) for silo in range(federation.num_silos)]
        self.population = Population(
            federation.target,
            np.array([rounds_per_pass(int(n), size) for n in federation.sizes], dtype=float),
            federation.sizes, np.array(told),
        )  # fmt: skip

    def _told(self, silo: int, dimension: int) -> float:
        """Return the variance of the noise that a silo adds to each gradient on purpose."""
        info, keys = self.federation.silos[silo], self.config.training
        if info.privacy is None:
            return 0.0
        return dimension * info.privacy.deviation(min(keys.batch_size, info.size)) ** 2

    def _check(self, keys: SPCACWKeys) -> None:
        super()._check(keys)
        fields = SPCACWKeys.__dataclass_fields__
        for name in NOT_ITS:
            if getattr(keys, name) != fields[name].default:
                raise SpcacwError(
                    f"{name.replace('_', '-')} does not go with spcacw-plus, which needs no "
                    "options: leave it out, or use method = 'spcacw'."
                )
        if keys.beta_schedule == "constant" and keys.beta == 1:
            raise SpcacwError(
                "With beta = 1 nothing is averaged, and the noise of the bias estimates cannot be "
                "told from the biases: set beta below 1."
            )

    def costs(self, request: Request, replies: Replies) -> tuple[NDArray[np.float64], float]:
        """Update b̂ and what is known of populations; the matrix, for the log, is the paper's."""
        heard = self.heard(request, replies, self.track(replies))
        counts = request.round >= self.config.spcacw.t_start
        found = self.book.matrix(heard, self.smoothness.value, counts=counts)
        biases, products, sampling = self.book.last
        silos, betas = replies.silos, np.zeros(self.federation.num_silos)
        betas[list(silos)] = self.bias.rates(silos)
        part = products[np.ix_(silos, silos)]
        differing = differences(part, silos, self.target, len(betas))
        own = products[self.target, self.target]
        self.population.update(biases, differing, betas, request.round, own)
        if counts:
            scale = min(self.config.training.eta * self.smoothness.value, LARGEST_STEP)
            self.population.add(scale * (products + np.diag(sampling)))
        return found

    def add(self, round_: int, matrix: NDArray[np.float64], norm: float) -> None:
        """Note the round's cost; what α is learned from is in the population already."""
        self.book.note(matrix, self.alpha, self.smoothness.value, None)

    def leader(self) -> NDArray[np.float64]:
        """Return the weights of least risk."""
        return self.population.weights()
