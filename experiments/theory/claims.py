"""Other claims of the paper, on quadratics: both sides of its bounds, and the silos' weights.

``both_sides`` measures the left and right side of every inequality about convergence. The other
studies report the target's excess loss f⁽⁰⁾(w) − min f⁽⁰⁾, the mean over the last quarter of
rounds: silos of unequal noise ("Design Philosophy"), the cubic regulariser against a quadratic one
("Cubic Regularization"), the cost with known bounds of the biases ("Relaxation of the Stationary
Bias Assumption"), and public data sets as silos ("Public Data Exploitation").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from spcacw_flwr.alpha.closed_form import optimal_weights
from spcacw_flwr.alpha.learners import DIAMETER, exp_concavity, gradient_bound
from spcacw_flwr.alpha.solver import minimise
from spcacw_flwr.config.declare import key
from spcacw_flwr.methods.base import WeightedGradients
from spcacw_flwr.methods.spcacw import RegularisedSPCACW, SPCACWMethod
from spcacw_flwr.silos.protocol import Replies, Request

from .problems import Array, Quadratics
from .trials import (
    AUTARKY,
    HARMONIC,
    LEARNED,
    ORACLE,
    SPCACW,
    UNIFORM,
    Cell,
    Trial,
    Variant,
    measured,
    repeated,
    spread,
)


@dataclass(frozen=True)
class Told:
    """Given values of a rule: a number for each silo."""

    values: str = key("", "Numbers, with spaces between them.")


class Fixed(WeightedGradients):
    """Fixed weights, given by the key ``values``."""

    name = "fixed"
    Keys = Told

    def initial_weights(self) -> Array:
        """Return the given weights."""
        return np.array(self.own.values.split(), float)


class Cosine(WeightedGradients):
    """α ∝ [cos(ḡᵢ, ḡ₀)]₊ of the mean gradients so far, every K rounds."""

    name = "cosine"
    total: Any = 0

    def request(self, round_: int) -> Request:
        """Ask all sampled silos."""
        return Request(round_, self.sampled(round_), self.parameters)

    def learn(self, request: Request, replies: Replies) -> None:
        """Add the gradients, and compare the means every K rounds."""
        self.total = self.total + replies.gradients.double().numpy()
        if request.round % self.config.spcacw.update_every == 0:
            unit = self.total / np.linalg.norm(self.total, axis=1, keepdims=True)
            alike = np.maximum(unit @ unit[self.target], 0)
            self.set_weights(alike / alike.sum(), request.round)


class Bounded(SPCACWMethod):
    """SP-CACW whose cost has (Σ αᵢBᵢ)², with given bounds B, instead of ‖Σ αᵢb̂ᵢ‖²."""

    name = "bounded"
    Keys = Told

    def costs(self, request: Request, replies: Replies) -> tuple[NDArray[np.float64], float]:
        """Replace the term of the biases."""
        H, norm = super().costs(request, replies)
        rows, bounds = self.bias.estimate.double().numpy(), self.own.values.split()
        return H - rows @ rows.T + np.outer(*(np.array(bounds, float),) * 2), norm


class Quadratic(RegularisedSPCACW):
    """SP-CACW reg with λ_reg Σ α² instead of λ_reg Σ α³."""

    name = "quadratic"

    def leader(self) -> Array:
        """Return the weights of the regularised sum."""
        total = cast(Any, self.learner).total
        return minimise(total + self.lambda_reg * np.eye(len(total)), start=self.alpha).alpha


QUIET = {"diagnostics": False}
"""Keys for no log of regrets, which would cost time."""


def own(rule: type, label: str, keys: Mapping[str, Any] | None = None, **more: Any) -> Variant:
    """Return a rule of this file with its own keys; its step size is that of the target alone."""
    table = {cast(Any, rule).name: more} if more else {}
    return Variant(label, f"{__name__}:{rule.__name__}", {**(keys or {}), **table}, "target")


def told(values: Iterable[float]) -> str:
    """Return the value of the key of :class:`Told`."""
    return " ".join(map(repr, map(float, values)))


def alone(variant: Variant) -> Variant:
    """Return the variant with the step size of the target alone, and without a log of regrets."""
    quiet = QUIET if variant.method == "spcacw" else {}
    return replace(variant, helpers="target", keys={**variant.keys, **quiet})


def least(H: Array) -> float:
    """Return min αᵀHα over the simplex."""
    alpha = minimise(H).alpha
    return float(alpha @ H @ alpha)


def both_sides(trial: Trial) -> dict[str, tuple[float, float]]:
    """Run a trial; return the left and right side of each inequality, means over rounds.

    Fixed weights have no b̂, and only the inequalities without b̂. R is the regret's bound as
    printed; its g_max is the largest gradient of the run. ‖ξ_t‖² is the largest of ‖b̂ᵢ − bᵢ‖²,
    which is enough for the proof. α* is the run's own best, the strictest choice.
    """
    problem, T = cast(Quadratics, trial.problem), trial.rounds
    L, eta, variances, M = problem.smoothness, trial.eta, problem.variances, len(problem.variances)
    sums: Any = np.zeros(9)
    true, seen, largest = np.zeros((M, M)), np.zeros((M, M)), 0.0
    for t, point, alpha, method in trial.play():
        gradient, b = problem.gradient(point), problem.biases(point, t)
        g = problem.answers(trial.seed, point, t, 0)
        slope, bias, step = (
            gradient @ gradient,
            np.square(alpha @ b).sum(),
            np.square(alpha @ g).sum(),
        )
        noise, each = alpha**2 @ variances, alpha @ np.square(b).sum(axis=1)
        true += b @ b.T + eta * L * g @ g.T
        largest = max(largest, float(np.linalg.norm(g, axis=1).max()))
        learner = method if isinstance(method, SPCACWMethod) else None
        rows = learner.bias.estimate.double().numpy() if learner else b
        seen += rows @ rows.T + eta * L * g @ g.T
        found = np.square(alpha @ rows).sum()
        sums += (
            slope, step, 2 * slope + 2 * bias + noise, bias + eta * L * step,
            (1 + 2 * eta * L) * each + eta * L * noise + 2 * eta * L * slope, bias, found,
            found + eta * L * step, np.square(rows - b).sum(axis=1).max(),
        )  # fmt: skip
    slope, step, moment, cost, proxy, bias, found, guess, error = (sums / T).tolist()
    first = 2 * problem.gap / (eta * T)
    sides = {
        "Lemma A.2, second moment": (step, moment), "E L ≤ L̄, for Lemma 3.1": (cost, proxy),
        "Theorem 3.1": (slope, first + cost),
    }  # fmt: skip
    if not learner:
        return sides
    best, regret = least(true) / T, guess - least(seen) / T
    known = eta, L, largest
    growth = 1 + np.log(T)
    R = 64 * (1 / exp_concavity(*known) + gradient_bound(*known) * DIAMETER) * M * growth / T
    bound = 2 * float((variances[1:] + variances[0]).max()) * growth / T
    return {
        **sides,
        "Lemma 4.1, cumulative bias": (bias, 2 * found + bound),
        "corollary of Lemma 4.1": (cost, 2 * guess + bound),
        "Theorem 4.1, regret": (regret, R),
        "Theorem 4.2": (cost, 4 * best + 2 * R + 6 * error),
        "Theorem 4.2, R measured": (cost, 4 * best + 2 * regret + 6 * error),
        "Lemma C.4, Eq. (6)": (slope, first + 4 * best + 4 * R + 6 * bound),
        "Lemma C.4, R measured": (slope, first + 4 * best + 4 * regret + 6 * bound),
    }


def bounds() -> Iterator[Cell]:
    """Yield the runs of each choice of weights."""
    learned = {**HARMONIC, "update_every": 1, **QUIET}
    variants = (
        AUTARKY, UNIFORM, ORACLE, Variant("SP-CACW, FTL", "spcacw", learned),
        Variant("SP-CACW, FTAL", "spcacw", learned | {"solver": "ftal"}),
    )  # fmt: skip
    for variant in variants:
        yield from repeated(0, Quadratics(), variant, 500, 12)


def compared(cells: list[Cell], workers: int) -> pd.DataFrame:
    """Return both sides, their ratio, and right − left in standard errors over seeds."""
    rows = [
        (statement, cell.label, *sides)
        for cell, found in zip(cells, spread(both_sides, cells, workers), strict=True)
        for statement, sides in found.items()
    ]
    table = pd.DataFrame(rows, columns=["statement", "weights", "left", "right"])
    table["room"] = table["right"] - table["left"]
    groups = table.groupby(["statement", "weights"], sort=False)
    table = groups.mean()
    table["margin"] = table["room"] / groups["room"].sem()
    table["times"] = table["right"] / table["left"]
    return table.reset_index().drop(columns="room")


def final(trial: Trial) -> dict[str, float]:
    """Run a trial; return the target's excess loss, and α at the end.

    ``target`` is α₀, ``same`` the weight of the rest of the target's cluster, ``off`` that of all
    others. ``moved`` is the mean of ‖α_{t+1} − α_t‖₁ per update (K = 20) in the second half.
    """
    T, own, excess, moved = trial.rounds, trial.problem.own, [], 0.0
    for t, point, before, method in trial.play():
        after = cast(Array, method.alpha)
        moved += float(np.abs(after - before).sum()) if t > T // 2 else 0.0
        if t > 3 * T // 4:
            excess.append(0.5 * point @ trial.problem.gradient(point))
    return {
        "excess": float(np.mean(excess)), "target": after[0], "same": after[1:own].sum(),
        "off": after[own:].sum(), "moved": moved / (T / 2 / 20),
    }  # fmt: skip


def ended(cells: list[Cell], workers: int, part: str = "") -> pd.DataFrame:
    """Return the means of :func:`final`; the text before a label's colon is column ``part``."""
    table = measured(cells, workers, final, "excess")
    if part:
        found = table["label"].str.partition(": ")
        table.insert(0, part, found[0])
        table["label"] = found[2]
    return table


ROUNDS, SEEDS = 400, 10
"""Rounds and seeds of the studies below."""


def rivals(problem: Quadratics, T: int) -> list[Variant]:
    """Return SP-CACW and its rivals; a rule that needs σᵢ² or ‖bᵢ‖ is given the true values."""
    variances, norms = problem.variances, np.linalg.norm(problem.biases(problem.start, T), axis=1)
    eta = Trial(problem, alone(AUTARKY), T, 0, 2.0).eta
    lemma = optimal_weights(norms**2, variances, eta, problem.smoothness).alpha
    return [
        alone(SPCACW), own(Fixed, "Lemma 3.1, told b and σ", values=told(lemma)),
        own(Cosine, "cosine of mean gradients", LEARNED), alone(UNIFORM),
        own(Fixed, "inverse variance, told σ", values=told(1 / variances / (1 / variances).sum())),
        AUTARKY,
    ]  # fmt: skip


def noises() -> Iterator[Cell]:
    """Yield the runs of three silos: a noisy target, a peer like it, a shifted peer of less noise.

    x is σ² of the first two over σ² of the shifted peer.
    """
    for shift, ratio in product((0.2, 1.0), (1.0, 4.0, 16.0, 64.0)):
        shifted = Quadratics(2, 1, 40.0, noises=(1, 1, 1 / ratio), shifts=(0, 0, shift))
        for variant in rivals(shifted, ROUNDS):
            label = f"‖b‖ = {shift:g}: {variant.label}"
            yield from repeated(ratio, shifted, variant, ROUNDS, SEEDS, label=label)


def regularisers() -> Iterator[Cell]:
    """Yield the runs with a cubic term, a quadratic term and no term; x is γ."""
    betas = {"β = 1/t": HARMONIC, "β = .1": {}}
    for (name, beta), gamma in product(betas.items(), (0.0, 0.1, 1.0, 10.0, 100.0)):
        keys = {**LEARNED, **QUIET, **beta}
        cubic = Variant(f"{name}: cubic", "spcacw-reg", {**keys, "spcacw_reg": {"gamma": gamma}})
        square = replace(own(Quadratic, f"{name}: quadratic", keys, gamma=gamma), helpers="cluster")
        none = Variant(f"{name}: none", "spcacw", keys)
        for variant in (cubic, square) if gamma else (none,):
            yield from repeated(gamma, Quadratics(), variant, ROUNDS, SEEDS)


def bounded() -> Iterator[Cell]:
    """Yield the runs with given bounds of the biases, and those with estimates.

    A b that moves with w is largest at w₁. The bound with .2 more is that much too large for the
    target's own cluster, too.
    """
    problems = {
        "one b": Quadratics(), "a b of each silo": Quadratics(shifts=(0.0,) * 8 + (1.0,) * 8),
        "b moves with w": Quadratics(stretch=1.0),
        "b appears at T/2": Quadratics(onset=ROUNDS // 2 + 1),
    }  # fmt: skip
    for name, problem in problems.items():
        norms = np.linalg.norm(problem.biases(problem.start, ROUNDS), axis=1)
        loose = norms + 0.2 * (np.arange(len(norms)) > 0)
        known = {"B = ‖b‖": norms, "B = 3‖b‖": 3 * norms, "B = ‖b‖/3": norms / 3,
                 "B = ‖b‖ + .2": loose}  # fmt: skip
        rules = [own(Bounded, label, LEARNED | QUIET, values=told(B)) for label, B in known.items()]
        for rule in (*rules, alone(SPCACW), ORACLE):
            variant, label = replace(rule, helpers="cluster"), f"{name}: {rule.label}"
            yield from repeated(0, problem, variant, ROUNDS, SEEDS, label=label)


def public() -> Iterator[Cell]:
    """Yield the runs of a noisy target with large public data sets as silos: σ² is a 16th.

    Two data sets are useful, ‖b‖ = .1, and count as the target's cluster. x data sets are harmful,
    ‖b‖ = 1, each in its own direction.
    """
    for harmful in (0, 2, 8, 32):
        problem = Quadratics(
            3, harmful, 40.0, noises=(1.0,) + (1 / 16,) * (2 + harmful),
            shifts=(0.0, 0.1, 0.1) + (1.0,) * harmful,
        )  # fmt: skip
        for variant in rivals(problem, ROUNDS):
            yield from repeated(harmful, problem, variant, ROUNDS, SEEDS)
