"""How seeds become a cell of Table 1, and when two cells differ: pure functions of arrays.

Three rules choose the epoch at which a method is scored. All report the mean over seeds and the
sample standard deviation (divisor n − 1) over seeds at that same epoch (READING 18):

* *best*: the epoch of the highest mean test accuracy, the rule of the paper's caption. Test data
  choose the epoch, so this rule flatters, most of all a curve that jumps;
* *last*: the last epoch; nothing is chosen;
* *honest*: the epoch of the highest mean accuracy on held-out training data of the target, "the
  highest mean validation performance" of the paper's appendix.

The distance to the paper is in standard errors of the difference, as in Welch's test: (m − m₀) /
√(s²/n + s₀²/n₀). Methods are compared by paired t-tests over seeds, because all methods have the
same silos, first weights and batches for a seed. Holm's step-down keeps the chance of any false
claim in a column below the level (S. Holm, A Simple Sequentially Rejective Multiple Test Procedure,
Scand. J. Statistics 6, 1979). Rank tests are not used: no two-sided p of five seeds is below 1/16.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import t, ttest_rel

Array = NDArray[np.float64]


def pair(mean: float, std: float | None) -> str:
    """Return ``mean ± std``, or the mean alone for one seed."""
    return f"{mean:.2f}" + (f" ± {std:.2f}" if std is not None else "")


@dataclass(frozen=True)
class Score:
    """Accuracy in percent at an epoch (from 1 on), over seeds; one seed has no std."""

    epoch: int
    mean: float
    std: float | None
    seeds: int


def score_at(curves: Array, epoch: int) -> Score:
    """Return the score of ``curves`` (seeds, epochs) at ``epoch``, from 1 on."""
    values = curves[:, epoch - 1]
    std = float(values.std(ddof=1)) if len(values) > 1 else None
    return Score(epoch, float(values.mean()), std, len(values))


def best_epoch(curves: Array) -> int:
    """Return the epoch, from 1 on, of the highest mean over seeds; the first of equals."""
    return int(curves.mean(axis=0).argmax()) + 1


def difference(ours: Score, paper: tuple[float, float]) -> float | None:
    """Return (ours − paper's) in standard errors; None without spread.

    ``paper`` is the mean and the sample standard deviation over the paper's five seeds.
    """
    if ours.std is None:
        return None
    error = math.sqrt(ours.std**2 / ours.seeds + paper[1] ** 2 / 5)
    return (ours.mean - paper[0]) / error if error else None


def paired_p(a: ArrayLike, b: ArrayLike) -> float | None:
    """Return the two-sided p of a paired t-test; a[k], b[k] share a seed; None for one pair."""
    gap = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    if len(gap) < 2:
        return None
    if np.ptp(gap) == 0:  # no spread, where t would be 0/0 or infinite
        return 1.0 if gap[0] == 0 else 0.0
    return float(ttest_rel(a, b).pvalue)


def holm(p: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return Holm's adjusted p of each test: max over smaller p_(j) of (m − j) p_(j), at most 1.

    j counts from 0 in the order of p; a test without p takes no part.
    """
    known = sorted((value, name) for name, value in p.items() if value is not None)
    adjusted: dict[str, float | None] = dict.fromkeys(p)
    largest = 0.0
    for j, (value, name) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - j) * value))
        adjusted[name] = largest
    return adjusted


def top(means: Mapping[str, float]) -> set[str]:
    """Return the names with fewer than three better ones; means within 1e-9 count as equal."""
    return {n for n, m in means.items() if sum(other > m + 1e-9 for other in means.values()) < 3}


def to_reach(curves: Array, cost: Array, levels: ArrayLike) -> Array:
    """Return the mean over seeds of the cost at the first epoch with accuracy ≥ each level.

    ``curves`` and ``cost`` are (seeds, epochs); NaN where some seed never gets there.
    """
    found = []
    for level in np.asarray(levels, dtype=np.float64):
        there = curves >= level
        first = there.argmax(axis=1)
        at = cost[np.arange(len(cost)), first]
        found.append(at.mean() if there.any(axis=1).all() else math.nan)
    return np.array(found)


def worst_decile(values: ArrayLike) -> float:
    """Return the mean of the lowest tenth of the values, at least one value."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    return float(ordered[: max(1, len(ordered) // 10)].mean())


def over_silos(scores: Sequence[float], alone: Sequence[float]) -> tuple[float, float, float]:
    """Return mean, worst decile and the share that beats training alone, over silos as targets.

    A silo beats training alone if its score is higher.
    """
    beats = np.asarray(scores) > np.asarray(alone)
    return float(np.mean(scores)), worst_decile(scores), float(beats.mean())


def clustered(values: ArrayLike, clusters: ArrayLike) -> tuple[float, float]:
    """Return the mean and half its 95 % interval; values of one cluster may be dependent.

    The variance is G/(G − 1) Σ_g (Σ_{i∈g} (x_i − x̄))²/n² for G clusters. The quantile is Student's
    with G − 1 degrees of freedom. For one cluster the half is NaN.
    """
    x = np.asarray(values, dtype=np.float64)
    _, group = np.unique(clusters, return_inverse=True)
    sums = np.bincount(group, x - x.mean())
    freedom = len(sums) - 1
    if not freedom:
        return float(x.mean()), math.nan
    error = math.sqrt(len(sums) / freedom * float(sums @ sums)) / len(x)
    return float(x.mean()), float(t.ppf(0.975, freedom)) * error


def unharmed(gains: ArrayLike, cases: ArrayLike, unit: float = 100.0) -> float:
    """Return the share of gains over Local that lose at most .5 points or one test case.

    The larger of the two limits counts. ``unit`` is the value of 1: 100 if gains are in points.
    """
    allowed = unit * np.maximum(0.005, 1 / np.asarray(cases, dtype=np.float64))
    return float((np.asarray(gains) >= -allowed - 1e-7 * unit).mean())
