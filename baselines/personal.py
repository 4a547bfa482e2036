"""The shared parts of methods whose silos own models.

Every silo trains a model w_i of its own, and the server recombines the models. Our silos keep no
state. So the method holds all models, a matrix (M, d), and sends each silo its model with the
question. The models meet in every round (FedAMP, HeurFedAMP, CoBo, FedFomo), or after a period of
training at home (pFedGraph, FeSEM, FedALA, pFedMe)::

    w_i ← Opt_i(w_i, g_i(w_i) + pull_i)        every round, for each silo that answers
    (w_1, …, w_M) ← combine(w_1, …, w_M)       every K rounds, K = one epoch of the target

The published methods have epochs of local training between two meetings. A meeting after every
gradient would be another method; the key ``update-every`` (K) allows it. Silos are sampled for a
whole period, as for a communication round.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError, key
from spcacw_flwr.methods.base import Method, Weights, weighted_sum
from spcacw_flwr.silos.protocol import Federation, Request, Round


class OwnModels(Method):
    """Every silo trains a model of its own; all start at w_0 = ``parameters``."""

    def __init__(self, config: Config, federation: Federation, parameters: Tensor) -> None:
        super().__init__(config, federation, parameters)
        self.models = self.parameters.repeat(federation.num_silos, 1)
        """(M, d), w_i in row i."""

    @property
    def personal(self) -> Tensor:
        """(d,) the target's own model."""
        return self.models[self.target]

    def step(self, silos: Sequence[int], gradients: Tensor) -> None:
        """Step the models of ``silos`` along ``gradients`` (k, d), which may be overwritten."""
        for silo, gradient in zip(silos, gradients, strict=True):
            self.optimiser.step(self.models[silo], gradient, silo)


class AttentiveModels(OwnModels):
    """Own models. In every round ``reach`` pulls w_i towards its mixture u_i = Σ_j ξ_ij w_j.

    The log has ξ_0, the weights of w_j in u_0. SpcacwError when made if the step overshoots.
    """

    reach_is: ClassVar[str] = "λ"
    """The formula of ``reach`` in the method's symbols."""
    remedy: ClassVar[str] = ""

    def __init__(self, config: Config, federation: Federation, parameters: Tensor) -> None:
        super().__init__(config, federation, parameters)
        step = config.training.eta * self.reach
        if step >= 1:
            raise SpcacwError(
                f"{self.name}.lambda = {self.own.lambda_:g} is too much: η {self.reach_is} = "
                f"{step:.3g} must be below 1, or the step overshoots; lower {self.name}.lambda or "
                f"eta{self.remedy}."
            )

    @property
    def reach(self) -> float:
        """The strength with which w_i is pulled towards u_i."""
        return float(self.own.lambda_)

    def attention(self) -> Weights:
        """Return ξ (M, M) of the current models; its rows sum to 1."""
        raise NotImplementedError

    def round(self, round_: int) -> Round:
        """Let every model take a step towards its data and its neighbours."""
        silos = self.sampled(round_)
        replies = yield Request(round_, silos, self.models[list(silos)])
        xi, rows = self.attention(), list(replies.silos)
        apart = self.models[rows] - weighted_sum(xi[rows], self.models)
        self.step(rows, replies.gradients + self.reach * apart)
        if self.ends_epoch(round_):
            self.set_weights(xi[self.target], round_)


@dataclass(frozen=True)
class PeriodKeys:
    """The key of all methods whose silos train at home between meetings."""

    update_every: int = key(
        0, "K, rounds of local training between two meetings; 0 is one epoch of the target.",
        least=0,
    )  # fmt: skip


@dataclass(frozen=True)
class MeetingKeys(PeriodKeys):
    """The keys of methods whose target may use its model from before or after the meeting."""

    personal: str = key(
        "trained",
        "What the target uses: its model as trained, before the meeting that ends a period, or as "
        "combined there.",
        choices=("trained", "combined"),
    )


class MeetingModels(OwnModels):
    """Own models that are trained at home for K rounds and then meet."""

    def __init__(self, config: Config, federation: Federation, parameters: Tensor) -> None:
        super().__init__(config, federation, parameters)
        self.every = self.own.update_every or federation.rounds_per_epoch
        self.trained = self.parameters.clone()
        """The target's model after its last step."""

    @property
    def personal(self) -> Tensor:
        """(d,) the target's own model, before or after the meeting."""
        return self.trained if self.own.personal == "trained" else self.models[self.target]

    def meets(self, round_: int) -> bool:
        """Return whether the models meet at the end of round t."""
        return round_ % self.every == 0

    def participants(self, round_: int) -> tuple[int, ...]:
        """Return the silos of the period: those sampled at its first round."""
        return self.sampled(round_ - (round_ - 1) % self.every)

    def traffic(self, round_: int) -> tuple[int, int]:
        """Return the floats (down, up): d down in a period's first round, d up in its last."""
        dimension = len(self.parameters)
        return dimension * self.meets(round_ - 1), dimension * self.meets(round_)

    def pull(self, silos: Sequence[int]) -> Tensor | float:
        """Return the term to add to the gradients of ``silos``, (k, d); a hook, 0 here."""
        return 0.0

    def round(self, round_: int) -> Round:
        """Step the model of each silo that answers; at the end of a period, meet."""
        silos = self.participants(round_)
        points = self.models[list(silos)]
        replies = yield Request(round_, silos, points, traffic=self.traffic(round_))
        self.step(replies.silos, replies.gradients + self.pull(replies.silos))
        self.trained = self.models[self.target].clone()
        if self.meets(round_):
            yield from self.meet(round_, list(silos)) or ()

    def meet(self, round_: int, silos: list[int]) -> Round | None:
        """Combine the models of the period's silos; this may ask them further questions."""
        raise NotImplementedError

    def restart(self, silos: Sequence[int]) -> None:
        """Continue the local training of ``silos`` with a fresh optimiser, as the authors do."""
        for silo in silos:
            self.optimiser.momentum.pop(silo, None)

    def shares(self, silos: Sequence[int]) -> Weights:
        """Return p_i = n_i / Σ n among ``silos``."""
        sizes = self.federation.sizes[list(silos)]
        return sizes / sizes.sum()
