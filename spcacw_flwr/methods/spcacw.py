"""SP-CACW: Convergence-Aware Client Weighting for Selfish Personalized Learning (the method).

Y. Kiselman and K. Y. Levy, arXiv:2606.29322, Algorithm 1 with the appendix Practical Algorithmic
Details; ``examples/algorithm1.py`` is the same in plain loops. :meth:`SPCACWMethod.round` is the
pseudo-code with one change: the paper updates b̂ before the step, although the step does not need
it. In our order, real silos send the next gradients while the target learns from these.
"""

import logging
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from spcacw_flwr.alpha import BiasTracker, CountSketch, Learner, RunningVariance, Smoothed
from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError, key, part_of
from spcacw_flwr.config.keys import SPCACWKeys
from spcacw_flwr.config.registry import solver_class
from spcacw_flwr.methods.base import WeightedGradients
from spcacw_flwr.methods.costs import CostBook
from spcacw_flwr.silos.device import need_room
from spcacw_flwr.silos.protocol import Federation, Replies, Request, Round
from spcacw_flwr.silos.streams import PARTICIPATION, SKETCH, stream

TOO_LARGE = 1.0
"""Warn above this ηL: the theorems need at most 1/8; above 1 some direction overshoots."""
log = logging.getLogger(__name__)


class SPCACWMethod(WeightedGradients):
    """Algorithm 1 in its practical form, λ_reg = 0."""

    name = "spcacw"
    family = "spcacw"
    regularised: ClassVar[bool] = False
    needs_evidence: ClassVar[bool] = False
    other: ClassVar[str] = ", or method = 'spcacw-plus'"
    """What else the warning about too large steps suggests."""

    def __init__(self, config: Config, federation: Federation, parameters: Tensor) -> None:
        super().__init__(config, federation, parameters)
        keys, training, silos = config.spcacw, config.training, federation.num_silos
        self._check(keys)
        size, some = keys.sketch or len(parameters), training.participation < 1 or keys.probe < 1
        kept = size / len(parameters) * (1 + some)  # b̂, and the last gradient if not all are asked
        need_room(silos, 1 + kept, parameters)
        self.sketch: CountSketch | None = None
        if keys.sketch:
            rng = stream(config.run.seed, SKETCH)
            self.sketch = CountSketch(len(parameters), keys.sketch, rng, parameters.device)
        self.bias = BiasTracker(
            silos, size, target=federation.target, beta=keys.beta,
            schedule=keys.beta_schedule, device=parameters.device,
        )  # fmt: skip
        clipped = math.isfinite(training.longest) and not self.ledger.answers
        largest = training.longest / math.sqrt(training.participation)  # bound of √E‖g̃‖²
        bound = keys.g_max or (largest if clipped else None)
        with part_of("solver", keys.solver, "making it of (silos, eta, bound) raises"):
            self.learner: Learner = solver_class(keys.solver)(silos, training.eta, bound)
        self.smoothness = Smoothed(keys.smoothness_decay)
        if keys.smoothness > 0:
            self.smoothness.update(keys.smoothness)
        self.variance = RunningVariance()
        self.every = keys.update_every or federation.rounds_per_epoch
        self.book = CostBook(
            config, federation, self.bias, bound=bound, every=self.every,
            evidence=self.needs_evidence,
        )  # fmt: skip
        self.quarantined = np.zeros(silos, dtype=bool)
        """(M,) silos whose weight is 0, whatever their costs are."""
        self.lambda_reg, self.first_epoch, self.warned = 0.0, True, False

    def _check(self, keys: SPCACWKeys) -> None:
        """Check that the keys go together; SpcacwError if not."""
        if self.regularised and not solver_class(keys.solver).exact:
            raise SpcacwError(
                f"solver = {keys.solver!r} does not go with the cubic term of spcacw-reg: use ftl "
                "or ftal."
            )
        forgets = keys.beta_schedule == "constant" and keys.beta == 1
        if forgets and self.needs_evidence:
            raise SpcacwError(
                "With beta = 1 nothing is averaged, and the noise of the bias estimates cannot be "
                "told from the biases: set beta below 1."
            )
        if keys.sketch > len(self.parameters):
            raise SpcacwError(
                f"sketch = {keys.sketch} is more than the model's {len(self.parameters)} "
                "parameters: use less, or 0 for exact inner products."
            )

    def request(self, round_: int) -> Request:
        """Ask every silo (with chance p): a peer of weight 0 may become useful again.

        With ``probe`` < 1, peers of weight 0 are asked more rarely.
        """
        keys = self.config.spcacw
        unknown = math.isnan(self.smoothness.value)
        due = keys.smoothness == 0 and (round_ - 1) % keys.smoothness_interval == 0
        silos = self.sampled(round_)
        if keys.probe < 1:
            rng = stream(self.config.run.seed, PARTICIPATION, round_, 1)
            probed = rng.random(self.federation.num_silos) < keys.probe
            kept = probed | (self.alpha > 0)
            kept[self.target] = True
            silos = tuple(silo for silo in silos if kept[silo])
        return Request(round_, silos, self.parameters, smoothness=unknown or due)

    def round(self, round_: int) -> Round:
        """Run round t of Algorithm 1."""
        request = self.request(round_)
        replies = yield request  # g_t^(i) of the silos that take part
        self.observe(request, replies)  # L
        self.step(replies)  # w_t ← w_{t−1} − η Opt(Σ α_{t−1}^(i) g_t^(i)), Eq. (1)
        self.ask_early(request, replies)
        H, norm = self.costs(request, replies)  # b̂_t by Eq. (3); αᵀHα = L̂_t(α), Eq. (2)
        self.add(round_, H, norm)
        if round_ >= self.config.spcacw.t_start and round_ % self.every == 0:
            self.update(round_)  # α_t ← argmin Σ_τ L̂_τ(α) + λ_reg Σ α³

    def say_if_short(self) -> None:
        """Warn if the run ends before the bias estimates average enough rounds."""
        keys, rounds = self.config.spcacw, self.config.run.epochs * self.federation.rounds_per_epoch
        if keys.beta_schedule == "constant" and rounds < 2 / keys.beta:
            log.warning(
                "A run of %s rounds is shorter than the %.0f (2/beta) that the bias estimates "
                "average over: its weights may be luck. Train for more epochs.",
                rounds, 2 / keys.beta,
            )  # fmt: skip

    def observe(self, request: Request, replies: Replies) -> None:
        """Update L, if the target's silo was asked for it."""
        if request.round == 1:
            self.say_if_short()
        if replies.smoothness is not None:
            self.smoothness.update(replies.smoothness)
        if math.isnan(self.smoothness.value):
            raise SpcacwError(
                f"Target silo {self.federation.target} was asked for its smoothness L in round "
                f"{request.round} and sent none: check its ClientApp, or set the key smoothness."
            )
        step = self.config.training.eta * self.smoothness.value
        if step > TOO_LARGE and not self.warned:
            self.warned = True
            log.warning(
                "Round %s: ηL is %.3g where the theorems want at most 1/8: the weights rest on a "
                "bound that says little. Choose a smaller eta%s.", request.round, step, self.other,
            )  # fmt: skip

    def costs(self, request: Request, replies: Replies) -> tuple[NDArray[np.float64], float]:
        """Update b̂, record g_0 for λ_reg, return the round's cost matrix and gradient norm."""
        silos = replies.silos
        rows = self.sketch(replies.gradients) if self.sketch else replies.gradients
        self.bias.update(rows, silos)
        if self.regularised:
            self.variance.add(replies.gradients[silos.index(self.target)])
        silent = sorted(set(request.silos) - set(silos))
        counts = request.round >= self.config.spcacw.t_start
        return self.book.matrix(rows, silos, silent, self.smoothness.value, counts=counts)

    def ask_early(self, request: Request, replies: Replies) -> None:
        """Ask for the next gradients while the target learns from these, if that is possible."""
        # A new α may ask other silos; after an epoch the target's silo first evaluates a model.
        round_ = request.round
        if replies.early and round_ % self.every and not self.ends_epoch(round_):
            replies.early(self.request(round_ + 1))

    def add(self, round_: int, matrix: NDArray[np.float64], norm: float) -> None:
        """Record a round's cost matrix, and give it to the learner from T_start on."""
        smoothness, counts = self.smoothness.value, round_ >= self.config.spcacw.t_start
        self.book.note(matrix, self.alpha, smoothness, norm if counts else None)
        if counts:
            with part_of("solver", self.config.spcacw.solver, "add raises"):
                self.learner.add(matrix, self.alpha, smoothness=smoothness, gradient_norm=norm)

    def update(self, round_: int) -> None:
        """Choose α_t, the leader so far.

        A silo that is not known yet has the target's costs. The target keeps the weight that such
        a silo would get.
        """
        self.regularise()
        alpha, known = self.leader(), self.book.known
        if alpha[~known].any():
            alpha = np.where(known, alpha, 0.0)
            alpha[self.target] += 1.0 - alpha.sum()
        self.set_weights(alpha, round_)

    def regularise(self) -> None:
        """Set λ_reg from the variance of g_0 over the last epoch, or over the first one so far.

        It covers more rounds if K is longer, and two if an epoch is one: one gradient has none.
        """
        if self.regularised:
            whole = self.variance.count >= max(2, self.federation.rounds_per_epoch)
            if whole or self.first_epoch:
                self.lambda_reg = self.own.gamma * self.variance.squared_norm()
            if whole:
                self.variance.reset()
                self.first_epoch = False

    def leader(self) -> NDArray[np.float64]:
        """Return the learner's weights for the rounds so far."""
        with part_of(
            "solver", self.config.spcacw.solver, "minimise, which gives a Solution, raises"
        ):
            return self.learner.minimise(self.alpha, cubic=self.lambda_reg).alpha

    def quarantine(self, silos: NDArray[np.bool_], round_: int) -> None:
        """Set the weights of silos in quarantine (M,) to 0; in the costs they count as silent."""
        self.quarantined = silos
        if self.alpha[silos].any():
            self.set_weights(self.alpha, round_)

    def set_weights(self, alpha: NDArray[np.float64], round_: int) -> None:
        """Store the weights; those of silos in quarantine go to the others in proportion."""
        if alpha[self.quarantined].any():
            alpha = np.where(self.quarantined, 0.0, alpha)
            total = alpha.sum()
            alone = np.eye(len(alpha))[self.target]
            alpha = alpha / total if total > 0 else alone
        super().set_weights(alpha, round_)

    def epoch_report(self) -> dict[str, float]:
        """Add L, λ_reg, the epoch's mean of L̂_t(α_{t−1}), and the regret so far, to the report."""
        return {
            **super().epoch_report(),
            "L": self.smoothness.value,
            "lambda_reg": self.lambda_reg,
            **self.book.report(),
        }

    def silo_figures(self) -> dict[str, NDArray[np.float64]]:
        """Return each silo's estimated ‖b_i‖ and σ_i, and the closed-form weight from them."""
        evidence = self.book.evidence
        if evidence is None:
            return {}
        return evidence.figures(self.config.training.eta, self.smoothness.value)


@dataclass(frozen=True)
class RegularisedKeys:
    """Own keys of spcacw-reg."""

    gamma: float = key(1.0, "γ in λ_reg = γ‖var(g₀)‖², the cubic term (READING 4).", least=0)


class RegularisedSPCACW(SPCACWMethod):
    """SP-CACW reg: adds λ_reg Σ α³ with λ_reg = γ‖var(g₀)‖² (Eq. refined objective)."""

    name = "spcacw-reg"
    Keys = RegularisedKeys
    regularised = True


class ClosedFormSPCACW(SPCACWMethod):
    """SP-CACW with the weights of the lemma "Optimal Weights", from online estimates.

    α = [(λ − C₁‖b_i‖²) / (2C₂σ_i²)]₊. The lemma bounds ‖Σ α b‖² by Σ α‖b‖², so biases never cancel.
    Only silos as unbiased as the target share its weight.
    """

    name = "spcacw-closed-form"
    needs_evidence = True

    def leader(self) -> NDArray[np.float64]:
        """Return the lemma's weights for the means of ‖b_i‖² and σ_i² so far."""
        assert self.book.evidence is not None
        return self.book.evidence.closed_form(self.config.training.eta, self.smoothness.value)
