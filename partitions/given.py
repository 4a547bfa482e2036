"""Checks of the data that users give: pairs, arrays, tables and Datasets become tensors."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from spcacw_flwr.config.declare import SpcacwError, one_line
from spcacw_flwr.silos.samples import weights_of
from spcacw_flwr.silos.setting import SiloData, difference

_WHOLE = (torch.int64, torch.int32, torch.int16)


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
    test = test.like(train, f"{where}, test data,", "the training data")
    if differ := difference(train, test):
        what, ours, theirs = differ
        raise SpcacwError(
            f"{where} trains on {what} of shape {ours}, but is tested on {theirs}: they must agree."
        )
    return train, test


def _part(part: Any, num_classes: int, where: str) -> SiloData:
    given = _read(part, where)
    given.check(where)
    x, y, weight = given.x.detach(), given.y.detach(), given.weight
    numbers = num_classes == 1 or (not num_classes and y.is_floating_point())
    flags = y.is_floating_point() or (y.dtype == torch.bool and y.shape != x.shape)
    many = flags and y.dim() == 2 and y.shape[1] > 1 and num_classes != 1
    labels = _several if many else _numbers if numbers else _labels
    if weight is not None:
        weight = weights_of(weight, len(y), where)
    labelled = _inputs(x, where), labels(x, y, num_classes, where)
    return SiloData(*labelled, weight, given.independent, given.columns)


def _read(part: Any, where: str) -> SiloData:
    """Return samples as tensors; the samples of a Dataset are stacked."""
    if isinstance(part, SiloData) and part.x.dim() and part.y.dim():
        return part
    if isinstance(part, Dataset):
        if not hasattr(part, "__len__"):
            raise SpcacwError(f"{where} is a Dataset without a length, so it cannot be batched.")
        try:
            samples = [part[i] for i in range(len(part))]
            if not samples:
                return SiloData(torch.empty(0), torch.empty(0))
            columns = zip(*samples, strict=True)
            x, y = (torch.stack([torch.as_tensor(one) for one in column]) for column in columns)
            return SiloData(x, y)
        except Exception as error:  # a user's Dataset may raise anything
            raise SpcacwError(
                f"{where} is a Dataset that cannot be read as pairs of an input and a label, alike "
                f"in shape ({one_line(error)})."
            ) from error
    if isinstance(part, tuple | list) and len(part) == 2:
        try:
            found = SiloData(*part)
        except (TypeError, ValueError, RuntimeError) as error:
            raise SpcacwError(
                f"{where} cannot be made into tensors ({one_line(error)}): x and y must be "
                "numbers, and none may be missing: number what is text."
            ) from error
        if found.x.dim() and found.y.dim():
            return found
    raise SpcacwError(
        f"{where} is {describe(part)}: a silo is (train, test), each a Dataset or a pair (x, y)."
    )


def _inputs(x: Tensor, where: str) -> Tensor:
    if x.dim() < 2:
        raise SpcacwError(f"{where}: inputs have shape {tuple(x.shape)}; they must be (n, …).")
    if x.is_floating_point() or x.dtype == torch.bool:
        return x.float()
    if x.dtype in _WHOLE and x.dim() == 2:
        return x.long()
    raise SpcacwError(
        f"{where}: inputs of {x.dtype} and shape {tuple(x.shape)} are neither float nor tokens "
        "(n, L): scale images to float, in [0, 1] say."
    )


def _numbers(x: Tensor, y: Tensor, num_classes: int, where: str) -> Tensor:
    y = y.float() if y.is_floating_point() or y.dtype in _WHOLE else y
    if y.dim() != 1 or not y.is_floating_point():
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
            f"{where}: labels have shape {tuple(y.shape)}, not (n,) as one label a sample has, nor "
            f"that of the inputs, {tuple(x.shape)}: several labels a sample must be true and "
            "false, or float."
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
