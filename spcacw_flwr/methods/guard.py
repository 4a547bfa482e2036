"""The guard: "you will not end worse than alone", whatever the peers send.

This is ours, not the paper's, and works for any method (key ``guard`` = F; docs/trust.md has the
statement and its proof). One in F of the target's training samples, V, is kept apart. Then::

    w   the method, the target's part without V             while t ≤ T_f
    v   the target alone, without V either
    u   the target alone, with all of its data: the method Local, bit for bit
    at T_f:    if ℓ_V(w) ≤ (1 − 1/F) ℓ_V(v):  z ← w, else z ← u
    t > T_f:   z goes on alone, with all of the target's data; no peer is asked any more

V enters nothing that a peer sees, and nothing that w and v depend on. V is a fresh sample to
attackers, so no attack can make w look better on V than w is. The factor accounts for the samples
that v lacks: u has F/(F − 1) times as many, worth at most that factor if an excess loss falls as
1/n. The target's model is u until the judgement, then z. A refused run ends with exactly the model
of Local. In the last rounds (``guard-finish``) the target trains with V too.
"""

import dataclasses
import logging

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError, part_of
from spcacw_flwr.config.registry import method_class
from spcacw_flwr.methods.base import Method, Weights
from spcacw_flwr.silos.batches import Fold
from spcacw_flwr.silos.protocol import LOSSES, Federation, Request, Round

LOCAL = "local"
log = logging.getLogger(__name__)


class Guarded(Method):
    """A method under guard.

    ``guarded`` is the method itself; its weights and figures are logged. ``accepted`` is the
    judgement, None until then. SpcacwError if the keys do not go together, or there are too few
    samples or epochs.
    """

    guarded: Method

    def __init__(self, config: Config, federation: Federation, parameters: Tensor) -> None:
        self._check(config, federation)
        make = method_class(config.run.method), method_class(LOCAL)
        self.guarded, self.unaided, self.alone = (
            kind(config, federation, parameters) for kind in (make[0], make[1], make[1])
        )
        self.accepted: bool | None = None
        super().__init__(config, federation, parameters)
        self.name = self.guarded.name  # type: ignore[misc]
        count, epochs = config.trust.guard, config.run.epochs
        self.rest, self.kept = Fold(0, count), Fold(0, count, within=True)
        finish = max(1, round(config.trust.guard_finish * epochs))
        self.judged_at = (epochs - finish) * federation.rounds_per_epoch
        """T_f, the number of rounds before the judgement."""

    @staticmethod
    def _check(config: Config, federation: Federation) -> None:
        count, size = config.trust.guard, federation.silos[federation.target].size
        if not 2 <= count <= size:
            raise SpcacwError(
                f"guard = {count} is not allowed: of the {size} training samples of target silo "
                f"{federation.target}, one in 2 to {size} can be kept apart, and 0 is off."
            )
        if (alone := federation.independent[federation.target]) < size:
            raise SpcacwError(
                f"guard judges by samples that training has not seen, but of the {size} training "
                f"samples of target silo {federation.target} only {alone:.0f} are independent: "
                "give one image of a patient, windows that do not overlap, or leave out guard."
            )
        if config.run.epochs < 2:
            raise SpcacwError("guard needs at least 2 epochs: one with peers, and one after.")

    def initial_weights(self) -> Weights | None:
        """Return the method's weights."""
        return self.guarded.alpha

    @property
    def personal(self) -> Tensor:
        """(d,) u; if w was accepted, z, the successor of w."""
        return self.parameters if self.accepted else self.alone.parameters

    def round(self, round_: int) -> Round:
        """Train w, v and u; judge after T_f rounds; then train z."""
        if round_ <= self.judged_at:
            yield from self._apart(self.guarded.round(round_))
            self._follow()
            yield from self._apart(self.unaided.round(round_))
            yield from self.alone.round(round_)
            return
        if self.accepted is None:
            yield from self._judge(round_)
        if not self.accepted:
            yield from self.alone.round(round_)
            return
        replies = yield Request(round_, (self.target,), self.parameters)
        self.optimiser.step(self.parameters, replies.gradients[0])

    def _follow(self) -> None:
        self.alpha, self.alpha_round = self.guarded.alpha, self.guarded.alpha_round

    def _apart(self, steps: Round) -> Round:
        """Pass questions on, and let the target answer without V."""
        replies = None
        try:
            while True:
                request = steps.send(replies) if replies is not None else next(steps)
                replies = yield dataclasses.replace(request, fold=self.rest)
                replies.early = None  # v and u are asked before the next round's question
        except StopIteration:
            return

    def _judge(self, round_: int) -> Round:
        models = torch.stack((self.guarded.personal, self.unaided.parameters))
        replies = yield Request(
            round_, (self.target,), models, want=LOSSES, fold=self.kept, whole=True
        )
        ours, own = replies.losses[0].tolist()
        # |ℓ|, because a user's own loss may be negative; NaN has been replaced by infinity
        self.accepted = ours <= own - abs(own) / self.config.trust.guard
        say = log.info if self.accepted else log.warning
        say(
            "Round %s: on samples kept apart the target's loss is %.4g with peers, %.4g alone; "
            "the guard %s.", round_, ours, own, "accepts" if self.accepted else "refuses",
        )  # fmt: skip
        self.parameters.copy_(self.guarded.personal)
        if self.alpha is not None:
            self.set_weights(np.eye(self.federation.num_silos)[self.target], round_)

    def quarantine(self, silos: NDArray[np.bool_], round_: int) -> None:
        """Pass the quarantine on to the method."""
        self.guarded.quarantine(silos, round_)
        if self.accepted is None:
            self._follow()

    def epoch_report(self) -> dict[str, float]:
        """Add ``accepted`` to the method's report: 1, 0, or NaN before the judgement."""
        accepted = float("nan") if self.accepted is None else float(self.accepted)
        return {**self.guarded.epoch_report(), **super().epoch_report(), "accepted": accepted}

    def silo_figures(self) -> dict[str, Weights]:
        """Return what the method knows about each silo."""
        return self.guarded.silo_figures()


def make_method(config: Config, federation: Federation, parameters: Tensor) -> Method:
    """Return the configured method at w_0, under guard if the key ``guard`` says so.

    Training alone needs no guard and has none.

    SpcacwError if the method's keys do not go together, or for whatever a user's own raises.
    """
    name = config.run.method
    kind = Guarded if config.trust.guard and name != LOCAL else method_class(name)
    with part_of("method", name, "making it of (config, federation, parameters) raises"):
        made: Method = kind(config, federation, parameters)
        _ = made.federation, made.alpha  # a class that forgets super().__init__ has none
    return made
