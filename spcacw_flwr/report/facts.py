"""The figures that the report talks about, computed from a run's artefacts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.config.registry import SETTINGS, setting_class
from spcacw_flwr.report.read import Artefacts
from spcacw_flwr.report.words import called

Vector = NDArray[np.float64]
TAIL = 10
"""Epochs at the end over which the accuracy's own movement is measured."""
ENOUGH_SEEDS = 3
"""Seeds from which on they tell how much of a difference is chance."""
MOST_SILOS = 12
"""Silos that are drawn or listed one by one; of the others a summary."""
SETTLED = 0.01
"""Share of the weight below which an update counts as small."""


@dataclass(frozen=True)
class Accuracy:
    """How good the target's model was, in percent."""

    epochs: list[int]
    values: list[float]
    alone: list[float]
    """After each epoch of training alone; a single value if only the last is known; or none."""
    held_out: bool
    """Whether it was measured on held-out training data rather than on test data."""

    @property
    def gain(self) -> float | None:
        """Points that training with the peers ended above training alone; None if not known."""
        return self.values[-1] - self.alone[-1] if self.values and self.alone else None

    @property
    def tail(self) -> list[float]:
        """The accuracies of the last epochs."""
        return self.values[-TAIL:]

    @property
    def swing(self) -> float:
        """Points between the best and the worst of the last epochs."""
        return max(self.tail) - min(self.tail)


@dataclass(frozen=True)
class Weights:
    """α over the run, and what it was made from; arrays of M silos."""

    target: int
    rounds: NDArray[np.int64]
    alphas: Vector
    """(U, M)"""
    mean: Vector
    """The mean over all rounds of the α that they used."""
    figures: dict[str, Vector]
    """bias (‖b̂‖), sigma (noise), closed_form (the weight that both would earn), if known."""
    groups: list[float | None]
    group_kind: str
    """cluster, angle or none, as of :class:`partitions.Setting`."""
    names: list[str]
    """What each silo is called: its number, and its name if it has one."""

    @property
    def final(self) -> Vector:
        """The last α (M,)."""
        return np.asarray(self.alphas[-1])

    @property
    def shares(self) -> bool:
        """Whether every α is a division of a whole: not negative, and summing to 1."""
        return bool((self.alphas >= 0).all() and np.allclose(self.alphas.sum(axis=1), 1, atol=1e-6))

    @property
    def peers(self) -> list[int]:
        """All silos but the target, the heaviest first."""
        silos = range(len(self.final))
        return sorted((i for i in silos if i != self.target), key=lambda i: (-self.final[i], i))

    @property
    def moved(self) -> Vector:
        """(U−1,) share of the weight that each update moved: ½ Σ|α_k − α_{k−1}|."""
        return 0.5 * np.abs(np.diff(self.alphas, axis=0)).sum(axis=1)

    def distance(self, silo: int) -> float | None:
        """Degrees or cluster numbers between a silo's true group and the target's, if known."""
        own, other = self.groups[self.target], self.groups[silo]
        if own is None or other is None:
            return None
        gap = abs(own - other)
        return min(gap, 360 - gap) if self.group_kind == "angle" else gap


@dataclass(frozen=True)
class Absence:
    """What became of the target without one peer, over the seeds that were tried."""

    silo: int
    alpha: float
    """The peer's last α with all silos, mean over seeds."""
    accuracy: float
    """The last accuracy without it (percent), mean over seeds."""
    lost: Vector
    """(seeds,) points that the target lost without it; negative: it gained."""

    @property
    def mean(self) -> float:
        """The mean loss over the seeds."""
        return float(self.lost.mean())

    @property
    def margin(self) -> float | None:
        """Half the 95 % interval of the mean loss, by Student's t; None of fewer than 3 seeds."""
        count = len(self.lost)
        if count < ENOUGH_SEEDS:
            return None
        from scipy.stats import t as student  # here: it takes most of a second

        return float(student.ppf(0.975, count - 1) * self.lost.std(ddof=1) / math.sqrt(count))


@dataclass(frozen=True)
class LeaveOneOut:
    """Runs in which one peer was absent, beside one with all."""

    absences: list[Absence]
    accuracy: float
    """The last accuracy with all silos (percent), mean over seeds."""
    seeds: int
    test_samples: int
    recorded: tuple[float, float] | None
    """The last accuracy of the recorded run, and of its rerun with all silos."""

    @property
    def correlation(self) -> float | None:
        """Spearman's rank correlation of α and the mean points lost; None where undefined."""
        if len(self.absences) < 3:
            return None
        alpha = [one.alpha for one in self.absences]
        lost = [one.mean for one in self.absences]
        if not np.ptp(alpha) > 0 or np.ptp(lost) == 0:  # not known, or all the same
            return None
        from scipy.stats import spearmanr  # here: it takes most of a second

        return float(spearmanr(alpha, lost).statistic)

    @property
    def chance(self) -> float:
        """Points by which two runs may differ through the draw of the test data alone.

        Two standard errors of the difference of two accuracies, as if runs erred independently; on
        the same test data they differ by less.
        """
        p = self.accuracy / 100
        return 200 * math.sqrt(2 * p * (1 - p) / self.test_samples)


@dataclass(frozen=True)
class Facts:
    """All that the report says."""

    run: Artefacts
    state: str
    """finished, failed, or where an unfinished run is."""
    target: int
    accuracy: Accuracy
    weights: Weights | None
    """None of a method without weights, or before training."""
    leave_one_out: LeaveOneOut | None

    @property
    def num_silos(self) -> int:
        """M, as far as the artefacts tell it; 0 if they do not."""
        groups = self.run.summary.get("groups") or []
        return self.run.alphas.shape[1] if len(self.run.alphas) else len(groups)

    @property
    def rejections(self) -> dict[int, dict[str, int]] | None:
        """How many replies of each silo were not used, by reason; None if not recorded."""
        counts = self.run.summary.get("rejections")
        return None if counts is None else {int(silo): by for silo, by in counts.items()}

    @property
    def privacy(self) -> dict[int, dict[str, Any]]:
        """The privacy that each private silo has spent: epsilon, delta and its mechanism."""
        return {int(silo): by for silo, by in (self.run.summary.get("privacy") or {}).items()}

    def total(self, name: str) -> float | None:
        """Return a cumulative figure of the last epoch that has it; None if it was not recorded."""
        values = [line[name] for line in self.run.epochs if line.get(name) is not None]
        return values[-1] if values else None


def facts_of(run: Artefacts) -> Facts:
    """Compute the figures of a run."""
    state, target = str(run.status.get("state", "unknown")), int(run.config.get("target", 0))
    return Facts(run, state, target, _accuracy(run), _weights(run, target), _leave_one_out(run))


def _accuracy(run: Artefacts) -> Accuracy:
    known = [line for line in run.epochs if line.get("accuracy") is not None]
    epochs, values = [int(line["epoch"]) for line in known], [line["accuracy"] for line in known]
    alone: dict[str, Any] = run.summary.get("alone") or {}
    by_epoch = alone.get("accuracy") or ([alone["last_accuracy"]] if alone else [])
    return Accuracy(epochs, values, by_epoch, bool(run.config.get("holdout")))


def _weights(run: Artefacts, target: int) -> Weights | None:
    if not len(run.alphas):
        return None
    silos = run.alphas.shape[1]
    end = max(int(run.status.get("round") or 0), int(run.rounds[-1]))
    held = np.diff([*run.rounds, end]).astype(float)  # rounds that used each α
    mean = held @ run.alphas / held.sum() if held.sum() else run.alphas[-1]
    figures = {name: np.array(v) for name, v in run.silos.items() if len(v) == silos}
    setting = str(run.config.get("setting"))
    kind = run.summary.get("group_kind") or (
        setting_class(setting).group_kind if setting in SETTINGS else "none"
    )
    groups = run.summary.get("groups") or [None] * silos
    names = [called(run.summary, silo) for silo in range(silos)]
    return Weights(target, run.rounds, run.alphas, mean, figures, groups, str(kind), names)


def _leave_one_out(run: Artefacts) -> LeaveOneOut | None:
    rows, seed = run.left_out, str(run.config.get("seed"))
    whole = {row["seed"]: float(row["accuracy"]) for row in rows if not row["without"]}
    if not whole:
        return None
    absences = []
    for silo in dict.fromkeys(row["without"] for row in rows if row["without"]):
        some = [row for row in rows if row["without"] == silo and row["seed"] in whole]
        lost = [whole[row["seed"]] - float(row["accuracy"]) for row in some]
        alpha = [float(row["alpha"]) for row in some if row["alpha"]]
        accuracy = float(np.mean([float(row["accuracy"]) for row in some]))
        mean = float(np.mean(alpha)) if alpha else math.nan
        absences.append(Absence(int(silo), mean, accuracy, np.array(lost)))
    last = run.summary.get("last_accuracy")
    recorded = (last, whole[seed]) if last is not None and seed in whole else None
    samples, mean = int(rows[0]["test_samples"]), float(np.mean([*whole.values()]))
    return LeaveOneOut(absences, mean, len(whole), samples, recorded)
