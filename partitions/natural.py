"""Real federations: tables of labelled rows, in the silos that collected them.

Heart disease in four hospitals: A. Janosi, W. Steinbrunn, M. Pfisterer and R. Detrano, Heart
Disease, UCI Machine Learning Repository, 1988. Rows and features are those of J. Ogier du Terrail
et al., FLamby: Datasets and Benchmarks for Cross-Silo Federated Learning in Realistic Healthcare
Settings, NeurIPS 2022. Land mines in 29 fields: Y. Xue, X. Liao, L. Carin and B. Krishnapuram,
Multi-Task Learning for Classification with Dirichlet Process Priors, JMLR 8, 2007.

A target may train on few rows (``target-samples``). All its other rows then test it, and its peers
keep all of their training share.
"""

import io
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch

from spcacw_flwr.config.declare import SpcacwError, key
from spcacw_flwr.config.keys import PartitionKeys
from spcacw_flwr.silos.setting import Setting, SiloData
from spcacw_flwr.silos.streams import SPLIT, TEST, stream

from .allocation import Floats, Ints, kept_rows, made_once
from .data import HEART, LANDMINE, read

_TRAINED_ON = 2 / 3
_CATEGORIES = {2: (2, 3, 4), 6: (1, 2)}
"""The columns cp and restecg, and their values except the first; each becomes a feature."""
_MOSTLY_MISSING = (10, 11, 12)
"""The columns slope, ca and thal."""
_FOLIATED, _FIELDS = 15, 29


@dataclass(frozen=True)
class NaturalKeys:
    """Own keys of a real federation."""

    target_samples: int = key(
        0,
        "Rows that the target trains on, drawn by the seed with both labels among them; all its "
        "others test it. 0: two thirds, as every peer.",
        least=0,
    )


def stratified(labels: Ints, rng: np.random.Generator) -> Ints:
    """Return an order of the rows whose first n, for any n, have each label in its share.

    One row of each label comes before all others, so that few rows are enough for all labels.
    """
    place = np.empty(len(labels))
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        place[rows] = (np.arange(len(rows)) + 0.5) / len(rows)
        place[rows[0]] = 0.0
    tie = rng.permutation(len(labels))
    return np.lexsort((tie, place))


def standardised(x: Floats, train: Ints) -> Floats:
    """Return features (n, f) with mean 0 and standard deviation 1 over the rows ``train``.

    A feature that is constant over them is moved to 0 and not scaled.
    """
    mean, deviation = x[train].mean(axis=0), x[train].std(axis=0)
    constant = np.ptp(x[train], axis=0) == 0  # its deviation may be only a rounding error
    scaled: Floats = (x - mean) / np.where(constant, 1.0, deviation)
    return scaled


class NaturalSilos(Setting):
    """A real federation of labelled rows.

    The seed draws two thirds of each silo's rows for training, in the proportion of its labels.
    The other rows are its test; only the target's test is used. A silo standardises its features
    by its own training rows, because it must not need any number of another silo.
    """

    Keys = NaturalKeys
    defaults: ClassVar[Mapping[str, Any]] = {"samples_per_silo": 0, "model": "logistic"}
    num_classes = 2
    group_kind = "none"

    def __init__(self, keys: PartitionKeys, seed: int) -> None:
        """Read no data; SpcacwError if ``silos`` is not 0 or the real number of silos."""
        super().__init__(keys, seed)
        if keys.silos not in (0, len(self.names)):
            raise SpcacwError(
                f"silos = {keys.silos} is not allowed: {self.name} has {len(self.names)} silos, so "
                "leave silos at 0."
            )

    @property
    def groups(self) -> Sequence[float | None]:
        """None for each silo: the groups are not known."""
        return [None] * len(self.names)

    @abstractmethod
    def rows(self, silo: int) -> tuple[Floats, Ints]:
        """Return the features (n, f) and labels (n,) of a silo; cheap once loaded."""

    def prepare(self) -> None:
        """Find, fetch and verify the data; SpcacwError if that fails, or the target lacks rows."""
        self._parts(self.target)

    def train(self, silo: int) -> SiloData:
        """Return the training rows of ``silo``: the first ``samples-per-silo`` if there are more.

        A larger ``target-samples`` only adds rows.
        """
        return self._parts(silo)[0]

    def test(self, silo: int) -> SiloData:
        """Return the rows of ``silo`` that are not for training."""
        return self._parts(silo)[1]

    @made_once
    def _parts(self, silo: int) -> tuple[SiloData, SiloData]:
        x, y = self.rows(silo)
        asked = self.own.target_samples if silo == self.target else 0
        if asked >= len(y):
            raise SpcacwError(
                f"{self.name}.target-samples = {asked} leaves no row to test {self.names[silo]} "
                f"(silo {silo}) on, which has {len(y)}: ask for at most {len(y) - 1}."
            )
        order = stratified(y, stream(self.seed, SPLIT, silo))
        cut = asked or round(len(y) * _TRAINED_ON)
        train, test = order[: min(cut, self.keys.samples_per_silo or cut)], order[cut:]
        test = test[kept_rows(len(test), self.keys.test_samples, stream(self.seed, TEST, silo))]
        inputs, labels = torch.from_numpy(standardised(x, train)).float(), torch.from_numpy(y)
        return SiloData(inputs[train], labels[train]), SiloData(inputs[test], labels[test])


class Heart(NaturalSilos):
    """Four hospitals, 740 patients and 13 features; who has heart disease?"""

    name = "heart"
    names = ("Cleveland", "Hungary", "Switzerland", "VA Long Beach")
    input_shape = (13,)

    def rows(self, silo: int) -> tuple[Floats, Ints]:
        """Return the patients of a hospital that have no missing value."""
        return _hospitals(self.keys.data_dir)[silo]


@lru_cache(maxsize=2)
def _hospitals(data_dir: str) -> list[tuple[Floats, Ints]]:
    return [patients(table.decode()) for table in read(HEART, data_dir).values()]


def patients(table: str) -> tuple[Floats, Ints]:
    """Return the features (n, 13) of a hospital's file, and whether each patient is ill (n,).

    The columns slope, ca and thal are dropped first, and then the rows with a missing value.
    """
    lines = [np.delete(line.split(","), _MOSTLY_MISSING) for line in table.split()]
    known = np.array([line for line in lines if "?" not in line]).astype(np.float64)
    x, y = known[:, :-1], (known[:, -1] > 0).astype(np.int64)
    hot = [x[:, column] == value for column, some in _CATEGORIES.items() for value in some]
    return np.column_stack([np.delete(x, list(_CATEGORIES), axis=1), *hot]), y


class Landmine(NaturalSilos):
    """29 fields in two kinds of terrain, with 9 features of radar echoes; 6 % are mines."""

    name = "landmine"
    names = tuple(f"field-{1 + i}" for i in range(_FIELDS))
    defaults: ClassVar[Mapping[str, Any]] = {**NaturalSilos.defaults, "metric": "auroc"}
    input_shape = (9,)
    group_kind = "cluster"

    @property
    def groups(self) -> list[float]:
        """0 for the fields under foliage, 1 for the fields on bare earth."""
        return [0.0] * _FOLIATED + [1.0] * (_FIELDS - _FOLIATED)

    def rows(self, silo: int) -> tuple[Floats, Ints]:
        """Return the echoes of a field."""
        return _fields(self.keys.data_dir)[silo]


@lru_cache(maxsize=2)
def _fields(data_dir: str) -> list[tuple[Floats, Ints]]:
    from scipy.io import loadmat  # here: it takes a moment and few settings need it

    (table,) = read(LANDMINE, data_dir).values()
    held = loadmat(io.BytesIO(table))
    pairs = zip(held["feature"][0], held["label"][0], strict=True)
    return [(x.astype(np.float64), y[:, 0].astype(np.int64)) for x, y in pairs]
