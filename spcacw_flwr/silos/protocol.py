"""What a method asks of the silos, and what comes back: the same under every engine.

A method's round is a generator of questions. It yields a :class:`Request`, is sent the
:class:`Replies`, may ask again, and returns when its state is that of the next round. Silos keep no
state: whatever a silo computes from (a shared model, a model of its own, a head) comes with the
question, and its mini-batches are a pure function of (seed, silo, round, draw).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from spcacw_flwr.silos.batches import Fold

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
    """Which question of its round this is, counted by :meth:`~.method.Method.play`.

    Private silos answer each question with noise of its own.
    """
    samples: tuple[int, ...] | None = None
    """How many samples of its mini-batch each silo uses; None is all."""
    fold: Fold | None = None
    """Of which part of its training data the target's mini-batch is; None is all of them."""
    whole: bool = False
    """Of losses: whether over all samples of the part, with the model in evaluation mode."""
    smoothness: bool = False
    """Whether the target's silo is also to estimate L."""
    traffic: tuple[int, int] | None = None
    """Floats to and from each silo where the published protocol sends others than this one does.

    A published client may keep its head or its own model at home, where our silos, which keep no
    state, are sent it each time.
    """

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
    """One of :data:`~spcacw_flwr.engine.checks.REASONS`."""
    words: str
    """The same as a phrase for people."""


@dataclass
class Replies:
    """What came back: the silos that answered, in ascending order, and their answers."""

    silos: tuple[int, ...]
    gradients: Tensor
    """(k, d) float32, one row per silo in ``silos``; the next request may overwrite it.

    (k, 0) when losses were asked for.
    """
    losses: Tensor
    """(k,) losses of the mini-batches, or (k, c) at c models; NaN of private silos."""
    smoothness: float | None = None
    """L at the target, when it was asked for."""
    faults: Mapping[int, Fault] = field(default_factory=dict)
    """What was wrong with the answers of other silos that were asked; those are left out."""
    early: Callable[[Request], None] | None = None
    """Where the silos are elsewhere: sends out the question that the next round begins with.

    A method may call it once its model is that of the next round, if nothing it still does in this
    one changes whom it asks. None where the next question may yet be cut.
    """


Round = Generator[Request, Replies, None]
