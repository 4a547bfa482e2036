"""A method: what it asks of the silos in a round, and how it folds the replies into its state.

This module holds the seam between methods and engines, and the family of methods that put weights
on gradients at one shared model (paper, Eq. update rule): w_{t+1} = w_t − η Opt(Σ α^{(i)} g^{(i)}).
Members differ only in α. A method does not know which engine runs it, and silos keep no state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.sgd import sgd  # the function: the class imports a compiler, for a second

from spcacw_flwr.core.batches import PARTICIPATION, rounds_per_pass, stream
from spcacw_flwr.core.config import Config
from spcacw_flwr.core.silo import SiloInfo
from spcacw_flwr.keys import SpcacwError


@dataclass(frozen=True)
class Federation:
    """The silos as the target knows them after asking: one entry per silo, in silo order."""

    silos: tuple[SiloInfo, ...]
    target: int
    batch_size: int

    @property
    def num_silos(self) -> int:
        """M, the number of silos."""
        return len(self.silos)

    @property
    def sizes(self) -> NDArray[np.float64]:
        """n_i, the samples of each silo."""
        return np.array([info.size for info in self.silos], dtype=float)

    @property
    def rounds_per_epoch(self) -> int:
        """⌈n₀/b⌉: an epoch is the target's own pass over its data (READING.md 17)."""
        return rounds_per_pass(self.silos[self.target].size, self.batch_size)


@dataclass(frozen=True)
class Request:
    """What the target asks in a round."""

    round: int
    silos: tuple[int, ...]
    """Who is asked for a gradient at the method's parameters."""
    smoothness: bool = False
    """Whether the target's silo is also to estimate L."""


@dataclass
class Replies:
    """What came back: the silos that answered, in ascending order, and their gradients."""

    silos: tuple[int, ...]
    gradients: Tensor
    """(k, d) float32, one row per silo in ``silos``; the next round may overwrite it."""
    losses: Tensor
    """(k,) mini-batch losses."""
    smoothness: float | None = None
    """L at the target, when it was asked for."""


class WeightedGradients:
    """Family W: weights on the silos' gradients at one shared model. Subclasses choose α.

    Parameters
    ----------
    config : Config
        The run's configuration.
    federation : Federation
        Who takes part.
    parameters : Tensor
        (d,) initial model w_0; copied.
    """

    name: ClassVar[str]

    def __init__(self, config: Config, federation: Federation, parameters: Tensor) -> None:
        self.config = config
        self.federation = federation
        self.parameters = parameters.clone()
        self.momentum: list[Tensor | None] = [None]
        """The optimiser's state: its momentum buffer (d,), once there is one."""
        self.alpha: NDArray[np.float64] = self.initial_weights()
        self.alpha_round = 0
        """The round in which α last changed."""
        self._losses: list[float] = []

    def initial_weights(self) -> NDArray[np.float64]:
        """Return α_0, (M,) on the simplex."""
        raise NotImplementedError

    def request(self, round_: int) -> Request:
        """Say who is asked at round t: the target always, each useful peer with chance p."""
        silos = self._sampled(round_, np.flatnonzero(self.alpha))
        return Request(round_, silos)

    def _sampled(self, round_: int, candidates: NDArray[np.int64]) -> tuple[int, ...]:
        target, p = self.federation.target, self.config.training.participation
        chosen = candidates
        if p < 1:
            rng = stream(PARTICIPATION, self.config.run.seed, round_)
            chosen = candidates[rng.random(self.federation.num_silos)[candidates] < p]
        silos = chosen.tolist()
        return tuple(silos) if target in silos else tuple(sorted([*silos, target]))

    def fold(self, request: Request, replies: Replies) -> None:
        """Run round t: look at the gradients, step with α_{t−1}, then learn α_t.

        Raises
        ------
        SpcacwError
            If the target's gradient is not among the replies.
        """
        if self.federation.target not in replies.silos:
            raise SpcacwError(
                f"Target silo {self.federation.target} did not answer round {request.round}; "
                "without its gradient no round can be used: check the node that holds it."
            )
        self._losses.append(float(replies.losses[replies.silos.index(self.federation.target)]))
        self.observe(request, replies)
        self.step(replies)
        self.learn(request, replies)

    def observe(self, request: Request, replies: Replies) -> None:
        """See the gradients as they came, before the step; a hook, empty here."""

    def learn(self, request: Request, replies: Replies) -> None:
        """Choose α_t, after the step; a hook, empty here."""

    def step(self, replies: Replies) -> None:
        """w_t ← optimiser step on Σ α_{t−1} g̃; silos that did not report contribute nothing.

        g̃ = g z/p is the unbiased gradient under partial participation (Prop. partial
        participation). The target always takes part (z = 1 with certainty): its g̃ is g. The
        factors go with the weights, so that no gradient needs to be touched.
        """
        weights = self.alpha[list(replies.silos)] / self.config.training.participation
        target = self.federation.target
        weights[replies.silos.index(target)] = self.alpha[target]
        gradient = torch.from_numpy(weights).to(replies.gradients) @ replies.gradients
        training = self.config.training
        if training.clip == "aggregate" and training.max_norm > 0:
            norm = float(torch.linalg.vector_norm(gradient))
            gradient.mul_(min(1.0, training.max_norm / norm) if norm > 0 else 1.0)
        sgd(
            [self.parameters], [gradient], self.momentum, foreach=False, lr=training.eta,
            momentum=training.momentum, weight_decay=training.weight_decay, dampening=0.0,
            nesterov=False, maximize=False,
        )  # fmt: skip

    def epoch_report(self) -> Mapping[str, float]:
        """Return the epoch's means for the log, and start the next epoch's."""
        loss = math.fsum(self._losses) / max(1, len(self._losses))
        self._losses.clear()
        return {"loss": loss, "L": math.nan, "lambda_reg": 0.0, "cost": math.nan}
