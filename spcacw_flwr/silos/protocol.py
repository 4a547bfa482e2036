"""A method's questions to the silos and their answers: the same under every engine.

A method's round is a generator of questions. It yields a :class:`Request`, receives the
:class:`Replies`, may ask again, and returns when its state is that of the next round. Silos keep no
state. The question brings everything that a silo computes from (a shared model, its own model, a
head), and a silo's mini-batches are a pure function of (seed, silo, round, draw).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from spcacw_flwr.silos.batches import Fold, rounds_per_pass
from spcacw_flwr.silos.layout import Layout
from spcacw_flwr.silos.privacy import Mechanism

GRADIENTS, LOSSES = "gradients", "losses"


@dataclass(frozen=True, eq=False)
class Request:
    """A question to some silos."""

    round: int
    silos: tuple[int, ...]
    """The silos that are asked, in ascending order."""
    points: Tensor
    """The models. For gradients (d,), one for all, or (k, d), one for each of ``silos``.

    For losses (c, d), c models at which every silo returns its loss, or (k, c, d), c for each silo.
    """
    want: str = GRADIENTS
    draw: int = 0
    """The silo's mini-batch of this round: 0, or 1, 2, … for further, independent mini-batches."""
    number: int = 0
    """The question's number in its round: private silos add new noise to each answer."""
    samples: tuple[int, ...] | None = None
    """How many samples of its mini-batch each silo uses; None means all."""
    fold: Fold | None = None
    """The part of its training data from which the target draws its mini-batch; None means all."""
    whole: bool = False
    """Whether losses are over all samples of the part, with the model in evaluation mode."""
    smoothness: bool = False
    """Whether the target's silo is also to estimate L."""
    traffic: tuple[int, int] | None = None
    """Floats to and from each silo, if the published protocol sends other floats than ours does.
    Its client may keep its own head or model, while our silos receive it with each question."""

    def fault(self, num_silos: int) -> str:
        """Return what is wrong with the question, as a phrase; empty if nothing is."""
        if self.want not in (GRADIENTS, LOSSES):
            return f"want = {self.want!r}, which is neither {GRADIENTS!r} nor {LOSSES!r}"
        if list(self.silos) != sorted({*self.silos} & {*range(num_silos)}):
            return f"silos = {self.silos}, which are not some of 0…{num_silos - 1} in order"
        if self.round < 1 or self.draw < 0 or self.number < 0:
            return (
                f"round = {self.round}, draw = {self.draw} and number = {self.number}, which begin "
                "with 1, 0 and 0"
            )
        given = (1,) * len(self.silos) if self.samples is None else self.samples
        if len(given) != len(self.silos) or any(count < 1 for count in given):
            return f"samples = {given}, which are not one or more of each of silos {self.silos}"
        less = self.want == GRADIENTS
        shape = (len(self.silos), *self.points.shape[1:])
        if self.points.ndim != 2 - less and (
            self.points.ndim != 3 - less or self.points.shape != shape
        ):
            return f"points of shape {tuple(self.points.shape)} for {len(self.silos)} silos"
        return ""

    def floats(self) -> tuple[int, int]:
        """Return how many floats the question sends to each silo, and how many come back."""
        if self.traffic is not None:
            return self.traffic
        dimension = self.points.shape[-1]
        if self.want == LOSSES:
            count = self.points.shape[-2]
            return count * dimension, count
        return dimension, dimension

    def of(self, silos: list[int]) -> Tensor:
        """Return the points for some of the request's silos."""
        if self.points.ndim == (2 if self.want == LOSSES else 1):
            return self.points
        return self.points[[self.silos.index(silo) for silo in silos]]

    def only(self, silos: tuple[int, ...]) -> Request:
        """Return the same question, to only some of its silos."""
        at = [self.silos.index(silo) for silo in silos]
        samples = None if self.samples is None else tuple(self.samples[k] for k in at)
        return replace(self, silos=silos, points=self.of(list(silos)), samples=samples)


@dataclass(frozen=True)
class Fault:
    """Why a silo's answer cannot be used."""

    reason: str
    """One of :data:`~spcacw_flwr.engine.gate.REASONS`."""
    words: str
    """The reason as a phrase for people."""


@dataclass
class Replies:
    """The silos that answered, in ascending order, and their answers."""

    silos: tuple[int, ...]
    gradients: Tensor
    """(k, d) float32, or (k, 0) if losses were asked for; the next request may overwrite it."""
    losses: Tensor
    """(k,) losses of the mini-batches, or (k, c) at c models; NaN for private silos."""
    smoothness: float | None = None
    """L at the target, if the request asked for L."""
    faults: Mapping[int, Fault] = field(default_factory=dict)
    """The faults of the other silos that were asked; their answers are left out."""
    samples: tuple[int, ...] = ()
    """(k,) samples behind each gradient, 0 where its node does not report them; or empty."""
    early: Callable[[Request], None] | None = None
    """If the silos are remote: a function that sends the first question of the next round early.

    A method may call it once its model is that of the next round, if the rest of this round cannot
    change which silos it asks. None where the next question may still change.
    """


Round = Generator[Request, Replies, None]


@dataclass(frozen=True)
class Answers:
    """The answers to a question, before anything in them is checked."""

    replies: Replies
    """Answers in the requested form, from silos that were asked: float32 rows of length d."""
    faults: Mapping[int, Fault] = field(default_factory=dict)
    """Why other messages from silos that were asked are no answers."""
    norms: Tensor | None = None
    """(k,) norms of the gradients if an engine knows them; a non-finite norm is checked again."""


class Evaluation(NamedTuple):
    """The result of an evaluation."""

    figures: dict[str, float]
    """Each metric that applies, with its interval (:meth:`~.metrics.Cases.figures`)."""
    buffers: dict[str, Tensor]
    """The model's tensors besides its trained parameters, for example BatchNorm's statistics."""


class Silos(Protocol):
    """The silos that the training loop asks: a pool, Flower's nodes, or streams."""

    def answer(self, request: Request) -> Answers:
        """Return the answers that came, unchecked, and the faults of other silos."""

    def evaluate(self, vector: Tensor, silo: int) -> Evaluation:
        """Return how good a model is on the test data of a silo."""


@dataclass(frozen=True)
class SiloInfo:
    """What a silo reports about itself: never its data."""

    silo: int
    size: int
    label_counts: tuple[int, ...]
    """Empty if the silo keeps its data private."""
    group: float | None = None
    """True cluster or angle, if the setting knows it: only for reports and the Oracle."""
    oracle: tuple[int, ...] = ()
    """The silos of the same true cluster, if the setting knows it."""
    privacy: Mechanism | None = None
    """How the silo changes its gradients to keep its data private."""
    independent: float | None = None
    """How many of its samples are independent; None means all."""


@dataclass(frozen=True)
class Federation:
    """The silos as they describe themselves to the target: one entry per silo, in silo order."""

    silos: tuple[SiloInfo, ...]
    target: int
    batch_size: int
    layout: Layout | None = None
    """Names and shapes of the model's parameters, for methods that split the network."""

    @property
    def num_silos(self) -> int:
        """M, the number of silos."""
        return len(self.silos)

    @property
    def sizes(self) -> NDArray[np.float64]:
        """n_i, the number of samples of each silo."""
        return np.array([info.size for info in self.silos], dtype=float)

    @property
    def independent(self) -> NDArray[np.float64]:
        """The number of mutually independent samples of each silo, 1 to n_i."""
        found = [info.size if (n := info.independent) is None else n for info in self.silos]
        return np.clip(found, 1.0, self.sizes)

    @property
    def shares(self) -> NDArray[np.float64]:
        """p_i = n_i / Σ n, the weights of FedAvg."""
        return self.sizes / self.sizes.sum()

    @property
    def rounds_per_epoch(self) -> int:
        """⌈n₀/b⌉: an epoch is the target's own pass over its data (READING.md 17)."""
        return rounds_per_pass(self.silos[self.target].size, self.batch_size)
