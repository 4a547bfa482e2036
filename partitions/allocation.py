"""Allocate data: the silos and clusters that the keys name, and each silo's share of each class.

It has the algorithm "CIFAR-100 Partitioning (Latent Clusters)" of the paper's appendix on data
partitioning (Kiselman & Levy, SP-CACW, arXiv 2606.29322), in NumPy, from labels to indices.
"""

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.keys import MOST_SILOS, PartitionKeys

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
T = TypeVar("T")

DEVIATION = {
    "variance": lambda epsilon: epsilon**0.5,
    "deviation": lambda epsilon: epsilon,
    "fourth-power": lambda epsilon: epsilon**0.25,
}
"""Standard deviation of the noise N(0, √ε), for each reading of ε (READING row 14)."""


def cluster_of_class(
    num_classes: int, num_clusters: int, class_sizes: Sequence[int] | None = None
) -> Ints:
    """Return the cluster of each class; the classes of a cluster are consecutive.

    By default class j is in the cluster k with kP ≤ j < (k+1)P, where P = ``num_classes`` /
    ``num_clusters``, as the algorithm says. SpcacwError if the classes cannot be divided so.
    """
    if class_sizes is None:
        if num_clusters > num_classes:
            raise SpcacwError(
                f"{num_clusters} clusters cannot share {num_classes} classes: a cluster needs at "
                "least one class, so name fewer clusters in cluster-sizes."
            )
        return np.arange(num_classes) * num_clusters // num_classes
    if len(class_sizes) != num_clusters or sum(class_sizes) != num_classes:
        raise SpcacwError(
            f"cluster-classes names {len(class_sizes)} clusters with {sum(class_sizes)} classes, "
            f"but there are {num_clusters} clusters and {num_classes} classes."
        )
    return np.repeat(np.arange(num_clusters), class_sizes)


def base_mass(cluster_sizes: Sequence[int], class_clusters: Ints) -> Floats:
    """Return X before the noise, (N, classes): B = 1/M for classes of the silo's cluster, else 0.

    M is the number of silos in the silo's own cluster, so that each column sums to 1.
    """
    silo_clusters = np.repeat(np.arange(len(cluster_sizes)), cluster_sizes)
    mass = 1 / np.asarray(cluster_sizes, dtype=np.float64)[silo_clusters]
    return np.where(silo_clusters[:, None] == class_clusters, mass[:, None], 0.0)


def allocate(base: Floats, noise: Floats, normalise: str = "columns") -> Floats:
    """Return the allocation matrix X (N, classes): add the noise, rectify, normalise by column.

    ``X[i, j]`` is the share of class j's samples that silo i gets, so columns sum to 1. With
    ``normalise = "rows"`` rows are first scaled to sum to 1 (READING row 15). If the noise takes a
    class from every silo, the algorithm would divide by 0. We allocate that class without noise.
    """
    x = np.maximum(base + noise, 0.0)
    lost = x.sum(axis=0) == 0
    x[:, lost] = base[:, lost]
    if normalise == "rows":
        totals = x.sum(axis=1, keepdims=True)
        x = np.divide(x, totals, out=np.zeros_like(x), where=totals > 0)
    return x / x.sum(axis=0)


def latent_clusters(
    cluster_sizes: Sequence[int],
    num_classes: int,
    epsilon: float,
    rng: np.random.Generator,
    *,
    class_sizes: Sequence[int] | None = None,
    epsilon_is: str = "variance",
    normalise: str = "columns",
) -> Floats:
    """Return the allocation matrix X (N, ``num_classes``) of the algorithm.

    Cluster k has M = ``cluster_sizes[k]`` silos. ``rng`` draws the noise, of size ``epsilon`` (ε):
    one number for each silo and class. For the other arguments see :func:`cluster_of_class`,
    :data:`DEVIATION` and :func:`allocate`. SpcacwError if ε < 0, or if the clusters cannot divide
    the classes.
    """
    if epsilon < 0:
        raise SpcacwError(f"epsilon = {epsilon:g} is not allowed: a variance is at least 0.")
    clusters = cluster_of_class(num_classes, len(cluster_sizes), class_sizes)
    base = base_mass(cluster_sizes, clusters)
    noise = rng.normal(0.0, DEVIATION[epsilon_is](epsilon), size=base.shape)
    return allocate(base, noise, normalise)


def counts_of(x: Floats, class_counts: Ints) -> Ints:
    """Return how many samples of each class each silo gets, (N, classes).

    Every sample goes to one silo: for class j, silo i gets those between the rounded running sums
    before and after row i. Its count is thus within one sample of ``x[i, j] · class_counts[j]``.
    """
    ends = np.floor(np.cumsum(x, axis=0) * class_counts + 0.5).astype(np.int64)
    ends[-1] = class_counts  # so that rounding leaves no sample over
    return np.diff(ends, axis=0, prepend=0)


def deal(x: Floats, labels: Ints, rng: np.random.Generator) -> list[Ints]:
    """Deal samples out by the allocation matrix; return each silo's indices, in random order.

    ``rng`` draws which samples of a class a silo gets. Each sample goes to exactly one silo.
    """
    counts = counts_of(x, np.bincount(labels, minlength=x.shape[1]))
    parts: list[list[Ints]] = [[] for _ in x]
    for j in range(x.shape[1]):
        mine = rng.permutation(np.flatnonzero(labels == j))
        for silo, part in enumerate(np.split(mine, np.cumsum(counts[:-1, j]))):
            parts[silo].append(part)
    return [rng.permutation(np.concatenate(part)) for part in parts]


def check_nobody_empty(counts: Ints, name: str) -> None:
    """Raise SpcacwError if a silo gets no sample; it names the first such silo."""
    empty = np.flatnonzero(counts.sum(axis=1) == 0)
    if len(empty):
        raise SpcacwError(
            f"Silo {empty[0]} of {name} has no data: the noise took all its classes, so choose "
            "another seed, a smaller epsilon, or fewer silos."
        )


def parse_sizes(text: str, name: str = "cluster-sizes") -> list[int]:
    """Read sizes such as "3,2,2"; SpcacwError, with the key's name, unless all are positive."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise SpcacwError(
            f"{name} = {text!r} is not allowed: it must be positive whole numbers with commas "
            'between them, as in "3,2,2".'
        )
    return [int(part) for part in parts]


def clusters_of(keys: PartitionKeys) -> list[int]:
    """Return the true cluster of each silo, such as 0, 0, 0, 1, 1, 2, 2 for "3,2,2".

    SpcacwError if the sizes are not positive whole numbers, or ``silos`` contradicts their sum.
    """
    sizes = parse_sizes(keys.cluster_sizes)
    if sum(sizes) > MOST_SILOS:
        raise SpcacwError(
            f"cluster-sizes = {keys.cluster_sizes!r} are more than {MOST_SILOS} silos: use fewer."
        )
    if keys.silos not in (0, sum(sizes)):
        raise SpcacwError(
            f"silos = {keys.silos} contradicts cluster-sizes = {keys.cluster_sizes!r}, which are "
            f"{sum(sizes)} silos: leave silos at 0, or change the sizes."
        )
    return np.repeat(np.arange(len(sizes)), sizes).tolist()


def counted_silos(keys: PartitionKeys, name: str) -> int:
    """Return ``silos`` for a setting without clusters; SpcacwError if it is 0."""
    if not keys.silos:
        raise SpcacwError(f"silos = 0 leaves open how many silos {name} has: set silos.")
    return keys.silos


def kept_rows(available: int, wanted: int, rng: np.random.Generator) -> slice | NDArray[np.int64]:
    """Return the indices of at most ``wanted`` (0: all) rows, drawn by ``rng``, in order."""
    if 0 < wanted < available:
        return np.sort(rng.permutation(available)[:wanted])
    return slice(None)


def made_once(make: Callable[[Any, int], T], most: int = sys.maxsize) -> Callable[[Any, int], T]:
    """Let a setting's method check the silo's number and keep its last ``most`` results."""

    @wraps(make)
    def method(setting: Any, silo: int) -> T:
        setting.check_silo(silo)
        made = vars(setting).setdefault(f"_{make.__name__}_made", {})
        if silo not in made:
            if len(made) >= most:
                made.pop(next(iter(made)))  # the oldest
            made[silo] = make(setting, silo)
        return made[silo]

    return method
