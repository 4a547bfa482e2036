"""Your own data: a function that takes a silo's number and returns its training and test data.

    setting = "own", silo = "my_package.data:load", silos = 3, classes = 10

``load(silo)`` returns ``(train, test)``. Each is a pair (x, y) of tensors, arrays or pandas tables,
a ``SiloData``, or a PyTorch Dataset of pairs, read once: random transforms are frozen. ``x`` is
float (n, …), of one shape at all silos, or whole numbers (n, L) for tokens. ``y`` holds whole
numbers in 0 … ``classes`` − 1, (n,), or (n, L) for tokens of that shape; several labels a sample
are float or bool (n, C). With ``classes`` = 1 ``y`` holds numbers to predict, float (n,). In your
own app (``silo_app``) ``classes`` is 0: the model's outputs give C. ``test`` is None for a peer
without test data; the target needs it.
"""

import logging
from collections.abc import Callable
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from traceback import extract_tb
from typing import Any, ClassVar

import numpy as np
import torch

from spcacw_flwr.config.declare import SpcacwError, import_by_path, one_line
from spcacw_flwr.config.keys import PartitionKeys
from spcacw_flwr.silos.setting import Setting, SiloData, difference
from spcacw_flwr.silos.streams import SPLIT, TEST, stream

from .allocation import counted_silos, kept_rows, parse_sizes
from .given import checked, describe

log = logging.getLogger(__name__)

_LARGE = 20.0
"""Root mean square of a feature or of labels above which the usual step sizes overshoot."""


class OwnSilos(Setting):
    """Your own data: ``silo`` names your function silo → (train, test); ``silos`` is M.

    The true clusters are not known, so there is no Oracle.
    """

    name = "own"
    group_kind = "none"
    defaults: ClassVar[dict[str, Any]] = {"samples_per_silo": 0}
    reads: ClassVar[tuple[str, ...]] = ("silo", "silos", "classes", "input_shape")

    def __init__(self, keys: PartitionKeys, seed: int) -> None:
        """Check the keys, and import nothing yet; SpcacwError without ``silo`` or ``silos``."""
        super().__init__(keys, seed)
        self._source = self._named()
        self._silos = counted_silos(keys, self.name)
        self.num_classes = keys.classes
        self._kept: dict[int, tuple[SiloData, SiloData | None]] = {}
        self._said = False

    def _named(self) -> str:
        """Return the name of the data's source for messages; SpcacwError if none is given."""
        if not self.keys.silo:
            raise SpcacwError(
                "setting = 'own' needs your function: set silo = 'package.module:function'."
            )
        return repr(self.keys.silo)

    @property
    def groups(self) -> list[None]:
        """None for each silo: the clusters are not known."""
        return [None] * self._silos

    @cached_property
    def input_shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """The shape of one input, for which the model is made: from the key, or from silo 0.

        A node of your own app has no other silos' data; it takes the shape of its first silo.
        """
        if self.keys.input_shape:
            return tuple(parse_sizes(self.keys.input_shape, "input-shape"))
        return tuple(self._load(self._first)[0].x.shape[1:])

    @property
    def _first(self) -> int:
        return 0 if self.keys.classes else next(iter(self._kept), 0)

    @cached_property
    def _function(self) -> Callable[[int], Any]:
        function = import_by_path(self.keys.silo, "silo function")
        if not callable(function):
            raise SpcacwError(
                f"silo = {self.keys.silo!r} is {describe(function)}, not a function: it must take "
                "a silo's number and return (train, test)."
            )
        return function

    def prepare(self) -> None:
        """Find the source of the data and the inputs' shape; SpcacwError if either fails.

        Silos are checked when they first identify themselves, before training, because a node may
        have only its own silo's data.
        """
        _ = self._function, self.input_shape

    def train(self, silo: int) -> SiloData:
        """Return the training data of ``silo``; SpcacwError if they or its test data are wrong."""
        return self._checked(silo)[0]

    def test(self, silo: int) -> SiloData:
        """Return the test data of ``silo``; SpcacwError if it has none."""
        test = self._checked(silo)[1]
        if test is None:
            raise SpcacwError(f"{self._untested(silo)}: the target needs data to be tested on.")
        return test

    def _untested(self, silo: int) -> str:
        """Say that a silo has no test data."""
        return f"Silo {silo} of {self._source} has no test data"

    def _checked(self, silo: int) -> tuple[SiloData, SiloData | None]:
        self.check_silo(silo)
        train, test = self._load(silo)
        says = "input-shape says" if self.keys.input_shape else f"silo {self._first} has"
        if tuple(train.x.shape[1:]) != self.input_shape:
            raise SpcacwError(
                f"Silo {silo} of {self._source} has inputs of shape {tuple(train.x.shape[1:])}, "
                f"not {self.input_shape} as {says}: all silos train one model."
            )
        first = min(self._kept)
        if differ := difference(train, self._kept[first][0]):
            what, ours, theirs = differ
            raise SpcacwError(
                f"Silo {silo} of {self._source} has {what} of shape {ours}, not {theirs} as silo "
                f"{first} has: all silos train one model."
            )
        return train, test

    def _load(self, silo: int) -> tuple[SiloData, SiloData | None]:
        if silo not in self._kept:
            where = f"Silo {silo} of {self._source}"
            try:
                train, test = checked(self._function(silo), self.num_classes, where)
            except SpcacwError:
                raise
            except Exception as error:  # a user's function or tensors may raise anything
                its = extract_tb(error.__traceback__)[1:2] if self.keys.silo else []
                at = "".join(f", {Path(one.filename).name} line {one.lineno}" for one in its)
                raise SpcacwError(f"{where} cannot be loaded ({one_line(error)}{at}).") from error
            if self.keys.classes:  # your own app does not get these keys
                train = _some(train, self.keys.samples_per_silo, stream(self.seed, SPLIT, silo))
                test = test and _some(test, self.keys.test_samples, stream(self.seed, TEST, silo))
            tables = ((i, kept) for i, (kept, _) in self._kept.items() if any(kept.columns))
            for first, kept in islice(tables, 1):
                train = train.like(kept, where, f"silo {first}")
                test = test and test.like(kept, where, f"silo {first}")
            self._said = self._said or _say_if_large(train, where)
            self._kept[silo] = train, test
        return self._kept[silo]


def _say_if_large(data: SiloData, where: str) -> bool:
    """Warn of a feature, or of numbers to predict, that are not scaled; return whether any is."""
    large = False
    for what, values in {"a feature": data.x, "labels": data.y}.items():
        if values.is_floating_point():
            size = float(torch.linalg.vector_norm(values, dim=0).max()) / len(values) ** 0.5
            if size > _LARGE:
                _say_large(f"{where} has {what}", size)
                large = True
    return large


@cache
def _say_large(which: str, size: float) -> None:
    """Warn, once: training goes wrong, and nothing else says why."""
    log.warning(
        "%s with a root mean square of %.3g, where training wants about 1: "
        "subtract the mean and divide by the standard deviation.", which, size,
    )  # fmt: skip


def _some(data: SiloData, wanted: int, rng: np.random.Generator) -> SiloData:
    """Return at most ``wanted`` samples (0: all), drawn by ``rng``, in their order."""
    at = kept_rows(len(data.y), wanted, rng)
    return data if isinstance(at, slice) else data.rows(at)
