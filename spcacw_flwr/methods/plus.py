"""SP-CACW plus: SP-CACW for targets with few data, without options (ours; docs/plus.md).

Rounds and bias estimates are those of Algorithm 1, and so is the step, except for gradients that go
against the target's. α minimises another estimate of the same error,
:mod:`spcacw_flwr.alpha.population`, with four differences from Eq. (CostDef). Biases are those
between populations, without noise. Each silo has the error of its finite sample. Noise counts by
the curvature κ along it, not by the largest one, and with the step that momentum makes. Far biases
count more if the loss is flat along them. The method asks for no gradient, message or byte more
than SP-CACW does.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spcacw_flwr.alpha import Population, norms_of
from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.keys import SPCACWKeys
from spcacw_flwr.methods.spcacw import SPCACWMethod
from spcacw_flwr.silos.batches import Fold, batch_length
from spcacw_flwr.silos.protocol import Federation, Replies, Request

LARGEST_STEP = 1 / 2
"""Largest ηκ/(1 − μ) used: beyond it, noise is no small part of a step and does not settle."""
AGAINST, BY_CHANCE = 1 / 2, 3.0
"""A step leaves out a peer's gradient if its cosine to the target's of the same round is below
−½ and below −3/√d. Random directions in d dimensions have cosines of about ±1/√d."""
GONE = 3
"""A silo counts as gone after so many unanswered questions in a row."""
NOT_ITS = ("solver", "g_max")
"""Keys of SP-CACW that have no meaning here."""


class PlusSPCACW(SPCACWMethod):
    """SP-CACW for few data: biases without noise, errors of finite samples, noise along κ."""

    name = "spcacw-plus"
    defaults: ClassVar[Mapping[str, Any]] = {"curvature": "noise"}
    needs_evidence, other = True, ""

    def __init__(self, config: Config, federation: Federation, parameters: Tensor) -> None:
        super().__init__(config, federation, parameters)
        self.book.regret = None  # it measures another cost
        self.refused = parameters.new_zeros(federation.num_silos, dtype=torch.float64)
        """(M,) how many of each silo's gradients had weight and were left out of a step."""
        self.previous = self.bias.estimate.new_zeros(2, self.bias.estimate.shape[1])
        """The target's last gradient, or its sketch, and its difference from the one before it."""
        sizes = federation.sizes
        if config.trust.guard:  # the guard keeps some of the target's samples apart
            rest, own = Fold(0, config.trust.guard), federation.silos[self.target].size
            sizes[self.target] = len(rest.rows(config.run.seed, self.target, own))
        passes = np.ceil(sizes / config.training.batch_size)
        assert self.book.evidence is not None
        self.population = Population(
            self.book.evidence.noise, passes, sizes,
            np.minimum(federation.independent, sizes), config.transport.local_batches,
        )  # fmt: skip

    def _batches(self, round_: int, replies: Replies) -> tuple[NDArray[np.float64], ...]:
        """Return b (M,), the samples of each mini-batch, and the noise added on purpose, (M,).

        If a node does not report b, it is the requested size.
        """
        draws, size = self.config.transport.local_batches, self.config.training.batch_size
        batches, added = np.ones(self.federation.num_silos), np.zeros(self.federation.num_silos)
        counts = replies.samples or (0,) * len(replies.silos)
        for silo, count in zip(replies.silos, counts, strict=True):
            info = self.federation.silos[silo]
            own = int(self.population.sizes[silo])
            each = min(count // draws or batch_length(round_, own, size), own)
            batches[silo] = each
            if info.privacy:
                variance = info.privacy.deviation(each) ** 2 / draws
                added[silo] = replies.gradients.shape[1] * variance
        return batches, added

    def _check(self, keys: SPCACWKeys) -> None:
        super()._check(keys)
        fields = SPCACWKeys.__dataclass_fields__
        for name in NOT_ITS:
            if getattr(keys, name) != fields[name].default:
                raise SpcacwError(
                    f"{name.replace('_', '-')} does not go with spcacw-plus, which needs no "
                    "options: leave it out, or use method = 'spcacw'."
                )

    def weighted(self, replies: Replies) -> Tensor:
        """Return Σ of the gradients with the weights that are :meth:`taken`."""
        return self.taken(replies).to(replies.gradients) @ replies.gradients

    def taken(self, replies: Replies) -> Tensor:
        """Return the weights of a step; the target gets those of gradients that oppose its own.

        α averages many rounds, so it would follow a peer that turns for many more rounds. The bias
        estimates still learn from such a gradient. The code does not wait for a GPU.
        """
        rows, own = replies.gradients, replies.silos.index(self.target)
        weights = torch.from_numpy(self.shares(replies)).to(rows.device)
        lengths = norms_of(rows)
        least = max(AGAINST, BY_CHANCE / math.sqrt(rows.shape[1]))
        against = rows @ rows[own] < -least * lengths * lengths[own]
        refused = torch.where(against, weights, 0.0)
        self.refused[list(replies.silos)] += refused > 0
        weights = weights - refused
        weights[own] += refused.sum()
        return weights

    def silo_figures(self) -> dict[str, NDArray[np.float64]]:
        """Add how many of each silo's gradients were refused since training began."""
        return super().silo_figures() | {"refused": self.refused.cpu().numpy().copy()}

    def costs(self, request: Request, replies: Replies) -> tuple[NDArray[np.float64], float]:
        """Update b̂ and the population estimates; return the paper's matrix, for the log."""
        along = self._along(replies)
        found = super().costs(request, replies)
        products, betas, sampling = self.book.last
        batches = self._batches(request.round, replies)
        self.population.update(betas, request.round, products, along, *batches)
        if request.round >= self.config.spcacw.t_start:
            training = self.config.training
            step = training.eta * self.smoothness.value / (1.0 - training.momentum)
            self.population.add(min(step, LARGEST_STEP), sampling)
        return found

    def _along(self, replies: Replies) -> NDArray[np.float64]:
        """Return g₀ along each b̂ᵢ (M,); for the target, along the noise of its last rounds.

        NaN if a direction has length 0. b̂ is taken before the round, so g₀ is no part of it.
        """
        own = replies.gradients[replies.silos.index(self.target)]
        own = (self.sketch(own[None])[0] if self.sketch else own).to(self.previous)
        last, difference = self.previous
        noise = torch.stack([difference @ own, norms_of(difference)])
        found = torch.cat([self.bias.estimate @ own, noise]).double().cpu().numpy()  # one wait
        along, lengths, target = found[:-2], self.population.noise.lengths, self.target
        along[target], lengths[target] = found[-2:]
        again = self.population.noise.sums[target] > 0.0
        self.previous = torch.stack([own, own - last if again else difference])
        return np.divide(along, lengths, out=np.full_like(along, np.nan), where=lengths > 0.0)

    def add(self, round_: int, matrix: NDArray[np.float64], norm: float) -> None:
        """Record the round's cost; the population already has all that α is learned from."""
        self.book.note(matrix, self.alpha, self.smoothness.value, None)

    def leader(self) -> NDArray[np.float64]:
        """Return the weights of least risk; a silo that is gone has none until it answers."""
        return self.population.weights(gone=self.book.silent >= GONE)
