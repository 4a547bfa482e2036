"""Per-FedAvg: a shared model that one step on a silo's own data improves much.

A. Fallah, A. Mokhtari, A. Ozdaglar, Personalized Federated Learning with Theoretical Guarantees: A
Model-Agnostic Meta-Learning Approach, NeurIPS 2020. It minimises the mean of F_i(w) =
f_i(w − a ∇f_i(w)). Round t, with mini-batches D, D′, D″ of a silo that are independent::

    v_i = w − a g_i(w; D)                                the inner step, a plain one
    g_i = g_i(v_i; D′)
    FO:  m_i = g_i                                       first order: H is dropped
    HF:  m_i = g_i − a (g_i(w + δ g_i; D″) − g_i(w − δ g_i; D″)) / 2δ      ≈ (I − a H_i) g_i
    w ← w − β Opt(Σ α_i m_i)

The outer step size β is the run's ``eta``. The run's momentum and weight decay apply to this step
only. If silos clip gradients, H is that of the clipped field. If a ReLU switches within ±δ g, the
difference is a jump divided by 2δ.

The target uses w after one inner step on one more mini-batch of its *training* data, made at the
end of each epoch. A run that ends inside an epoch has v_0 of its last round. Some code adapts on
test batches instead, which flatters the result. With a = 0 this is FedAvg.
"""

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import key
from spcacw_flwr.silos.batches import WHOLE
from spcacw_flwr.silos.protocol import Federation, Replies, Request, Round

from .families import AVERAGES, UNIFORM, Averaged

OUTER, INNER, CURVATURE, ADAPTATION = 0, 1, 2, WHOLE
"""The mini-batches of a round: D′, D, D″, and the one that the target adapts on."""
FIRST, HESSIAN_FREE = "first", "hessian-free"


@dataclass(frozen=True)
class PerFedAvgKeys:
    """Hyper-parameters of Per-FedAvg; no code of its authors is known, so FL-bench's (06e658b)."""

    alpha: float = key(
        0.01, "a, the inner step size (FL-bench: the client's learning rate, .01).", least=0
    )
    order: str = key(
        FIRST,
        "first: FO, H is dropped (FL-bench: version fo); hessian-free: HF, by finite differences.",
        choices=(FIRST, HESSIAN_FREE),
    )
    delta: float = key(1e-3, "δ of HF's finite differences (FL-bench: delta 1e-3).", above=0)
    weights: str = key(
        UNIFORM, "α_i: uniform (1/M, the paper's problem), or size (n_i / Σ n).", choices=AVERAGES
    )


class PerFedAvg(Averaged):
    """Averaged meta-gradients at one shared model; the target uses this model adapted to itself."""

    name = "per-fedavg"
    Keys = PerFedAvgKeys

    def __init__(self, config: Config, federation: Federation, parameters: Tensor) -> None:
        super().__init__(config, federation, parameters)
        self._adapted = self.parameters.clone()

    @property
    def personal(self) -> Tensor:
        """The target's w after one inner step, made at an epoch's end or before a round's step."""
        return self._adapted

    def round(self, round_: int) -> Round:
        """Step w on the averaged meta-gradients; at the end of an epoch, adapt it."""
        w, a = self.parameters, self.own.alpha
        silos, size = self.sampled(round_), len(w)
        inner = yield Request(round_, silos, w, draw=INNER, traffic=(size, 0))
        points = w - a * inner.gradients
        self._adapted = points[inner.silos.index(self.target)].clone()
        replies = yield Request(round_, inner.silos, points, draw=OUTER, traffic=(0, size))
        if self.own.order == HESSIAN_FREE:
            replies = yield from self._curved(round_, replies)
        self.step(replies)
        if self.ends_epoch(round_):
            own = yield Request(round_, (self.target,), w, draw=ADAPTATION)
            self._adapted = w - a * own.gradients[0]

    def _curved(self, round_: int, outer: Replies) -> Generator[Request, Replies, Replies]:
        """Return (I − aH) g for silos that answer, with H g by a difference of two gradients."""
        w, delta = self.parameters, self.own.delta
        rows = outer.gradients.clone()
        ahead = yield self._curvature(round_, outer.silos, w + delta * rows)
        rows, forward = rows[np.isin(outer.silos, ahead.silos)], ahead.gradients.clone()
        behind = yield self._curvature(round_, ahead.silos, w - delta * rows)
        both = np.isin(ahead.silos, behind.silos)
        product = (forward[both] - behind.gradients) / (2 * delta)
        return Replies(behind.silos, rows[both] - self.own.alpha * product, behind.losses)

    def _curvature(self, round_: int, silos: tuple[int, ...], points: Tensor) -> Request:
        return Request(round_, silos, points, draw=CURVATURE, traffic=(0, 0))
