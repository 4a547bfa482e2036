"""What a method asks of the silos, and what comes back: the same under every engine.

A method's round is a generator of questions. It yields a :class:`Request`, is sent the
:class:`Replies`, may ask again, and returns when its state is that of the next round. Silos keep no
state: whatever a silo computes from (a shared model, a model of its own, a head) comes with the
question, and its mini-batches are a pure function of (seed, silo, round, draw).
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
    """Who is asked, in ascending order."""
    points: Tensor
    """Where. For gradients (d,), a model for all, or (k, d), a model for each of ``silos``.

    For losses (c, d), c models of which every silo tells its loss, or (k, c, d), c for each.
    """
    want: str = GRADIENTS
    draw: int = 0
    """Which of a silo's mini-batches of this round: 0, or 1, 2, … for independent further ones."""
    number: int = 0
    """Which question of its round this is: private silos answer each with noise of its own."""
    samples: tuple[int, ...] | None = None
    """How many samples of its mini-batch each silo uses; None is all."""
    fold: Fold | None = None
    """The part of its training data from which the target draws its mini-batch; None is all."""
    whole: bool = False
    """Whether losses are over all samples of the part, with the model in evaluation mode."""
    smoothness: bool = False
    """Whether the target's silo is also to estimate L."""
    traffic: tuple[int, int] | None = None
    """Floats to and from each silo where the published protocol sends others than this one does:
    its client may keep a head or a model of its own at home, which our silos are sent each time."""

    def floats(self) -> tuple[int, int]:
        """Return the floats that the question sends to each silo, and gets back from it."""
        if self.traffic is not None:
            return self.traffic
        dimension = self.points.shape[-1]
        if self.want == LOSSES:
            count = self.points.shape[-2]
            return count * dimension, count
        return dimension, dimension

    def of(self, silos: list[int]) -> Tensor:
        """Return the points for some of the silos that are asked."""
        if self.points.ndim == (2 if self.want == LOSSES else 1):
            return self.points
        return self.points[[self.silos.index(silo) for silo in silos]]

    def only(self, silos: tuple[int, ...]) -> Request:
        """Return the same question to some of its silos."""
        at = [self.silos.index(silo) for silo in silos]
        samples = None if self.samples is None else tuple(self.samples[k] for k in at)
        return replace(self, silos=silos, points=self.of(list(silos)), samples=samples)


@dataclass(frozen=True)
class Fault:
    """Why a silo's answer cannot be used."""

    reason: str
    """One of :data:`~spcacw_flwr.engine.gate.REASONS`."""
    words: str
    """The same as a phrase for people."""


@dataclass
class Replies:
    """What came back: the silos that answered, in ascending order, and their answers."""

    silos: tuple[int, ...]
    gradients: Tensor
    """(k, d) float32, or (k, 0) if losses were asked for; the next request may overwrite it."""
    losses: Tensor
    """(k,) losses of the mini-batches, or (k, c) at c models; NaN of private silos."""
    smoothness: float | None = None
    """L at the target, when it was asked for."""
    faults: Mapping[int, Fault] = field(default_factory=dict)
    """What was wrong with the answers of other silos that were asked; those are left out."""
    samples: tuple[int, ...] = ()
    """(k,) how many samples each gradient is of, or 0 where its node does not say; or empty."""
    early: Callable[[Request], None] | None = None
    """Where the silos are elsewhere: sends out the question that the next round begins with.

    A method may call it once its model is that of the next round, if nothing it still does in this
    one changes whom it asks. None where the next question may yet be cut.
    """


Round = Generator[Request, Replies, None]


@dataclass(frozen=True)
class Answers:
    """What came back to a question, before anything of it is believed."""

    replies: Replies
    """From silos that were asked, as they were asked: float32 rows of the right length."""
    faults: Mapping[int, Fault] = field(default_factory=dict)
    """What else came from silos that were asked, and why it is no answer."""
    norms: Tensor | None = None
    """(k,) norms of the gradients where an engine knows them; not finite is looked at again."""


class Evaluation(NamedTuple):
    """What an evaluation found."""

    figures: dict[str, float]
    """Each metric that applies, with its interval (:meth:`~.metrics.Cases.figures`)."""
    buffers: dict[str, Tensor]
    """What the model holds besides its trained parameters: BatchNorm's statistics, say."""


class Silos(Protocol):
    """Whom the loop of training asks: a pool, Flower's nodes, or streams."""

    def answer(self, request: Request) -> Answers:
        """Return the answers that came, unchecked, and what was wrong with others."""

    def evaluate(self, vector: Tensor, silo: int) -> Evaluation:
        """Return how good a model is on the test data of a silo."""


@dataclass(frozen=True)
class SiloInfo:
    """What a silo tells about itself when asked: never its data."""

    silo: int
    size: int
    label_counts: tuple[int, ...]
    """Empty if the silo keeps its data private."""
    group: float | None = None
    """True cluster or angle, where the setting knows it: for reports and the Oracle only."""
    oracle: tuple[int, ...] = ()
    """The silos of the same true cluster, where the setting knows it."""
    privacy: Mechanism | None = None
    """What it does to its gradients to keep its data private."""
    independent: float | None = None
    """How many of its samples are independent; None is all of them."""


@dataclass(frozen=True)
class Federation:
    """The silos as the target knows them after asking: one entry per silo, in silo order."""

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
        """n_i, the samples of each silo."""
        return np.array([info.size for info in self.silos], dtype=float)

    @property
    def independent(self) -> NDArray[np.float64]:
        """How many of each silo's samples are independent of each other, 1 to n_i."""
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
