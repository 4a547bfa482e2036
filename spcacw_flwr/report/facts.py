"""The figures of the report, computed from a run's artefacts."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.report.read import Artefacts, read
from spcacw_flwr.report.words import called
from spcacw_flwr.silos.evaluation import CASES
from spcacw_flwr.silos.metrics import Metric, student

Vector = NDArray[np.float64]
TAIL = 10
"""Number of last epochs over which the metric's own movement is measured."""
ENOUGH_SEEDS = 3
"""Least seeds that show how much of a difference is chance."""
MOST_SILOS = 12
"""Most silos that are drawn or listed one by one; the others are summed up."""
THEORY = "closed_form"
"""A figure that reports hide: the weight that a peer would earn alone by the lemma "Optimal
Weights", 0 for peers that are useful only together. It is in ``silos.csv``."""
REFUSED = "refused"
"""A figure for a sentence, not for tables: how many of a silo's gradients no step followed."""
SMOOTH, SAME = ("log-loss", "mse"), 1e-6
"""Metrics that tell two models apart, and the difference below which two models are the same."""
SETTLED = 0.01
"""Share of the weight below which an update counts as small."""
Interval = tuple[float, float]
"""The two ends of a 95 % interval."""


@dataclass(frozen=True)
class Course:
    """The quality of the target's model, by the run's metric; accuracies are in percent."""

    metric: Metric
    epochs: list[int]
    values: list[float]
    alone: list[float]
    """Values after each epoch of training alone, as far as they are known."""
    where: str
    """The cases of the measurement: ``test`` cases, or ``held-out`` training data."""
    cases: int
    """The number of cases; 0 before the first epoch."""
    interval: Interval | None
    """The interval of the last value, if there is one."""
    gain_interval: Interval | None
    """The interval of the gain, paired by test case."""
    table: dict[str, dict[str, Any]]
    """The summary's entries of each metric."""

    @property
    def gain(self) -> float | None:
        """The final gain of training with peers over training alone; None if not known."""
        if not (self.values and self.alone):
            return None
        return self.metric.sign * (self.values[-1] - self.alone[-1])

    @property
    def verdict(self) -> int:
        """1 or −1 if the test cases show that the peers helped or harmed, else 0."""
        low, high = self.gain_interval or (0, 0)
        return 0 if self.alike else 1 if low > 0 else -1 if high < 0 else 0

    @property
    def alike(self) -> bool:
        """Whether the models are the same, or the gain's interval is a thousandth of the value."""
        ends, fine = self.gain_interval, (self.table.get(name) for name in SMOOTH)
        if any(row and row.get("gain") is not None and abs(row["gain"]) < SAME for row in fine):
            return True
        return ends is not None and max(map(abs, ends)) <= 1e-3 * abs(self.values[-1])

    @property
    def on(self) -> str:
        """The number and kind of the cases: ``48 test cases``."""
        return f"{self.cases:,} {self.where} case{'' if self.cases == 1 else 's'}"

    @property
    def tail(self) -> list[float]:
        """The values of the last epochs."""
        return self.values[-TAIL:]


@dataclass(frozen=True)
class Weights:
    """α over the run, and the figures behind it; arrays of M silos."""

    target: int
    rounds: NDArray[np.int64]
    end: int
    """The last round so far."""
    alphas: Vector
    """(U, M)"""
    mean: Vector
    """(M,) the mean of the α that the rounds used, over all rounds."""
    figures: dict[str, Vector]
    """bias (‖b̂‖), sigma (noise) and others, if known; see :data:`THEORY`."""
    groups: list[float | None]
    group_kind: str
    """cluster, angle or none, as in :class:`spcacw_flwr.silos.setting.Setting`."""
    names: list[str]
    """The label of each silo: its number, and its name if it has one."""

    def called(self, some: Iterable[int]) -> list[str]:
        """Return the labels of some silos."""
        return [self.names[silo] for silo in some]

    @property
    def unlike(self) -> list[int]:
        """Peers whose gradients stray from the target's by more than its mini-batches vary.

        One mini-batch of the target is then a better guide than everything such a peer sends. The
        nearest peer comes first. The list is empty if bias or noise is not known.
        """
        bias, sigma = (self.figures.get(name) for name in ("bias", "sigma"))
        if bias is None or sigma is None or not sigma[self.target] > 0:
            return []
        return sorted((i for i in self.peers if bias[i] > sigma[self.target]), key=bias.item)

    @property
    def final(self) -> Vector:
        """The last α (M,)."""
        return np.asarray(self.alphas[-1])

    @property
    def shares(self) -> bool:
        """Whether every α has entries that are not negative and sum to 1."""
        return bool((self.alphas >= 0).all() and np.allclose(self.alphas.sum(axis=1), 1, atol=1e-6))

    @property
    def peers(self) -> list[int]:
        """All silos but the target, the heaviest first."""
        silos = range(len(self.final))
        return sorted((i for i in silos if i != self.target), key=lambda i: (-self.final[i], i))

    @property
    def moved(self) -> Vector:
        """(U−1,) the share of the weight that each update moved: ½ Σ|α_k − α_{k−1}|."""
        return 0.5 * np.abs(np.diff(self.alphas, axis=0)).sum(axis=1)

    @property
    def gaps(self) -> dict[int, float]:
        """Degrees or cluster numbers between each peer's true group and the target's, if known."""
        known = [group for group in self.groups if group is not None]
        if len(known) < len(self.groups):
            return {}
        gaps = {silo: abs(known[silo] - known[self.target]) for silo in self.peers}
        if self.group_kind == "angle":
            gaps = {silo: min(gap, 360 - gap) for silo, gap in gaps.items()}
        return gaps


@dataclass(frozen=True)
class Absence:
    """The target's result without one peer, over the seeds of the reruns."""

    silo: str
    """The label of the peer."""
    alpha: float
    """The peer's last α with all silos, mean over seeds."""
    value: float
    """The last value of the metric without the peer, mean over seeds."""
    lost: Vector
    """(seeds,) the target's loss without the peer; negative if the target gained."""
    chance: float
    """Half the 95 % interval of a loss from the draw of the test cases, mean over seeds."""

    @property
    def mean(self) -> float:
        """The mean loss over the seeds."""
        return float(self.lost.mean())

    @property
    def margin(self) -> float:
        """Half the 95 % interval of the mean loss.

        It covers the draw of the test cases, which all seeds may share. From 3 seeds on it also
        covers the differences between seeds, by Student's t.
        """
        count = len(self.lost)
        if count < ENOUGH_SEEDS:
            return self.chance
        seeds = student(count - 1) * float(self.lost.std(ddof=1)) / math.sqrt(count)
        return math.hypot(seeds, self.chance)


@dataclass(frozen=True)
class LeaveOneOut:
    """Runs in which one peer was absent, compared with a run with all silos."""

    metric: Metric
    absences: list[Absence]
    value: float
    """The last value with all silos, mean over seeds."""
    seeds: int
    test_samples: int
    recorded: tuple[float, float] | None
    """The last values of the recorded run and of its rerun with all silos."""

    @property
    def correlation(self) -> float | None:
        """Spearman's rank correlation of α and the mean loss; None if it is undefined."""
        if len(self.absences) < 3:
            return None
        alpha, lost = zip(*((one.alpha, one.mean) for one in self.absences), strict=True)
        if not np.ptp(alpha) > 0 or np.ptp(lost) == 0:  # not known, or all equal
            return None
        from scipy.stats import spearmanr  # late: the import takes most of a second

        return float(spearmanr(alpha, lost).statistic)


@dataclass(frozen=True)
class Facts:
    """All figures of the report."""

    run: Artefacts
    state: str
    """finished, failed, or the stage of an unfinished run."""
    course: Course
    weights: Weights | None
    """None for a method without weights, or before training."""
    leave_one_out: LeaveOneOut | None

    @property
    def rejections(self) -> dict[str, dict[str, int]]:
        """The number of unused replies, by the silo's label and the reason."""
        return self._by_silo(self.run.summary.get("rejections"))

    @property
    def silences(self) -> dict[str, dict[str, int]]:
        """By the silo's label: its unanswered questions, and since which round it is silent."""
        return self._by_silo(self.run.status.get("silent"))

    @property
    def privacy(self) -> dict[str, dict[str, Any]]:
        """The privacy spent by each private silo, by its label: epsilon, delta, its mechanism."""
        return self._by_silo(self.run.summary.get("privacy"))

    def _by_silo(self, found: dict[str, Any] | None) -> dict[str, Any]:
        table = {int(silo): by for silo, by in (found or {}).items()}
        return {called(self.run.names, silo): table[silo] for silo in sorted(table)}

    @property
    def is_alone(self) -> bool:
        """Whether the target trains without peers: by the method local, or as the only silo."""
        only = self.weights is not None and not self.weights.peers
        return only or self.run.config.get("method") == "local"

    @property
    def held(self) -> float | None:
        """The peers' share of the weight, mean over the run; None if weights are no shares."""
        found = self.weights
        return float(found.mean[found.peers].sum()) if found and found.shares else None

    @property
    def refused(self) -> bool | None:
        """Whether the guard refused the model learned with the peers; None if it did not judge."""
        accepted = self.total("accepted")
        return None if accepted is None else not accepted

    @property
    def seconds(self) -> float | None:
        """The run's duration; of an unfinished run, up to its last epoch."""
        return self.run.summary.get("seconds") or self.total("seconds")

    def total(self, name: str) -> float | None:
        """Return a cumulative figure of the last epoch; None before the first one."""
        return self.run.epochs[-1].get(name) if self.run.epochs else None


def facts_of(directory: Path) -> Facts:
    """Compute the figures of the run in a directory.

    Raises SpcacwError if the directory holds no run or a damaged file.
    """
    run = read(directory)
    state = str(run.status.get("state", "unknown"))
    return Facts(run, state, _course(run), _weights(run), _leave_one_out(run))


def _course(run: Artefacts) -> Course:
    metric = run.metric
    known = [line for line in run.epochs if line.get(metric.name) is not None]
    epochs, values = [int(line["epoch"]) for line in known], [line[metric.name] for line in known]
    so_far = [line["alone"] for line in known if line.get("alone") is not None]
    by_epoch = (run.summary.get("alone") or {}).get(metric.name) or so_far
    last = known[-1] if known else {}
    ends = (last.get(f"{metric.name}-{end}") for end in ("low", "high"))
    return Course(
        metric, epochs, values, by_epoch, "held-out" if run.config.get("holdout") else "test",
        int(last.get(CASES, 0)), _interval(ends),
        _interval(run.found.get("gain_interval") or ()), run.summary.get("metrics") or {},
    )  # fmt: skip


def _interval(ends: Iterable[float | None]) -> Interval | None:
    known = [end for end in ends if end is not None]
    return (known[0], known[1]) if len(known) == 2 else None


def _weights(run: Artefacts) -> Weights | None:
    if not len(run.alphas):
        return None
    silos = run.alphas.shape[1]
    end = max(int(run.status.get("round") or 0), int(run.rounds[-1]))
    held = np.diff([*run.rounds, end]).astype(float)  # rounds that used each α
    mean = held @ run.alphas / held.sum() if held.sum() else run.alphas[-1]
    known = {name: v for name, v in run.silos.items() if len(v) == silos and name != THEORY}
    figures = {name: np.array(values) for name, values in known.items()}
    groups = run.summary.get("groups") or [None] * silos
    names = [called(run.names, silo) for silo in range(silos)]
    kind = str(run.summary.get("group_kind", "none"))
    return Weights(run.target, run.rounds, end, run.alphas, mean, figures, groups, kind, names)


def _leave_one_out(run: Artefacts) -> LeaveOneOut | None:
    metric, rows, seed = run.metric, run.left_out, str(run.config.get("seed"))
    whole = {row["seed"]: float(row[metric.name]) for row in rows if not row["without"]}
    if not whole:
        return None
    absences = []
    samples, mean = int(rows[0]["test_samples"]), float(np.mean([*whole.values()]))
    for silo in dict.fromkeys(row["without"] for row in rows if row["without"]):
        some = [row for row in rows if row["without"] == silo and row["seed"] in whole]
        values, name = [float(row[metric.name]) for row in some], called(run.names, int(silo))
        lost = [metric.sign * (whole[row["seed"]] - v) for row, v in zip(some, values, strict=True)]
        alpha = [float(row["alpha"]) for row in some if row["alpha"]]
        chance = [float(row["chance"]) for row in some]
        absences.append(Absence(
            name, float(np.mean(alpha)) if alpha else math.nan, float(np.mean(values)),
            np.array(lost), float(np.mean(chance)),
        ))  # fmt: skip
    last = next((line[metric.name] for line in reversed(run.epochs) if metric.name in line), None)
    recorded = (last, whole[seed]) if last is not None and seed in whole else None
    return LeaveOneOut(metric, absences, mean, len(whole), samples, recorded)
