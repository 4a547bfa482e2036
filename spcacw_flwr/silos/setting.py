"""A heterogeneity setting: the data of each silo, and which silos truly belong with the target.

The experiments of SP-CACW (Kiselman & Levy, arXiv 2606.29322, Section "Experiments") each fix a
setting: M silos, a training set for each, and a test set for the target.
"""

import operator
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from spcacw_flwr.config.declare import SpcacwError, one_line, users
from spcacw_flwr.config.keys import PartitionKeys
from spcacw_flwr.silos.samples import (
    Names,
    as_tensor,
    check_samples,
    columns_of,
    in_order,
    some_columns,
)
from spcacw_flwr.silos.streams import TUNE, stream

# An angle such as 3 · 0.1 must count as within 0.3 degrees despite its rounding.
_ANGLE_ROUNDING = 1e-9


@dataclass(frozen=True)
class SiloData:
    """Samples and labels of one silo.

    Settings return their own tensors without a copy: do not write into them. Arrays and pandas
    tables become tensors.
    """

    x: Tensor
    """Images float32 (n, channels, height, width), or tokens int64 (n, L)."""
    y: Tensor
    """Labels int64 (n,), or of every position of a sequence (n, L); numbers float32 (n,); or which
    of C labels a sample has, float32 (n, C) of 0 and 1."""
    weight: Tensor | None = None
    """The weight of each sample in an average, float32 (n,) ≥ 0 with a positive sum; None: equal
    weights (READING row 13). Only test data have weights."""
    independent: float | None = None
    """The number of independent samples (of patients, if they have several images); None: n."""
    columns: tuple[Names, Names] = None, None
    """The names of the columns of x and of y that were tables."""

    def __post_init__(self) -> None:
        """Make tensors of x and y; whatever NumPy or PyTorch raises if that is impossible."""
        both = columns_of(self.x), columns_of(self.y)
        if both != (None, None):
            object.__setattr__(self, "columns", both)
        for name in ("x", "y"):
            object.__setattr__(self, name, as_tensor(getattr(self, name), name))

    def check(self, where: str) -> None:
        """Raise SpcacwError, which begins with ``where``, for samples that cannot be right."""
        check_samples(self.x, self.y, self.weight, self.independent, where)

    def like(self, first: "SiloData", where: str, whose: str) -> "SiloData":
        """Return these samples with their tables' columns in the order of the first tables.

        SpcacwError if columns have other names.
        """
        if self.columns == first.columns:
            return self
        (x, y), (xs, ys) = self.columns, first.columns
        ordered = in_order(self.x, x, xs, where, whose), in_order(self.y, y, ys, where, whose)
        return SiloData(*ordered, self.weight, self.independent, (xs or x, ys or y))

    def rows(self, at: NDArray[np.int64]) -> "SiloData":
        """Return some of the samples; the same proportion of them counts as independent."""
        n = self.independent
        alone = None if n is None else max(1.0, n * len(at) / len(self.y))
        weight = None if self.weight is None else self.weight[at]
        return SiloData(self.x[at], self.y[at], weight, alone, self.columns)

    def label_counts(self, num_classes: int) -> Tensor:
        """Count the labels of each class: int64 (num_classes,)."""
        return torch.bincount(self.y.flatten(), minlength=num_classes)

    def mean(self, values: Tensor) -> float:
        """Average a quantity of each sample (n,), or of each position (n, L).

        For example, accuracy in percent is ``100 * data.mean(logits.argmax(-1) == data.y)``.
        """
        each = values.double().flatten(1).mean(1) if values.dim() > 1 else values.double()
        if self.weight is None:
            return each.mean().item()
        weight = self.weight.double()
        return ((each @ weight) / weight.sum()).item()


def difference(one: SiloData, other: SiloData) -> tuple[str, str, str] | None:
    """Return what differs, inputs or labels, and both shapes and types; None if they agree."""
    for what, parts in (("inputs", (one.x, other.x)), ("labels", (one.y, other.y))):
        ours, theirs = (f"{tuple(part.shape[1:])} and {part.dtype}" for part in parts)
        if ours != theirs:
            return what, ours, theirs
    return None


class Setting(ABC):
    """A heterogeneity setting: a pure function of configuration keys, the seed and the target."""

    name: ClassVar[str]
    """Its name in the configuration."""
    Keys: ClassVar[type | None] = None
    """A frozen dataclass of the setting's own configuration keys, the table ``[name]``."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Configuration keys (field names, of any part of the project) whose default differs here."""
    reads: ClassVar[tuple[str, ...]] = ()
    """Shared keys (field names) that ``spcacw keys --setting`` lists with the setting's own."""
    num_classes: int
    """C, the number of labels."""
    input_shape: tuple[int, ...]
    """Shape of one input: (channels, height, width), or (length,) of tokens."""
    group_kind: ClassVar[str]
    """What ``groups`` holds: "cluster" (numbers), "angle" (degrees in [0, 360)), or "none": the
    truth is not known, and ``groups`` holds None."""
    names: tuple[str, ...] = ()
    """The names of the M silos; empty if silos have only numbers, or as long as data are unread."""
    target: int = 0
    """The target, for settings that give it other data than a peer; set before data are read."""
    oracle_radius: float = 0.0
    """Degrees: if groups are angles, silos within this angle of the target belong with it."""

    def __init__(self, keys: PartitionKeys, seed: int) -> None:
        """Keep the keys and the seed, a whole number ≥ 0; subclasses read no data here."""
        self.keys = keys
        self.own: Any = self.Keys() if self.Keys and keys.own is None else keys.own
        """The values of the setting's own keys."""
        self.seed = seed

    @property
    def num_silos(self) -> int:
        """M, the number of silos, the target included."""
        return len(self.groups)

    @property
    @abstractmethod
    def groups(self) -> Sequence[float | None]:
        """The true cluster number, or the angle in degrees, of each silo: M of them."""

    @abstractmethod
    def prepare(self) -> None:
        """Find, fetch and verify the data; cheap once done; SpcacwError if that is impossible."""

    @abstractmethod
    def train(self, silo: int) -> SiloData:
        """Return the training data of ``silo``; SpcacwError outside 0 … M−1."""

    @abstractmethod
    def test(self, silo: int) -> SiloData:
        """Return the whole test set as ``silo`` would see it; SpcacwError outside 0 … M−1."""

    def held_out(self, silo: int, share: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Split the training samples of ``silo`` for tuning: rows to train on, rows to hold out.

        By default the seed draws the ``share`` of samples to hold out. A setting whose samples are
        in order of time holds out the last samples.
        """
        count = len(self.train(silo).y)
        order = stream(self.seed, TUNE, silo).permutation(count)
        cut = count - round(count * share)
        return np.sort(order[:cut]), np.sort(order[cut:])

    @property
    def augments(self) -> bool:
        """Whether :meth:`augment` does anything."""
        return type(self).augment is not Setting.augment

    def augment(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """Return a training batch (b, \\*input_shape) as the model sees it this time.

        A pure function of the batch and the generator, which the engine makes from (seed, silo,
        round). By default the batch does not change.
        """
        return x

    def check_silo(self, silo: int) -> None:
        """Raise SpcacwError unless ``silo`` is in 0 … M−1."""
        if not 0 <= silo < self.num_silos:
            raise SpcacwError(
                f"Silo {silo} does not exist: choose a silo from 0 to {self.num_silos - 1}, "
                f"for {self.name} has {self.num_silos}."
            )

    def oracle(self, target: int) -> list[int]:
        """List the silos that truly belong with ``target``, itself included, in order.

        These are the target's cluster, or the silos whose angle on the circle is within
        ``oracle_radius`` of its own; none if the truth is not known. SpcacwError outside 0 … M−1.
        """
        self.check_silo(target)
        groups = [group for group in self.groups if group is not None]
        if not groups:
            return []
        gaps = [abs(group - groups[target]) for group in groups]
        if self.group_kind == "angle":
            # Angles lie on a circle: 352° is 8° away from 0°.
            gaps = [min(gap, 360 - gap) for gap in gaps]
            reach = self.oracle_radius + _ANGLE_ROUNDING
        else:
            reach = 0.0
        return [silo for silo, gap in enumerate(gaps) if gap <= reach]


KINDS = "cluster", "angle", "none"


def check_groups(setting: Setting, name: str) -> None:
    """Raise SpcacwError unless a setting says of which kind its groups are, and gives them."""
    with users(f"{name}: groups of the setting raises"):
        kind, groups = getattr(setting, "group_kind", None), setting.groups
    if kind not in KINDS:
        raise SpcacwError(
            f"{name}: group_kind = {kind!r} must be one of {', '.join(KINDS)}; 'none' where the "
            "true groups are not known."
        )
    right = (type(None),) if kind == "none" else (int, float, np.number)
    if not isinstance(groups, Sequence | np.ndarray) or not len(groups):
        words = f"groups = {groups!r} must be a list with one entry for each silo"
    elif strange := [one for one in groups if not isinstance(one, right)]:
        words = f"groups has {strange[0]!r}: with group_kind = {kind!r} all are "
        words += "None" if kind == "none" else "numbers"
    elif setting.names and len(setting.names) != len(groups):
        words = f"names has {len(setting.names)} entries, and groups {len(groups)}: give one each"
    else:
        return
    raise SpcacwError(f"{name}: {words}.")


def described(setting: Setting) -> tuple[tuple[int, ...], int]:
    """Return the input shape and the number of classes; SpcacwError unless they are of that kind.

    Zero classes are those that the model has scores for.
    """
    try:
        shape, classes = tuple(map(operator.index, setting.input_shape)), setting.num_classes
        found = shape, operator.index(classes)
    except (AttributeError, TypeError) as error:
        raise SpcacwError(
            f"Setting {setting.name!r} needs input_shape, whole numbers such as (3,), and "
            f"num_classes, one whole number ({one_line(error)})."
        ) from error
    if classes < 0:
        raise SpcacwError(
            f"Setting {setting.name!r} has num_classes = {classes}: it must be the number of "
            "labels, 1 for numbers to be predicted, or 0 for as many as the model has scores for."
        )
    return found


def prepare(setting: Setting) -> None:
    """Prepare a setting's data; SpcacwError for whatever a user's own setting raises."""
    with users("prepare() of the setting raises"):
        setting.prepare()


def data_of(setting: Setting, part: str, silo: int) -> SiloData:
    """Return what ``part`` of a setting, "train" or "test", gives.

    SpcacwError if that is no SiloData, if samples cannot be right, or for whatever a user's own
    setting raises.
    """
    where = f"{part}({silo}) of the setting"
    with users(f"{where} raises"):
        given = getattr(setting, part)(silo)
    if not isinstance(given, SiloData):
        raise SpcacwError(f"{where} gives a {type(given).__name__}: it must be a SiloData(x, y).")
    with users(f"{where} gives data of which a check raises"):
        given.check(where)
    _same_kind(setting, given, where)
    return given


def _same_kind(setting: Setting, given: SiloData, where: str) -> None:
    """Raise SpcacwError unless samples are as the first that the setting gave, and tables' columns.

    One row is kept of what was given first.
    """
    row = SiloData(given.x[:1].clone(), given.y[:1].clone())
    whose, first = vars(setting).setdefault("_first_given", (where, row))
    if differ := difference(row, first):
        what, ours, theirs = differ
        raise SpcacwError(
            f"{where} gives {what} of shape {ours}, not {theirs} as {whose}: all silos train one "
            "model."
        )
    if any(given.columns):
        whose, first = vars(setting).setdefault("_tables", (where, given.columns))
        for names, others in zip(given.columns, first, strict=True):
            if names and others and names != others:
                odd = [one for at, one in enumerate(names) if others[at : at + 1] != (one,)]
                raise SpcacwError(
                    f"{where} does not have the columns of {whose} in the same order "
                    f"({some_columns(odd or others[len(names) :])}): give all tables the same."
                )


def silo_file(directory: Path, silo: int) -> Path:
    """Return the path of a silo's file in the directory of its data."""
    return directory / f"silo-{silo}.safetensors"


def write_silo(directory: Path, silo: int, train: SiloData, test: SiloData | None) -> Path:
    """Write a silo's data into a file only its owner can read; without ``test``, not a target.

    SpcacwError if the file cannot be written.
    """
    parts = {"train.x": train.x, "train.y": train.y}
    if train.independent is not None:
        parts["train.independent"] = torch.tensor(train.independent, dtype=torch.float64)
    if test is not None:
        parts |= {"test.x": test.x, "test.y": test.y}
        if test.weight is not None:
            parts["test.weight"] = test.weight
    path = silo_file(directory, silo)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory, prefix=".writing-") as scratch:
            whole = Path(scratch) / path.name
            save_file({name: part.contiguous().clone() for name, part in parts.items()}, whole)
            whole.chmod(0o600)
            whole.replace(path)
    except (OSError, SafetensorError) as error:
        raise SpcacwError(f"{path} cannot be written: {error}.") from error
    return path
