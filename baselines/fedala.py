"""FedALA: each silo learns, for each parameter, how much of the global model to take.

J. Zhang, Y. Hua, H. Wang, T. Song, Z. Xue, R. Ma, H. Guan, FedALA: Adaptive Local Aggregation for
Personalized Federated Learning, AAAI 2023, Algorithm 1. At a meeting, w = Σ p_i v_i, and each silo
mixes the top tensors of w into its own model v by weights W it learns on a part of its data::

    v̂ = v + (w − v) ⊙ W on the top tensors, v̂ = w on the others
    repeatedly, on a mini-batch: W ← clip(W − η_W ∇L(v̂) ⊙ (w − v), 0, 1), v̂ anew
    v ← v̂, then K rounds of local training

W starts at 1 (FedAvg) and is kept from meeting to meeting. At its first meeting a silo repeats the
pass over that part until its losses settle: the standard deviation of the last ten is below
``threshold``. The authors set no limit to this; ``start-epochs`` does. At each later meeting a
silo makes one pass. All silos use FedALA, as published: w averages models that began as mixtures.

The mini-batches for W come from newly drawn passes, independent of those that train v. The authors
sample a part of the training data once a meeting and pass over that. ``layer-idx`` counts
*tensors*: a weight and a bias are two. Momentum is kept across meetings, as in the authors'
optimiser. The authors' code tests v̂, before local training: ``personal = "combined"``.
"""

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import key
from spcacw_flwr.methods.base import Weights, weighted_sum
from spcacw_flwr.silos.batches import WHOLE
from spcacw_flwr.silos.protocol import Federation, Request, Round

from .families import spread
from .personal import MeetingKeys, MeetingModels

SETTLED = 10
"""The number of last losses whose deviation is tested (the authors' num_pre_loss)."""


@dataclass(frozen=True)
class FedALAKeys(MeetingKeys):
    """Hyper-parameters of FedALA; defaults of TsingZ0/FedALA a7a9b21, utils/ALA.py and main.py."""

    eta: float = key(1.0, "η_W, step size of the weights W (authors' eta = 1).", least=0)
    rand_percent: float = key(
        80.0, "Percent of its training data on which a silo learns W (authors' rand_percent).",
        above=0, most=100,
    )  # fmt: skip
    layer_idx: int = key(
        2, "Tensors, counted from the output, that are mixed (authors' layer_idx); 0 is all.",
        least=0,
    )  # fmt: skip
    threshold: float = key(
        0.1, "Deviation of the losses at which the first phase ends (authors' threshold).", least=0
    )
    start_epochs: int = key(
        20, "Most passes in the first phase; the authors' code may never end it.", least=1
    )


class FedALA(MeetingModels):
    """Learned mixtures. The log has the weights of the v_i in v̂_0, averaged over its parameters."""

    name = "fedala"
    reveals = "losses"
    Keys = FedALAKeys

    def __init__(self, config: Config, federation: Federation, parameters: Tensor) -> None:
        super().__init__(config, federation, parameters)
        assert federation.layout is not None  # every engine knows its model
        self.low = len(parameters) - sum(federation.layout.sizes[-self.own.layer_idx :])
        """The index at which the top tensors begin in the flat model."""
        self.mixing = torch.ones_like(self.models[:, self.low :])
        """W of each silo."""
        self._started = np.zeros(federation.num_silos, dtype=bool)

    def meet(self, round_: int, silos: list[int]) -> Round:
        """Average the models of ``silos``, and let each learn how much of the mean to take."""
        shares = self.shares(silos)
        mean = weighted_sum(shares, self.models[silos])
        gaps = mean[self.low :] - self.models[:, self.low :]
        yield from self._learn(round_, silos, mean, gaps)
        self.models[silos] = self._mixed(silos, mean, gaps)
        self._started[silos] = True
        self.set_weights(self._implied(spread(shares, silos, self.federation)), round_)

    def _mixed(self, silos: list[int], mean: Tensor, gaps: Tensor) -> Tensor:
        mixed = mean.repeat(len(silos), 1)
        mixed[:, self.low :] = self.models[silos, self.low :] + gaps[silos] * self.mixing[silos]
        return mixed

    def _learn(self, round_: int, silos: list[int], mean: Tensor, gaps: Tensor) -> Round:
        """Step W until each silo has done its passes; a silent silo counts as done."""
        losses: defaultdict[int, list[float]] = defaultdict(list)
        draw = 0
        while silos:
            points = self._mixed(silos, mean, gaps)
            replies = yield Request(round_, tuple(silos), points, draw=WHOLE + draw, traffic=(0, 0))
            draw += 1
            silos = list(replies.silos)
            slopes = replies.gradients[:, self.low :] * gaps[silos]
            self.mixing[silos] = (self.mixing[silos] - self.own.eta * slopes).clamp(0, 1)
            for silo, loss in zip(silos, replies.losses.tolist(), strict=True):
                if draw % self._batches(silo) == 0:
                    losses[silo].append(loss)
            silos = [silo for silo in silos if not self._through(silo, losses[silo])]

    def _batches(self, silo: int) -> int:
        part = self.own.rand_percent / 100 * self.federation.sizes[silo]
        return max(1, math.ceil(part / self.federation.batch_size))

    def _through(self, silo: int, losses: list[float]) -> bool:
        """Return whether a silo has done its passes; ``losses`` holds the last loss of each."""
        if self._started[silo] or len(losses) >= self.own.start_epochs:
            return len(losses) > 0
        return len(losses) > SETTLED and float(np.std(losses[-SETTLED:])) < self.own.threshold

    def _implied(self, shares: Weights) -> Weights:
        """Return (1 − s) e_0 + s p, where s is the mean share of w in v̂_0 over all parameters."""
        share = (self.low + float(self.mixing[self.target].sum())) / len(self.parameters)
        return (1 - share) * np.eye(len(shares))[self.target] + share * shares

    def epoch_report(self) -> dict[str, float]:
        """Add the mean of the target's W."""
        return super().epoch_report() | {"mixing": float(self.mixing[self.target].mean())}
