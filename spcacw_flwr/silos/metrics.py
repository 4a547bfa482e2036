"""Metrics: how good a model is on test cases, with the 95 % interval that their number allows.

A metric has two parts. ``score`` gives a number to each test case, from its outputs and its label.
``find`` computes the metric from these numbers, and how much each case moves it: the influence φ.
√Σφ²/n is the metric's standard error (the infinitesimal jackknife). For accuracy this is the
binomial error, for AUROC that of E. R. DeLong, D. M. DeLong and D. L. Clarke-Pearson (Biometrics
44, 1988). The difference of two models on the same cases has the error of φ − φ′ (McNemar, DeLong).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.silos.models import losses_of, several, squared_errors

Z = 1.959964
"""Standard errors on each side of a 95 % interval."""
LEAST = 6
"""The fewest cases that can rule out chance: five cases all go one way by chance 1 time in 16."""


class Found(NamedTuple):
    """A metric on some cases."""

    value: float
    influence: Tensor
    """φ (n,), float64."""
    one: float
    """The most that one case can move a share of cases, or of pairs of cases."""
    parts: Sequence["Found"] = ()
    """The parts whose plain mean this metric is, each on its own cases."""
    most: float = math.inf
    """The most cases that Wilson's interval may rest on."""
    freedom: float = math.inf
    """Degrees of freedom of the error that the influence gives."""
    signs: tuple[float, ...] = (1.0,)
    """−1.0 too if the value is a distance from 0 of what may as well be on the other side."""


def _right(outputs: Tensor, y: Tensor) -> Tensor:
    right = ((outputs > 0) == (y > 0.5) if several(y) else outputs.argmax(dim=-1) == y).double()
    return right.flatten(1).mean(1) if right.ndim > 1 else right


def over_shares(counts: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the ``score`` of balanced accuracy: whether the class of largest p_k/π_k is right.

    π holds the shares of the classes among the training labels, whose numbers are ``counts`` (C,).
    So a class is chosen where the case makes it more likely than its share: with 6 % of positives,
    a useful model may give no positive case p ≥ ½. This rule is best for balanced accuracy (A. K.
    Menon et al., Long-tail learning via logit adjustment, ICLR 2021).

    A class without a training label has no p_k/π_k. It gets the share of the most common class, and
    so is chosen only where its p_k is the largest of all. This is fair to a class that peers have
    taught, and a class that no silo has changes nothing.
    """
    shift = torch.where(counts > 0, counts, counts.max()).log()
    return lambda outputs, y: _right(outputs - shift, y)


def _margin(outputs: Tensor, y: Tensor) -> Tensor:
    return outputs[:, 1] - outputs[:, 0]


def _excess(outputs: Tensor, y: Tensor) -> Tensor:
    return outputs.softmax(-1)[:, 1] - y


def _brier(outputs: Tensor, y: Tensor) -> Tensor:
    if several(y):
        return (outputs.sigmoid() - y).square().mean(1)
    wrong = outputs.softmax(-1) - torch.nn.functional.one_hot(y, outputs.shape[-1])
    each = wrong.square().sum(-1) / (2 if outputs.shape[-1] == 2 else 1)
    return each.flatten(1).mean(1) if each.ndim > 1 else each


def _mean(scores: Tensor, y: Tensor, weight: Tensor | None) -> Found:
    if weight is None:
        value = scores.mean()
        return Found(float(value), scores - value, 1 / len(scores))
    value, share = (scores @ weight) / weight.sum(), weight / weight.mean()
    return Found(float(value), share * (scores - value), float(share.max()) / len(scores))


def _distance(scores: Tensor, y: Tensor, weight: Tensor | None) -> Found:
    """Return how far the mean is from 0."""
    value, influence, *_ = _mean(scores, y, weight)
    signs = (1.0,) if abs(value) > Z * standard_error(influence) else (1.0, -1.0)
    return Found(abs(value), influence * math.copysign(1, value), 0.0, signs=signs)


def _balanced(scores: Tensor, y: Tensor, weight: Tensor | None) -> Found:
    influence, parts = torch.zeros_like(scores), []
    classes = (y if weight is None else y[weight > 0]).unique()
    for label in classes:
        its = y == label
        parts.append(_mean(scores[its], y, None if weight is None else weight[its]))
        influence[its] = parts[-1].influence * len(y) / (its.sum() * len(classes))
    value = sum(part.value for part in parts) / len(parts)
    return Found(value, influence, max(part.one for part in parts) / len(parts), parts)


def _auroc(scores: Tensor, y: Tensor, weight: Tensor | None) -> Found:
    """Return the chance that a case of class 1 has more margin than a case of class 0; ties ½."""
    weight = torch.ones_like(scores) if weight is None else weight
    values, at = scores.unique(return_inverse=True)
    better, its = torch.empty_like(scores), (y == 0, y == 1)
    for own, other in (its, its[::-1]):
        mass = values.new_zeros(len(values)).index_add_(0, at[other], weight[other])
        below = (mass.cumsum(0) - mass / 2)[at[own]] / mass.sum()
        better[own] = below if own is its[1] else 1 - below
    value = float((better @ (weight * its[1])) / weight[its[1]].sum())
    influence, ones, squares, counts = torch.empty_like(scores), [], [], []
    for own in its:
        count, share = int(own.sum()), weight[own] / weight[own].sum()
        unbiased = math.sqrt(count / (count - 1)) if count > 1 else math.nan
        influence[own] = unbiased * len(y) * share * (better[own] - value)
        ones.append(float(share.max()))
        squares.append(float(share.square().sum()))
        counts.append(count)
    most, freedom = _newcombe(value, *squares), min(counts) - 1
    return Found(value, influence, max(ones), most=most, freedom=freedom)


def _newcombe(value: float, *squares: float) -> float:
    """Return value (1 − value) / variance of an AUROC, from Σ share² = 1/n of both classes.

    R. G. Newcombe, Statistics in Medicine 25, 2006 (method 5). It has no variance to estimate.
    DeLong's is estimated, and often far too small where a class has few cases.
    """
    ones, zeros = (1 / square for square in squares)
    others = (ones + zeros) / 2 - 1
    return ones * zeros / (1 + others * ((1 - value) / (2 - value) + value / (1 + value)))


def _r2(scores: Tensor, y: Tensor, weight: Tensor | None) -> Found:
    """Return 1 − the mean squared error over the variance of the labels."""
    y = y.double()
    error = _mean(scores, y, weight)
    spread = _mean((y - _mean(y, y, weight).value).square(), y, weight)
    ratio = error.value / spread.value
    return Found(1 - ratio, (ratio * spread.influence - error.influence) / spread.value, 0.0)


@dataclass(frozen=True)
class Metric:
    """A metric, its direction, and how it is written."""

    name: str
    """The name in the key ``metric`` and in all tables."""
    label: str
    score: Callable[[Tensor, Tensor], Tensor]
    """(outputs (n, …, classes), labels (n, …)) → (n,)"""
    find: Callable[[Tensor, Tensor, Tensor | None], Found] = _mean
    higher: bool = True
    """Whether more is better."""
    share: bool = True
    """Whether it is a share of 1 and has Wilson's interval."""
    percent: bool = False
    """Whether it is written in percent, and its differences in points."""
    most: float = math.inf
    """The largest value that it can have, if it is no share."""

    @property
    def sign(self) -> int:
        """1 if more is better, −1 if less is better."""
        return 1 if self.higher else -1

    def text(self, value: float | None) -> str:
        """Return a value as text for people, ``93.20 %`` or ``0.873``."""
        if value is None or math.isnan(value):
            return "–"
        if self.percent:
            return f"{value:.2f} %"
        return self.number(value).replace("-", "−", int(value < 0))  # the sign, not an exponent's

    def number(self, value: float, sign: str = "") -> str:
        """Format a value that is no percentage; squared errors may have any size (label units)."""
        size = abs(value)
        plain = size < 10 and (self.name != "mse" or size >= 0.1 or not size)
        form = ".3f" if plain else ",.0f" if 1e4 <= size < 1e9 else ".4g"
        return f"{value:{sign}{form}}"

    def gap(self, difference: float) -> str:
        """Return the size of a difference, ``2.1 points of accuracy`` or ``0.021 of AUROC``."""
        size = abs(difference)
        if not self.percent:
            return f"{self.text(size)} of {self.label}"
        return f"{size:.{1 if size >= 0.095 else 2}f} points of {self.label}"

    def best(self, values: Sequence[float]) -> int:
        """Return the index of the best value, the first one if equal; NaN is the worst."""
        rank = [-math.inf if math.isnan(value) else self.sign * value for value in values]
        return rank.index(max(rank))

    def interval(self, found: Found) -> tuple[float, float]:
        """Return the 95 % interval: Wilson's for shares, two standard errors for others.

        The latter ends where the metric does: R² at 1, a loss at 0.

        A mean of shares combines their intervals (MOVER: G. Y. Zou and A. Donner, Statistics in
        Medicine 27, 2008), because a class of three cases, all of them right, proves little.
        """
        if found.parts:
            ends = [self.interval(part) for part in found.parts]
            each = zip(ends, found.parts, strict=True)
            gaps = [(part.value - low, high - part.value) for (low, high), part in each]
            below, above = (math.hypot(*side) / len(ends) for side in zip(*gaps, strict=True))
            return found.value - below, found.value + above
        value, error = found.value, standard_error(found.influence)
        if not self.share:
            low = value - Z * error
            return (low if self.higher else max(low, 0.0)), min(value + Z * error, self.most)
        inside = max(0.0, value * (1 - value))
        told = inside > 1e-12 and error > 1e-12  # else all cases agree: use their number
        count = min(inside / error**2 if told else 1 / found.one, found.most)
        middle, whole = value + Z**2 / (2 * count), 1 + Z**2 / count
        width = Z * math.sqrt(inside / count + (Z / (2 * count)) ** 2)
        return (middle - width) / whole, (middle + width) / whole


METRICS = {
    one.name: one
    for one in (
        Metric("accuracy", "accuracy", _right, percent=True),
        Metric("balanced", "balanced accuracy", _right, _balanced, percent=True),
        Metric("auroc", "AUROC", _margin, _auroc),
        Metric(
            "calibration",
            "calibration error",
            _excess,
            _distance,
            higher=False,
            share=False,
            percent=True,
            most=1.0,
        ),
        Metric("log-loss", "log-loss", losses_of, higher=False, share=False),
        Metric("brier", "Brier score", _brier, higher=False, share=False, most=2.0),
        Metric("r2", "R²", squared_errors, _r2, share=False, most=1.0),
        Metric("mse", "mean squared error", squared_errors, higher=False, share=False),
    )
}


def applying(y: Tensor, classes: int) -> list[Metric]:
    """Return the metrics for test labels: numbers, classes, or several labels a case (n, L)."""
    if y.is_floating_point() and not several(y):
        names = ["r2", "mse"] if len(y.unique()) > 1 else ["mse"]
    elif y.ndim > 1:
        names = ["accuracy", "log-loss", "brier"]
    else:
        both = ["auroc", "calibration"] if classes == 2 and len(y.unique()) == 2 else []
        names = ["accuracy", "balanced", *both, "log-loss", "brier"]
    return [METRICS[name] for name in names]


def check_metric(name: str, y: Tensor, classes: int, silo: int) -> None:
    """Raise SpcacwError unless the test labels of a silo allow the metric of a run."""
    names = [one.name for one in applying(y, classes)]
    if name not in names:
        found = "several labels a case" if y.ndim > 1 else f"{len(y.unique())} of {classes} classes"
        if y.is_floating_point() and y.ndim == 1:
            found = "numbers" if len(y.unique()) > 1 else "all the same number"
        raise SpcacwError(
            f"metric = {name!r} does not apply to the test labels of silo {silo} "
            f"({found}): choose {'one of ' * (len(names) > 1)}{', '.join(names)}."
        )


def is_worse(metric: Metric, ours: Mapping[str, float], theirs: Mapping[str, float]) -> bool:
    """Say whether ``ours`` is worse than ``theirs`` by more than both intervals allow for chance.

    Figures on the same cases move together, so this errs on the side of False. Of what is no share
    the wider half of an interval counts: a bound may have cut the other.
    """
    low, name, high = f"{metric.name}-low", metric.name, f"{metric.name}-high"
    halves = [(x[high] - x[low]) / 2 for x in (ours, theirs)]
    if not metric.share:
        halves = [max(x[high] - x[name], x[name] - x[low]) for x in (ours, theirs)]
    return metric.sign * (theirs[name] - ours[name]) > math.hypot(*halves)


def student(freedom: float) -> float:
    """Return how many standard errors are on each side of a 95 % interval."""
    if freedom == math.inf:
        return Z
    from scipy.special import stdtrit  # late: the import takes a quarter of a second

    return float(stdtrit(freedom, 0.975))


def standard_error(influence: Tensor) -> float:
    """Return the standard error, given the influence of each case; NaN for too few cases."""
    if len(influence) < LEAST:
        return math.nan
    return float(influence.square().sum().sqrt()) / len(influence)
