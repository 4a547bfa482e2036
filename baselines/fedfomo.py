"""FedFomo: every silo mixes the models that lower its own loss, weighted by how much they do.

M. Zhang, K. Sapra, S. Fidler, S. Yeung and J. M. Alvarez, Personalized Federated Learning with
First Order Model Optimization, ICLR 2021. Silo i has the model u_i and judges models w_j::

    ω_j ∝ max(0, (f_i(u_i) − f_i(w_j)) / ‖w_j − u_i‖),   w_i ← u_i + Σ ω_j (w_j − u_i)

``fedfomo`` is the published form: every silo owns a model u_i, takes a step from it to w_i with its
own optimiser, and mixes the models of all silos, its own included. With Σ ω = 1 that is
w_i ← Σ ω_j w_j. A silo fetches all M models. To save traffic, the authors fetch a few: the best so
far, and some at random. ``fedfomo-gradient`` is the form of family W, for the target alone:
w_j = w − η g^{(j)}(w) at one shared model w, and the step is along Σ ω_j g^{(j)}.

f_i is computed on a further mini-batch of the silo's training data (draw 1). The authors set aside
a fifth of the data for it, which would leave this method less data than the others. On the batch of
the step, a silo's own model would win because the step has fitted it to that batch.

The authors' option "l2" is the squared distance; ours is not squared. Where no ω is positive, the
silo stays at u_i, as in the authors' code, and gives up its own step too. Momentum buffers stay
with their silos when models are mixed. The authors start a new optimiser after each mixing. With
one step between mixings that would leave no momentum at all.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import key
from spcacw_flwr.methods.base import Weights, weighted_sum
from spcacw_flwr.silos.protocol import LOSSES, Federation, Request, Round

from .families import RoundWeights, distances
from .personal import OwnModels

NORMS = {"l1": 1.0, "l2": 2.0}
HUGE = 1e30
"""Losses are capped at this value, so that infinite losses can be subtracted."""


@dataclass(frozen=True)
class FomoKeys:
    """Hyper-parameters of FedFomo."""

    norm: str = key(
        "l1",
        "‖w_j − u_i‖, the distance that a model's gain is divided by: l1 (authors' code, "
        "NVlabs/FedFomo fe04f66) or l2 (the paper).",
        choices=tuple(NORMS),
    )


def fomo_weights(losses: Weights, before: float, away: Weights) -> Weights:
    """Return ω, (k,), which sums to 1, or is all 0 if no model is better than u_i.

    ``losses`` (k,) are f_i(w_j), perhaps infinite, ``before`` is f_i(u_i), and ``away`` (k,) are
    ‖w_j − u_i‖. A model at distance 0 gains nothing.
    """
    gains = np.minimum(before, HUGE) - np.minimum(losses, HUGE)
    slopes = np.divide(gains, away, out=np.zeros_like(gains), where=away > 0)
    positive: Weights = np.maximum(slopes, 0.0)
    total = positive.sum()
    return positive / total if total > 0 else positive


class Fomo(RoundWeights):
    """The shared part of both forms. The log counts a round without a better model as e_0."""

    Keys = FomoKeys

    def __init__(self, config: Config, federation: Federation, parameters: Tensor) -> None:
        super().__init__(config, federation, parameters)
        self._stays: list[bool] = []

    def note(self, round_: int, silos: tuple[int, ...], weights: Weights) -> None:
        """Note the target's ω, (k,), of round t."""
        self._stays.append(not weights.any())
        own = np.eye(len(silos))[silos.index(self.target)]
        super().note(round_, silos, own if self._stays[-1] else weights)

    def epoch_report(self) -> dict[str, float]:
        """Add the share of the epoch's rounds without a better model than the target's."""
        stayed = float(np.mean(self._stays or [False]))
        self._stays.clear()
        return super().epoch_report() | {"stayed": stayed}


class FedFomo(Fomo, OwnModels):
    """FedFomo: every silo owns a model u_i and mixes those that lower its loss."""

    name = "fedfomo"
    reveals = "losses"

    def round(self, round_: int) -> Round:
        """Let the silos step from their models, judge all models, and mix."""
        asked, size = self.sampled(round_), self.models.shape[1]
        replies = yield Request(round_, asked, self.models[list(asked)], traffic=(0, size))
        silos = replies.silos
        origins = self.models[list(silos)]
        stepped = origins.clone()
        for model, gradient, silo in zip(stepped, replies.gradients, silos, strict=True):
            self.optimiser.step(model, gradient, silo)
        standing = yield Request(
            round_, silos, origins[:, None], want=LOSSES, draw=1, traffic=(0, 0)
        )
        before = dict(zip(standing.silos, standing.losses[:, 0].tolist(), strict=True))
        judged = yield Request(
            round_, standing.silos, stepped, want=LOSSES, draw=1, traffic=(stepped.numel(), 0)
        )
        away = distances(origins, stepped, NORMS[self.own.norm])
        losses = judged.losses.double().cpu().numpy()
        for found, silo in zip(losses, judged.silos, strict=True):
            weights = fomo_weights(found, before[silo], away[silos.index(silo)])
            if weights.any():
                self.models[silo] = weighted_sum(weights, stepped)
            if silo == self.target:
                self.note(round_, silos, weights)


class GradientFedFomo(Fomo):
    """FedFomo on gradients at one shared model, judged by the target alone."""

    name = "fedfomo-gradient"

    def round(self, round_: int) -> Round:
        """Ask all silos for gradients, and the target for its loss after a plain step on each."""
        replies = yield Request(round_, self.sampled(round_), self.parameters)
        gradients, here = replies.gradients.clone(), self.parameters[None]
        stepped = here - self.config.training.eta * gradients
        judged = yield Request(
            round_, (self.target,), torch.cat((stepped, here)), want=LOSSES, draw=1
        )
        *losses, before = judged.losses[0].double().cpu().numpy()
        (away,) = distances(here, stepped, NORMS[self.own.norm])
        weights = fomo_weights(np.array(losses), before, away)
        if weights.any():
            self.optimiser.step(self.parameters, weighted_sum(weights, gradients))
        self.note(round_, replies.silos, weights)
