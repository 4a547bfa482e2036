"""Turn what a user's silo function returned into tensors, or say in one sentence what is wrong."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.silos.setting import SiloData

_WHOLE = (torch.int64, torch.int32, torch.int16)


def describe(thing: object) -> str:
    """Say what a thing is, as in ``a tuple of 3`` or ``a dict``."""
    kind = type(thing).__name__
    return f"a {kind} of {len(thing)}" if isinstance(thing, tuple | list) else f"a {kind}"


def checked(pair: Any, num_classes: int, where: str) -> tuple[SiloData, SiloData]:
    """Return the training and test data; SpcacwError beginning with ``where`` if they are wrong."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise SpcacwError(f"{where} is {describe(pair)}: the function must return (train, test).")
    train = _part(pair[0], num_classes, f"{where}, training data")
    test = _part(pair[1], num_classes, f"{where}, test data")
    if train.x.shape[1:] != test.x.shape[1:] or train.x.dtype != test.x.dtype:
        raise SpcacwError(
            f"{where} trains on inputs of shape {tuple(train.x.shape[1:])} and {train.x.dtype}, "
            f"but is tested on {tuple(test.x.shape[1:])} and {test.x.dtype}: they must agree."
        )
    return train, test


def _part(part: Any, num_classes: int, where: str) -> SiloData:
    x, y = _tensors(part, where)
    if len(x) != len(y) or not len(x):
        raise SpcacwError(
            f"{where}: {len(x)} inputs and {len(y)} labels, which must be equally many, and some."
        )
    return SiloData(_inputs(x, where), _labels(x, y, num_classes, where))


def _tensors(part: Any, where: str) -> tuple[Tensor, Tensor]:
    """Return a pair of tensors as it is, and stack the samples of a Dataset."""
    if isinstance(part, Dataset):
        if not hasattr(part, "__len__"):
            raise SpcacwError(f"{where} is a Dataset without a length, so it cannot be batched.")
        try:
            samples = [part[i] for i in range(len(part))]
            if not samples:
                return torch.empty(0), torch.empty(0)
            xs, ys = zip(*samples, strict=True)
            return torch.stack([torch.as_tensor(x) for x in xs]), torch.as_tensor(_stacked(ys))
        except Exception as error:  # a user's Dataset may raise anything
            raise SpcacwError(
                f"{where} is a Dataset that cannot be read as pairs of an input and a label, alike "
                f"in shape ({type(error).__name__}: {error})."
            ) from error
    if isinstance(part, tuple | list) and len(part) == 2:
        try:
            x, y = (torch.as_tensor(each) for each in part)
        except (TypeError, ValueError, RuntimeError) as error:
            raise SpcacwError(f"{where} cannot be made into tensors ({error}).") from error
        if x.dim() and y.dim():
            return x, y
    raise SpcacwError(f"{where} is {describe(part)}: it must be a Dataset or a pair (x, y).")


def _stacked(labels: tuple[Any, ...]) -> Tensor:
    return torch.stack([torch.as_tensor(label) for label in labels])


def _inputs(x: Tensor, where: str) -> Tensor:
    if x.dim() < 2:
        raise SpcacwError(f"{where}: inputs have shape {tuple(x.shape)}; they must be (n, …).")
    if x.is_floating_point():
        if not torch.isfinite(x).all():
            raise SpcacwError(f"{where}: an input is infinite or not a number.")
        return x.float()
    if x.dtype in _WHOLE and x.dim() == 2:
        return x.long()
    raise SpcacwError(
        f"{where}: inputs of {x.dtype} and shape {tuple(x.shape)} are neither float nor tokens "
        "(n, L): scale images to float, in [0, 1] say."
    )


def _labels(x: Tensor, y: Tensor, num_classes: int, where: str) -> Tensor:
    if y.dtype not in (*_WHOLE, torch.uint8):
        raise SpcacwError(f"{where}: labels are {y.dtype}; they must be whole numbers.")
    if y.dim() != 1 and y.shape != x.shape:
        raise SpcacwError(
            f"{where}: labels have shape {tuple(y.shape)}, which is neither (n,) nor that of the "
            f"inputs, {tuple(x.shape)}."
        )
    y = y.long()
    if y.min() < 0 or y.max() >= num_classes:
        wrong = y[(y < 0) | (y >= num_classes)][0].item()
        raise SpcacwError(
            f"{where}: there is a label {wrong}, outside 0 … {num_classes - 1}: number the labels "
            "from 0, or set classes."
        )
    return y
