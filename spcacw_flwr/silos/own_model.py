"""Checks of a model before training, above all of a user's own: one sentence for each mistake."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from spcacw_flwr.config.declare import SpcacwError, import_by_path
from spcacw_flwr.silos.losses import Loss
from spcacw_flwr.silos.stateless import call


def one_line(error: BaseException) -> str:
    """Return what an error says, as a part of one sentence."""
    words = " ".join(str(error).split()).rstrip(".")
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def own_model(name: str, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return what a user's function makes of an input shape and a number of classes.

    Raises
    ------
    SpcacwError
        If it cannot be imported, raises, or returns something that cannot be trained.
    """
    function = import_by_path(name, "model")
    try:
        model = function(input_shape, classes)
    except Exception as error:  # a user's function may raise anything
        raise SpcacwError(
            f"model = {name!r} cannot be made of the input shape {input_shape} and {classes} "
            f"classes ({one_line(error)})."
        ) from error
    if not isinstance(model, nn.Module):
        raise SpcacwError(
            f"model = {name!r} returned {type(model).__name__}, which is no nn.Module: it must be "
            "a function of input shape and number of classes that returns one."
        )
    trained = {part: w for part, w in model.named_parameters() if w.requires_grad}
    if not trained:
        raise SpcacwError(
            f"model = {name!r} has no parameters that require a gradient: nothing can be trained."
        )
    for part, weight in trained.items():
        if is_lazy(weight):
            raise SpcacwError(
                f"model = {name!r} has no values yet for its parameter '{part}': pass an input "
                "through it in your function."
            )
        if weight.dtype != torch.float32:
            raise SpcacwError(
                f"model = {name!r} has its parameter '{part}' in {weight.dtype}: it must be "
                "float32."
            )
    return model


def try_model(
    model: nn.Module, x: Tensor, y: Tensor, classes: int, loss: Loss, names: tuple[str, str, int]
) -> None:
    """Pass a batch of a silo through model and loss, once, before training.

    Parameters
    ----------
    model : nn.Module
        In training mode; its buffers and PyTorch's random state stay as they are.
    x, y : Tensor
        (b, …), the samples and labels of a mini-batch.
    classes : int
        The number of labels.
    loss : callable
        Outputs and labels → the loss of each sample.
    names : (str, str, int)
        The names of model and loss, and the silo, for the sentence.

    Raises
    ------
    SpcacwError
        If the model cannot be applied, its outputs are no scores of the labels, or the loss is not
        one number per sample that depends on the outputs.
    """
    model_name, loss_name, silo = names
    where = f"the data of silo {silo}"
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        try:
            outputs = call(model, buffers, x.clone())
        except Exception as error:  # a user's module may raise anything
            raise SpcacwError(
                f"model = {model_name!r} cannot be applied to {where}, {len(x)} samples of shape "
                f"{tuple(x.shape[1:])} ({one_line(error)})."
            ) from error
    shape, found = (*y.shape, classes), getattr(outputs, "shape", type(outputs).__name__)
    if not isinstance(outputs, Tensor) or outputs.shape != shape:
        raise SpcacwError(
            f"model = {model_name!r} gives outputs of shape {_plain(found)} on {where}: scores of "
            f"the {classes} classes for labels of shape {tuple(y.shape)} have shape {shape}."
        )
    try:
        losses = loss(outputs, y)
    except Exception as error:
        raise SpcacwError(
            f"loss = {loss_name!r} cannot be applied to {where} ({one_line(error)})."
        ) from error
    if not isinstance(losses, Tensor) or losses.shape != (len(y),) or not losses.requires_grad:
        found = getattr(losses, "shape", type(losses).__name__)
        raise SpcacwError(
            f"loss = {loss_name!r} gives {_plain(found)} on {where}: it must be a tensor of shape "
            f"{(len(y),)}, the loss of each sample, through which gradients flow."
        )


def _plain(shape: object) -> object:
    return tuple(shape) if isinstance(shape, torch.Size) else shape
