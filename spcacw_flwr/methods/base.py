"""A method: what it asks the silos in a round, and how the replies change its state.

:class:`Method` is the interface between methods and engines. :class:`WeightedGradients` is the
family of methods that put weights on gradients at one shared model (paper, Eq. update rule),
w_{t+1} = w_t − η Opt(Σ α^{(i)} g^{(i)}). Its members differ only in α. A method does not know which
engine runs it. The method keeps all state; silos keep none.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.sgd import sgd

from spcacw_flwr.alpha import norms_of
from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.keys import TrainingKeys
from spcacw_flwr.silos.accounting import Ledger
from spcacw_flwr.silos.protocol import GRADIENTS, Federation, Replies, Request, Round
from spcacw_flwr.silos.streams import PARTICIPATION, stream
from spcacw_flwr.silos.wire import FLOAT32, size_of

Weights = NDArray[np.float64]


def weighted_sum(weights: Weights, rows: Tensor) -> Tensor:
    """Return Σ α^{(i)} x^{(i)}, (d,), of the rows of a (k, d) tensor; a new tensor."""
    return torch.from_numpy(weights).to(rows) @ rows


class Method:
    """The base of all methods: a model for the target, and rounds.

    ``parameters`` is w_0, (d,), copied. SpcacwError if a silo keeps private what the method needs.
    """

    name: ClassVar[str]
    Keys: ClassVar[type | None] = None
    """A frozen dataclass of the method's own run-config keys, the table ``[name]``."""
    family: ClassVar[str] = ""
    """The table of run-config keys that only this family of methods uses."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Keys (field names, of any part of the project) whose default differs for this method."""
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {}
    """Values by key that ``spcacw tune`` tries for a user's own method, besides those of η."""
    reveals: ClassVar[str] = ""
    """What the method needs from peers besides gradients; private silos do not reveal it."""

    def __init__(self, config: Config, federation: Federation, parameters: Tensor) -> None:
        self.config, self.federation = config, federation
        self.ledger = Ledger(config, federation)
        """What private silos have revealed so far."""
        if self.reveals and self.ledger.answers:
            raise SpcacwError(
                f"Method {self.name} needs its peers' {self.reveals}, and silo "
                f"{min(self.ledger.answers)} keeps its data private (privacy-noise): use a method "
                "that asks for gradients only, such as spcacw."
            )
        self.own: Any = config.method
        """The values of the method's own keys."""
        self.parameters = parameters.clone()
        self.optimiser = Optimiser(config.training)
        first = self.initial_weights()
        self.alpha: Weights | None = None if first is None else self._weights(first)
        """(M,) the weight of each silo for the target; None if the method has no weights."""
        self.alpha_round = 0
        """The round in which α last changed."""
        self._losses: list[float] = []
        self._cost = {"target_gradients": 0, "floats": 0, "bytes": 0}

    def initial_weights(self) -> Weights | None:
        """Return α_0, (M,): e_0, all on the target; None for a method without weights."""
        return np.eye(self.federation.num_silos)[self.target]

    @property
    def target(self) -> int:
        """The target silo."""
        return self.federation.target

    @property
    def personal(self) -> Tensor:
        """(d,) the target's model, which is evaluated and saved."""
        return self.parameters

    def round(self, round_: int) -> Round:
        """Run round t: yield questions, receive the replies, update the state."""
        raise NotImplementedError

    def play(self, round_: int, cut: Callable[[Request], Request] | None = None) -> Round:
        """Run round t as :meth:`round` does; number its questions, count what they cost and reveal.

        ``cut`` removes silos from a question before it is asked: they count as silent. SpcacwError
        if the target was asked and did not answer.
        """
        steps = self.round(round_)
        noted, number = False, 0
        try:
            asked = next(steps)
            while True:
                if wrong := asked.fault(self.federation.num_silos):
                    raise SpcacwError(f"Method {self.name!r} asks with {wrong}.")
                request = cut(asked) if cut else asked
                if request.number != number:
                    request = replace(request, number=number)
                number += 1
                replies = yield request
                self._count(request)
                self.ledger.note(request, request.silos)
                if self.target in request.silos and self.target not in replies.silos:
                    fault = replies.faults.get(self.target)
                    why = f" ({fault.words})" if fault else ""
                    how = "without its gradient no round can be used: check the node that holds it"
                    if fault and fault.reason == "not-finite":
                        how = "its model has probably diverged: choose a smaller eta"
                    raise SpcacwError(
                        f"Target silo {self.target} did not answer round {request.round}{why}; "
                        f"{how}."
                    )
                if self.target in replies.silos and request.want == GRADIENTS and not noted:
                    self._losses.append(float(replies.losses[replies.silos.index(self.target)]))
                    noted = True
                asked = steps.send(replies)
        except StopIteration:
            return

    def quarantine(self, silos: NDArray[np.bool_], round_: int) -> None:
        """Take note of the silos (M,) in quarantine after round t, which are not used; a hook."""

    def _count(self, request: Request) -> None:
        peers = len(request.silos) - (self.target in request.silos)
        sent, got = request.floats()
        self._cost["floats"] += peers * (sent + got)
        wire = self.config.transport.wire if request.want == GRADIENTS else FLOAT32
        self._cost["bytes"] += peers * (size_of(sent, FLOAT32) + size_of(got, wire))
        if request.want == GRADIENTS and self.target in request.silos:
            self._cost["target_gradients"] += 1

    def sampled(self, round_: int, candidates: NDArray[np.int64] | None = None) -> tuple[int, ...]:
        """Return the target and each of ``candidates`` (default: all silos) with chance p."""
        count, p = self.federation.num_silos, self.config.training.participation
        chosen = np.arange(count) if candidates is None else candidates
        if p < 1:
            rng = stream(self.config.run.seed, PARTICIPATION, round_)
            chosen = chosen[rng.random(count)[chosen] < p]
        silos = chosen.tolist()
        return tuple(silos) if self.target in silos else tuple(sorted([*silos, self.target]))

    def set_weights(self, alpha: Weights, round_: int) -> None:
        """Store a copy of the weights at the end of round t, for the log."""
        self.alpha, self.alpha_round = self._weights(alpha), round_

    def _weights(self, alpha: Any) -> Weights:
        """Return a copy; SpcacwError unless it has one finite number for each silo."""
        held, count = np.array(alpha, dtype=np.float64), self.federation.num_silos
        if held.shape != (count,) or not np.isfinite(held).all():
            raise SpcacwError(
                f"Method {self.name} gives weights of shape {held.shape}, or not finite ones: they "
                f"must be {count} finite numbers, one for each silo."
            )
        return held

    def ends_epoch(self, round_: int) -> bool:
        """Return whether round t is the last of the target's pass over its data."""
        return round_ % self.federation.rounds_per_epoch == 0

    def epoch_report(self) -> dict[str, float]:
        """Return the epoch's figures for the log, and start those of the next epoch.

        ``loss`` is the mean of the target's mini-batch losses. Counted since training began:
        ``target_gradients``, which the target's silo computed; ``floats``, the numbers that went
        between target and peers; and ``bytes``, the bytes of these numbers (``wire``).
        """
        loss = math.fsum(self._losses) / max(1, len(self._losses))
        self._losses.clear()
        return {"loss": loss, **self._cost}

    def silo_figures(self) -> dict[str, Weights]:
        """Return what the method knows about each silo, (M,) each, for the log."""
        return {}

    def figures(self) -> dict[str, Weights]:
        """Return :meth:`silo_figures`, and what private silos have revealed: ε so far."""
        return self.silo_figures() | self.ledger.figures()


class WeightedGradients(Method):
    """Family W: weights on the silos' gradients at one shared model. Subclasses choose α."""

    alpha: Weights
    """(M,) on the simplex."""

    def request(self, round_: int) -> Request:
        """Ask the target always, and each peer with nonzero weight with chance p, at round t."""
        silos = self.sampled(round_, np.flatnonzero(self.alpha))
        return Request(round_, silos, self.parameters)

    def round(self, round_: int) -> Round:
        """Ask for gradients at w_{t−1}, look at them, step with α_{t−1}, then learn α_t."""
        request = self.request(round_)
        replies = yield request
        self.observe(request, replies)
        self.step(replies)
        self.learn(request, replies)

    def observe(self, request: Request, replies: Replies) -> None:
        """Read the gradients as they came, before the step; a hook, empty here."""

    def learn(self, request: Request, replies: Replies) -> None:
        """Choose α_t, after the step; a hook, empty here."""

    def step(self, replies: Replies) -> None:
        """w_t ← optimiser step on Σ α_{t−1} g̃."""
        self.optimiser.step(self.parameters, self.weighted(replies))

    def weighted(self, replies: Replies) -> Tensor:
        """Return Σ α_{t−1} g̃ (d,); silos that did not report contribute nothing."""
        return weighted_sum(self.shares(replies), replies.gradients)

    def shares(self, replies: Replies) -> Weights:
        """Return the weights α_{t−1} z/p (k,) of the silos that reported."""
        return self.alpha[list(replies.silos)] * self.factors(replies.silos)

    def factors(self, silos: tuple[int, ...]) -> Weights:
        """Return z/p, (k,), of silos that reported: g̃ = g z/p (Prop. partial participation).

        The factors make g̃ unbiased. The target always takes part (z = 1 with certainty), so its g̃
        is g. The factors multiply the weights, so no gradient has to change.
        """
        factors = np.full(len(silos), 1 / self.config.training.participation)
        factors[silos.index(self.target)] = 1.0
        return factors


class Optimiser:
    """Opt: SGD with momentum and weight decay (paper, appendix Network Architectures), in place.

    It calls PyTorch's step as a function of vectors, because PyTorch's class imports a compiler,
    which takes a second. One object serves several models, such as a personal and a global one.
    """

    def __init__(self, keys: TrainingKeys) -> None:
        self.keys = keys
        self.momentum: dict[Hashable, Tensor | None] = {}
        """The momentum buffer (d,) of each model that has taken a step, by its name."""

    def step(self, point: Tensor, gradient: Tensor, name: Hashable = None) -> None:
        """Point ← Opt(point, gradient); both (d,), and the gradient may be overwritten.

        With ``clip = "aggregate"`` the gradient is clipped here.
        """
        keys = self.keys
        if keys.clip == "aggregate" and keys.max_norm > 0:
            norm = float(norms_of(gradient))
            gradient.mul_(min(1.0, keys.max_norm / norm) if norm > 0 else 1.0)
        buffer = [self.momentum.get(name)]
        sgd(
            [point], [gradient], buffer, foreach=False, lr=keys.eta, momentum=keys.momentum,
            weight_decay=keys.weight_decay, dampening=0.0, nesterov=False, maximize=False,
        )  # fmt: skip
        self.momentum[name] = buffer[0]
