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
from pathlib import Path
from traceback import extract_tb
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from spcacw_flwr.config.declare import SpcacwError, import_by_path, one_line
from spcacw_flwr.config.keys import PartitionKeys
from spcacw_flwr.silos.setting import Setting, SiloData, as_tensor
from spcacw_flwr.silos.streams import SPLIT, TEST, stream

from .allocation import counted_silos, kept_rows, parse_sizes

log = logging.getLogger(__name__)

_WHOLE = (torch.int64, torch.int32, torch.int16)
_LARGE = 20.0
"""Root mean square of a feature or of labels above which the usual step sizes overshoot."""


class OwnSilos(Setting):
    """Your own data: ``silo`` names your function silo → (train, test); ``silos`` is M.

    The true clusters are not known, so there is no Oracle.
    """

    name = "own"
    group_kind = "none"
    defaults: ClassVar[dict[str, Any]] = {"samples_per_silo": 0}

    def __init__(self, keys: PartitionKeys, seed: int) -> None:
        """Check the keys, and import nothing yet; SpcacwError without ``silo`` or ``silos``."""
        super().__init__(keys, seed)
        self._source = self._named()
        self._silos = counted_silos(keys, self.name)
        self.num_classes = keys.classes
        self._kept: dict[int, tuple[SiloData, SiloData | None]] = {}

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
        if differ := _difference(train, self._kept[first][0]):
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
            if not self._kept:
                _say_if_large(train, where)
            self._kept[silo] = train, test
        return self._kept[silo]


def _say_if_large(data: SiloData, where: str) -> None:
    """Warn of a feature, or of numbers to predict, that are not scaled."""
    for what, values in {"a feature": data.x, "labels": data.y}.items():
        if values.is_floating_point():
            size = float(torch.linalg.vector_norm(values, dim=0).max()) / len(values) ** 0.5
            if size > _LARGE:
                _say_large(f"{where} has {what}", size)


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


def describe(thing: object) -> str:
    """Describe a thing by its type, such as ``a tuple of 3`` or ``a dict``."""
    kind = type(thing).__name__
    return f"a {kind} of {len(thing)}" if isinstance(thing, tuple | list) else f"a {kind}"


def checked(pair: Any, num_classes: int, where: str) -> tuple[SiloData, SiloData | None]:
    """Return the training and test data; SpcacwError beginning with ``where`` if they are wrong."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise SpcacwError(f"{where} is {describe(pair)}: the function must return (train, test).")
    train = _part(pair[0], num_classes, f"{where}, training data")
    if train.weight is not None:
        raise SpcacwError(
            f"{where}, training data: there are weights, which tests alone have: leave them out, "
            "and draw samples as often as they are to count."
        )
    if pair[1] is None:
        return train, None
    test = _part(pair[1], num_classes, f"{where}, test data")
    if differ := _difference(train, test):
        what, ours, theirs = differ
        raise SpcacwError(
            f"{where} trains on {what} of shape {ours}, but is tested on {theirs}: they must agree."
        )
    return train, test


def _difference(one: SiloData, other: SiloData) -> tuple[str, str, str] | None:
    """Return what differs, inputs or labels, and both shapes and types; None if they agree."""
    for what, parts in (("inputs", (one.x, other.x)), ("labels", (one.y, other.y))):
        ours, theirs = (f"{tuple(part.shape[1:])} and {part.dtype}" for part in parts)
        if ours != theirs:
            return what, ours, theirs
    return None


def _part(part: Any, num_classes: int, where: str) -> SiloData:
    x, y = (each.detach() for each in _tensors(part, where))
    if len(x) != len(y) or not len(x):
        raise SpcacwError(
            f"{where}: {len(x)} inputs and {len(y)} labels, which must be equally many, and some."
        )
    numbers = num_classes == 1 or (not num_classes and y.is_floating_point())
    flags = y.is_floating_point() or (y.dtype == torch.bool and y.shape != x.shape)
    many = flags and y.dim() == 2 and y.shape[1] > 1 and num_classes != 1
    labels = _several if many else _numbers if numbers else _labels
    weight = part.weight if isinstance(part, SiloData) else None
    independent = part.independent if isinstance(part, SiloData) else None
    if weight is not None:
        weight = _weights(weight, len(y), where)
    labelled = _inputs(x, where), labels(x, y, num_classes, where)
    found = SiloData(*labelled, weight, independent)
    if found.independent is not None and not 1 <= found.independent <= len(y):
        raise SpcacwError(
            f"{where}: independent is {found.independent:g}, but there are {len(y)} samples, of "
            "which 1 at least and all at most are independent."
        )
    return found


def _tensors(part: Any, where: str) -> tuple[Tensor, Tensor]:
    """Return a pair as tensors; the samples of a Dataset are stacked."""
    if isinstance(part, SiloData):
        part = part.x, part.y
    if isinstance(part, Dataset):
        if not hasattr(part, "__len__"):
            raise SpcacwError(f"{where} is a Dataset without a length, so it cannot be batched.")
        try:
            samples = [part[i] for i in range(len(part))]
            if not samples:
                return torch.empty(0), torch.empty(0)
            columns = zip(*samples, strict=True)
            x, y = (torch.stack([torch.as_tensor(one) for one in column]) for column in columns)
            return x, y
        except Exception as error:  # a user's Dataset may raise anything
            raise SpcacwError(
                f"{where} is a Dataset that cannot be read as pairs of an input and a label, alike "
                f"in shape ({type(error).__name__}: {error})."
            ) from error
    if isinstance(part, tuple | list) and len(part) == 2:
        try:
            x, y = map(as_tensor, part)
        except (TypeError, ValueError, RuntimeError) as error:
            raise SpcacwError(
                f"{where} cannot be made into tensors ({error}): x and y must be numbers."
            ) from error
        if x.dim() and y.dim():
            return x, y
    raise SpcacwError(
        f"{where} is {describe(part)}: a silo is (train, test), each a Dataset or a pair (x, y)."
    )


def _inputs(x: Tensor, where: str) -> Tensor:
    if x.dim() < 2:
        raise SpcacwError(f"{where}: inputs have shape {tuple(x.shape)}; they must be (n, …).")
    if x.is_floating_point():
        x = x.float()
        if len(wrong := (~torch.isfinite(x)).nonzero()):
            raise SpcacwError(
                f"{where}: input {wrong[0, 0]} has a value that is infinite or not a number in "
                "float32: fill in what is missing, or leave such samples out."
            )
        return x
    if x.dtype in _WHOLE and x.dim() == 2:
        return x.long()
    raise SpcacwError(
        f"{where}: inputs of {x.dtype} and shape {tuple(x.shape)} are neither float nor tokens "
        "(n, L): scale images to float, in [0, 1] say."
    )


def _weights(weight: Any, count: int, where: str) -> Tensor:
    """Return the weight of each sample, float (n,)."""
    weight = torch.as_tensor(weight).detach().float()
    good = weight.shape == (count,) and weight.isfinite().all() and (weight >= 0).all()
    if not good or not weight.sum() > 0:
        raise SpcacwError(
            f"{where}: weights, of shape {tuple(weight.shape)}, must be {count} finite numbers, "
            "none below 0 and not all 0."
        )
    return weight


def _numbers(x: Tensor, y: Tensor, num_classes: int, where: str) -> Tensor:
    y = y.float() if y.is_floating_point() or y.dtype in _WHOLE else y
    if y.dim() != 1 or not y.is_floating_point() or not y.isfinite().all():
        raise SpcacwError(
            f"{where}: with classes = 1 labels must be finite numbers (n,), but are {y.dtype} of "
            f"shape {tuple(y.shape)}."
        )
    return y


def _several(x: Tensor, y: Tensor, num_classes: int, where: str) -> Tensor:
    """Return which labels each sample has, float (n, C)."""
    if y.shape[1] != (num_classes or y.shape[1]):
        raise SpcacwError(
            f"{where}: with classes = {num_classes} several labels a sample have shape "
            f"(n, {num_classes}), but these are {tuple(y.shape)}."
        )
    if not ((y == 0) | (y == 1)).all():
        raise SpcacwError(
            f"{where}: several labels a sample are each 0 or 1, or false and true, but one is "
            f"{y[(y != 0) & (y != 1)][0].item():g}."
        )
    return y.float()


def _labels(x: Tensor, y: Tensor, num_classes: int, where: str) -> Tensor:
    if y.dtype not in (*_WHOLE, torch.uint8, torch.bool):
        raise SpcacwError(
            f"{where}: labels are {y.dtype}; they must be whole numbers, or "
            "classes = 1 for numbers to be predicted."
        )
    if y.dim() != 1 and y.shape != x.shape:
        raise SpcacwError(
            f"{where}: labels have shape {tuple(y.shape)}, which is neither (n,) nor that of the "
            f"inputs, {tuple(x.shape)}: several labels a sample must be true and false, or float."
        )
    y = y.long()
    top = num_classes or int(y.max()) + 1
    if y.min() < 0 or y.max() >= top:
        wrong = y[(y < 0) | (y >= top)][0].item()
        raise SpcacwError(
            f"{where}: there is a label {wrong}, outside 0 … {top - 1}: number the labels "
            "from 0, or set classes."
        )
    return y
