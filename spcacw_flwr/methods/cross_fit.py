"""Cross-fitting for SP-CACW: biases against data of the target that the model has not seen.

The paper's b̃_i = g_i − g_0 (Eq. alg_single_est) takes the target's mini-batch gradient for its
population gradient ∇f₀. That holds while samples are fresh. Once w has fitted the target's few
samples, g_0 → 0 while an honest peer's gradient does not: peers look biased, the target does not,
and α collapses onto it (docs/theory.md). Sample splitting mends that: with the target's
data in F folds, F further models v_1 … v_F take the same steps as w, with the same α, but with the
target's gradient from all folds but the k-th. At v_k, fold k is fresh data::

    b̂_k^(i) ← (1 − β) b̂_k^(i) + β (g_t^(i)(v_k) − h_k),   all i, the target too
    v_k ← v_k − η Opt(Σ α_{t−1}^(i) g_t^(i)(v_k))
    H ← H + (1/F) Σ_k [B̂_kᵀB̂_k + η L G_kᵀG_k]

where h_k is the target's gradient at v_k on a mini-batch of fold k. α is learned from that H; w
takes its own step with all of the target's data. No sample is lost, and every sample serves as
reference at a model that never saw it: the idea of V. Chernozhukov et al., Double/debiased machine
learning for treatment and structural parameters, The Econometrics Journal 21 (2018), applied to
gradients. A round costs 1 + F rounds: peers answer at w and at each v_k.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from spcacw_flwr.alpha import BiasTracker
from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.methods.base import Optimiser
from spcacw_flwr.methods.costs import CostBook
from spcacw_flwr.silos.batches import Fold
from spcacw_flwr.silos.protocol import Federation, Replies, Request

LEAST = 2
"""Fewest samples of a fold: batch statistics need more than one."""


@dataclass
class FoldModel:
    """A model that is not trained on one fold of the target's data, and the biases seen at it."""

    part: Fold
    """What the target trains it on."""
    parameters: Tensor
    """v_k, (d,)"""
    optimiser: Optimiser
    bias: BiasTracker
    book: CostBook


def make_folds(
    config: Config, federation: Federation, parameters: Tensor, bias: BiasTracker
) -> list[FoldModel]:
    """Return the F models, all at w_0; ``bias`` is a tracker that has seen nothing.

    SpcacwError if there is but one fold, or a fold would have less than :data:`LEAST` samples.
    """
    count, size = config.spcacw.cross_fit, federation.silos[federation.target].size
    if not LEAST <= count <= size // LEAST:
        raise SpcacwError(
            f"cross-fit = {count} is not allowed: the {size} training samples of target silo "
            f"{federation.target} make {LEAST} to {size // LEAST} folds, and 0 is off."
        )
    plain = dataclasses.replace(config.spcacw, diagnostics=False)
    folds = []
    for index in range(count):
        tracker = copy.deepcopy(bias)
        book = CostBook(
            dataclasses.replace(config, spcacw=plain), federation, tracker,
            bound=None, every=1, retention=1.0, evidence=False,
        )  # fmt: skip
        optimiser = Optimiser(config.training)
        folds.append(FoldModel(Fold(index, count), parameters.clone(), optimiser, tracker, book))
    return folds


def evidence(
    method: Any, request: Request
) -> Generator[Request, Replies, tuple[NDArray[np.float64], float]]:
    """Ask at every fold's model; return the mean of their H_t (M, M), and the largest ‖g̃‖.

    ``method`` is an ``SPCACWMethod``, ``request`` the round's question at w: the same silos are
    asked again.
    """
    count, smoothness = len(method.folds), method.smoothness.value
    total, largest = np.zeros((method.federation.num_silos,) * 2), 0.0
    for fold in method.folds:
        here = dataclasses.replace(request, points=fold.parameters, smoothness=False)
        unseen = dataclasses.replace(fold.part, within=True)
        own = yield dataclasses.replace(here, silos=(method.target,), fold=unseen)
        reference = method.seen(own.gradients.clone())[0]  # the next reply overwrites it
        replies = yield dataclasses.replace(here, fold=fold.part)
        rows = method.seen(replies.gradients)
        fold.bias.update(rows, replies.silos, reference)
        heard = method.heard(request, replies, rows)
        matrix, norm = fold.book.matrix(heard, smoothness, counts=True)
        fold.optimiser.step(fold.parameters, method.weighted(replies))
        total += matrix / count
        largest = max(largest, norm)
    return total, largest
