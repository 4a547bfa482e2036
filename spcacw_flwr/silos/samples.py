"""What samples may be: tables become tensors with their columns in one order, and none is missing.

A setting's data and what a user's own function returns pass the same checks.
"""

from collections.abc import Sequence
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spcacw_flwr.config.declare import SpcacwError

Names = tuple[str, ...] | None
"""The names of a table's columns; None for what is no table."""
_SHOWN = 5


def columns_of(given: Any) -> Names:
    """Return the names of a table's columns; None for anything else."""
    names = getattr(given, "columns", None)
    return None if names is None else tuple(map(str, names))


def as_tensor(given: Any, what: str) -> Tensor:
    """Return a tensor, an array, a pandas table or a list as a tensor, if possible uncopied.

    A table's true and false are 1 and 0. TypeError, which names a table's columns or else ``what``,
    if not all are numbers.
    """
    if isinstance(given, Tensor):
        return given
    array, names = np.require(given, None, "W"), columns_of(given)
    if names and array.dtype.kind not in "biuf":
        array = _numbers(array, names)
    elif array.dtype.kind not in "biufc":
        raise TypeError(f"not only numbers are in {what}")
    return torch.as_tensor(array)


def _numbers(table: Any, names: Sequence[str]) -> Any:
    """Return a table of mixed types as float64."""
    columns = zip(names, table.T, strict=True)
    odd = [name for name, column in columns if not all(map(_is_number, column))]
    if odd:
        raise TypeError(f"not only numbers are in {some_columns(odd)}")
    return table.astype(np.float64)


def _is_number(value: Any) -> bool:
    return isinstance(value, Number | np.bool_) and not isinstance(value, complex)


def some_columns(names: Sequence[str]) -> str:
    """List columns, the first few of them if they are many."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    shown = ", ".join(map(repr, names[:_SHOWN]))
    return f"column{'s' * (len(names) > 1)} {shown}{more}"


def in_order(values: Tensor, names: Names, first: Names, where: str, whose: str) -> Tensor:
    """Return a table's values (n, columns) with the columns in the order of the first table.

    SpcacwError if they have other names; what is no table is returned as it is.
    """
    if names is None or first is None or names == first:
        return values
    odd = sorted(
        {one for one in (*names, *first) if names.count(one) != 1 or first.count(one) != 1}
    )
    if odd:
        raise SpcacwError(
            f"{where} differs from {whose} in {some_columns(odd)}: give all tables the same "
            "columns, each once."
        )
    return values[:, [names.index(one) for one in first]]


def check_samples(x: Tensor, y: Tensor, weight: Any, independent: Any, where: str) -> None:
    """Raise SpcacwError if samples are none, lack a value, or their numbers cannot be right."""
    count = len(y)
    if len(x) != count or not count:
        raise SpcacwError(
            f"{where}: {len(x)} inputs and {count} labels, which must be equally many, and some."
        )
    if (row := _gap(x)) is not None:
        raise SpcacwError(
            f"{where}: input {row} has a value that is infinite or not a number in "
            "float32: fill in what is missing, or leave such samples out."
        )
    if (row := _gap(y)) is not None:
        raise SpcacwError(
            f"{where}: label {row} is missing or infinite: fill in what is missing, or leave such "
            "samples out."
        )
    if weight is not None:
        weights_of(weight, count, where)
    if independent is not None and not 1 <= independent <= count:
        raise SpcacwError(
            f"{where}: independent is {independent:g}, but there are {count} samples, of "
            "which 1 at least and all at most are independent."
        )


def _gap(values: Tensor) -> int | None:
    """Return the first sample with a value that is not finite in float32."""
    if not values.is_floating_point() or not values.numel():
        return None
    values = values.detach().float()
    if all(end.isfinite() for end in values.aminmax()):  # holds no second copy of the values
        return None
    return int((~values.isfinite()).nonzero()[0, 0])


def weights_of(weight: Any, count: int, where: str) -> Tensor:
    """Return the weight of each sample, float (n,); SpcacwError if they are no weights."""
    weight = torch.as_tensor(weight).detach().float()
    good = weight.shape == (count,) and weight.isfinite().all() and (weight >= 0).all()
    if not good or not weight.sum() > 0:
        raise SpcacwError(
            f"{where}: weights, of shape {tuple(weight.shape)}, must be {count} finite numbers, "
            "none below 0 and not all 0."
        )
    return weight
