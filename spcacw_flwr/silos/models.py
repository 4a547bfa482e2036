"""The paper's networks (appendix Network Architectures), losses, and checks of the user's own.

``width`` scales every hidden layer of the paper's networks, for runs on a CPU. Width 1 is the
paper's, and no width changes the architecture. A user's own model or loss is checked before
training begins, with one sentence for each mistake.
"""

import inspect
import math
import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from spcacw_flwr.config.declare import SpcacwError, did_you_mean, import_by_path, one_line
from spcacw_flwr.silos.layout import Layout, call, parameters_of
from spcacw_flwr.silos.streams import MODEL, stream

VGG16_CHANNELS = (64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)
"""Output channels of the convolutions; a pooling layer follows each group."""
VGG16_SIDE = 32
"""Five poolings reduce 32 × 32 pixels to one."""

Shape = tuple[int, ...]
Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs (n, …, classes), labels (n, …)) → the losses of the n samples, (n,)."""


def scaled(units: int, width: float) -> int:
    """Return the number of units, at least 1, of a hidden layer in a network of ``width``."""
    return max(1, round(units * width))


def logistic(shape: Shape, classes: int, hidden: int, width: float) -> nn.Module:
    """Return logistic regression: flattened input, one linear layer to the classes."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def mlp(shape: Shape, classes: int, hidden: int, width: float) -> nn.Module:
    """Return the paper's network for MNIST: flattened input, a hidden ReLU layer (784-64-10)."""
    units = scaled(hidden, width)
    first, last = nn.Linear(math.prod(shape), units), nn.Linear(units, classes)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), last)


class ChannelsLast(nn.Sequential):
    """Layers for images stored pixel by pixel, which makes convolutions faster."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the layers' output for ``x`` (n, channels, height, width)."""
        return super().forward(x.contiguous(memory_format=torch.channels_last))


def vgg16(shape: Shape, classes: int, hidden: int, width: float) -> nn.Module:
    """Return the paper's network for CIFAR-100 (its Table VGG16-CIFAR100).

    Convolution, BatchNorm, in-place ReLU and spatial dropout .3, thirteen times, with max-pooling
    after each group; then a classifier with one hidden layer, BatchNorm and dropout .5. The table
    does not list the classifier's ReLU; we chose its place. K. Simonyan and A. Zisserman, Very Deep
    Convolutional Networks for Large-Scale Image Recognition, ICLR 2015.
    """
    if len(shape) != 3 or shape[1:] != (VGG16_SIDE, VGG16_SIDE):
        raise SpcacwError(
            f"model = 'vgg16' is for images of {VGG16_SIDE} × {VGG16_SIDE} pixels, and the inputs "
            f"of this setting have shape {shape}: choose another model, as model = 'mlp'."
        )
    layers: list[nn.Module] = []
    channels = shape[0]
    for group in VGG16_CHANNELS:
        for units in group:
            below, channels = channels, scaled(units, width)
            layers += [
                nn.Conv2d(below, channels, 3, padding=1), nn.BatchNorm2d(channels),
                nn.ReLU(inplace=True), nn.Dropout2d(0.3),
            ]  # fmt: skip
        layers.append(nn.MaxPool2d(2))
    units = scaled(512, width)
    return nn.Sequential(
        ChannelsLast(*layers), nn.Flatten(),
        nn.Linear(channels, units), nn.BatchNorm1d(units), nn.ReLU(inplace=True),
        nn.Dropout(0.5), nn.Linear(units, classes),
    )  # fmt: skip


class SequenceLSTM(nn.LSTM):
    """An LSTM that returns only its outputs at all positions, as ``nn.Sequential`` needs."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Return h at every position; h_0 = c_0 = 0."""
        return super().forward(x)[0]


def char_lstm(shape: Shape, classes: int, hidden: int, width: float) -> nn.Module:
    """Return the paper's network for Shakespeare (its Table CharLSTM): a symbol at every position.

    It has an embedding of 256, two LSTM layers of 256, and a linear layer to the symbols.
    """
    if len(shape) != 1:
        raise SpcacwError(
            "model = 'char-lstm' is for sequences of symbols, and the inputs of this setting have "
            f"shape {shape}: choose another model, as model = 'mlp'."
        )
    units = scaled(256, width)
    return nn.Sequential(
        nn.Embedding(classes, units),
        SequenceLSTM(units, units, num_layers=2, batch_first=True),
        nn.Linear(units, classes),
    )


MODELS: dict[str, Callable[[Shape, int, int, float], nn.Module]] = {
    "logistic": logistic, "mlp": mlp, "vgg16": vgg16, "char-lstm": char_lstm,
}  # fmt: skip


def several(y: Tensor) -> bool:
    """Say whether each sample has several labels, float (n, classes) of 0 and 1."""
    return y.is_floating_point() and y.ndim > 1


def losses_of(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy of each sample, (n,); a sequence's is the mean over positions.

    ``outputs`` is (n, classes) for labels (n,), or (n, positions, classes) for (n, positions). For
    several labels a sample, float (n, classes) of 0 and 1, it is the mean over labels. With σ the
    logistic function of an output, a label 1 costs −log σ and a label 0 costs −log(1 − σ).
    """
    if several(y):
        return binary_cross_entropy_with_logits(outputs, y, reduction="none").mean(dim=1)
    each = cross_entropy(outputs.flatten(0, -2), y.flatten(), reduction="none")
    return each if y.ndim == 1 else each.view(len(y), -1).mean(dim=1)


def squared_errors(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the squared error of each sample, (n,); ``outputs`` is (n, 1) for labels (n,)."""
    return (outputs.squeeze(-1) - y).square()


LOSS_FUNCTIONS: dict[str, Loss] = {"cross-entropy": losses_of, "squared-error": squared_errors}


def _wrong(key: str, name: str, words: str) -> SpcacwError:
    return SpcacwError(f"{key} = {name!r} {words}.")


def _named(name: str, table: Mapping[str, Any], key: str) -> Any:
    """Return what a key's value names: one of a table, or a user's own (an import path)."""
    if name in table:
        return table[name]
    if ":" in name:
        return import_by_path(name, key)
    hint, known = did_you_mean(name, table), ", ".join(table)
    words = f"is unknown{hint}: it must be one of {known}, or 'package.module:function' of your own"
    raise _wrong(key, name, words)


def make_loss(name: str) -> Loss:
    """Return the loss that the key ``loss`` names.

    SpcacwError if the name is unknown, or the user's own cannot be imported or called.
    """
    loss: Loss = _named(name, LOSS_FUNCTIONS, "loss")
    if not callable(loss):
        words = "is no function: it must take outputs and labels and return the loss of each sample"
        raise _wrong("loss", name, words)
    return loss


def make_model(
    input_shape: Shape, classes: int, hidden: int, seed: int, name: str = "mlp", width: float = 1.0,
    rows: int = 0,
) -> nn.Module:  # fmt: skip
    """Return a model in training mode with its initial parameters, a pure function of ``seed``.

    ``name`` is one of :data:`MODELS`, or ``package.module:function`` for a user's own: a function
    of input shape and number of classes, or without arguments, that returns any ``nn.Module``.
    ``hidden`` and ``width`` are the keys; a user's own function gets neither. SpcacwError if the
    model does not exist, does not take such inputs, needs more memory for the gradients of ``rows``
    silos than there is, or is a user's own that cannot be used.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(stream(seed, MODEL).integers(2**62)))
        function = _named(name, MODELS, "model")
        if name in MODELS:
            make = partial(function, input_shape, classes, hidden, width)
            see_room(name, make, rows)
            return make()
        return own_model(function, name, input_shape, classes).train()


def see_room(name: str, make: Callable[[], nn.Module], rows: int) -> None:
    """Raise SpcacwError if a model, its step and ``rows`` gradients do not fit the memory."""
    try:
        with torch.device("meta"):  # counts without using memory
            size = sum(part.numel() for part in make().parameters())
    except (RuntimeError, TypeError, OverflowError):  # PyTorch cannot count them
        size = sys.maxsize
    needed, memory = 4 * size * (rows + 2), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        raise SpcacwError(
            f"model = {name!r} of this width, and a gradient of each of {rows} silos, want "
            f"{needed / 2**30:.3g} GiB, and this machine has {memory / 2**30:.3g}: choose a "
            "smaller hidden, width, input-shape or classes."
        )


def own_model(function: Any, name: str, input_shape: Shape, classes: int) -> nn.Module:
    """Return the model that a user's function makes for an input shape and a number of classes.

    SpcacwError, which mentions ``name``, if the function raises or its result cannot be trained.
    """
    wrong = partial(_wrong, "model", name)
    try:
        model = function() if _needs_nothing(function) else function(input_shape, classes)
    except Exception as error:  # a user's function may raise anything
        of = f"the input shape {input_shape} and {classes} classes"
        raise wrong(f"cannot be made of {of} ({one_line(error)})") from error
    if not isinstance(model, nn.Module):
        raise wrong(
            f"returned {type(model).__name__}, which is no nn.Module: it must be a function of "
            "input shape and number of classes, or of nothing, that returns one"
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise wrong("returned TorchScript: return the module that it was made of")
    trained = {part: w for part, w in model.named_parameters() if w.requires_grad}
    if not trained:
        raise wrong("has no parameters that require a gradient: nothing can be trained")
    for part, weight in trained.items():
        if is_lazy(weight):
            how = "pass an input through it in your function"
            raise wrong(f"has no values yet for its parameter '{part}': {how}")
        if weight.dtype != torch.float32:
            raise wrong(f"has its parameter '{part}' in {weight.dtype}: it must be float32")
    return model


def _needs_nothing(function: Any) -> bool:
    with suppress(TypeError, ValueError):  # a class of C has no signature
        inspect.signature(function).bind()
        return True
    return False


def try_model(
    model: nn.Module, x: Tensor, y: Tensor, classes: int, loss: Loss, names: tuple[str, str, int]
) -> int:
    """Pass a batch of a silo through model and loss, and back, once, before training.

    Returns the number of classes. If ``classes`` is 0 (unknown), the model's outputs determine it.

    The model is in training mode; its tensors and PyTorch's random state do not change. ``x`` and
    ``y`` (b, …) are a mini-batch; ``names`` (model, loss, silo) are for error messages. SpcacwError
    if the model cannot be applied, its outputs are no scores of the labels, the loss is not one
    finite number per sample that depends on the outputs, or there is no gradient.
    """
    where = f"the data of silo {names[2]}"
    bad_model, bad_loss = partial(_wrong, "model", names[0]), partial(_wrong, "loss", names[1])
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    layout = Layout.of(parameters_of(model))
    vector = layout.flatten(parameters_of(model)).requires_grad_()
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        try:
            outputs = call(model, buffers | layout.unflatten(vector), x.clone())
        except Exception as error:  # a user's module may raise anything
            what = f"{where}, {len(x)} samples of shape {tuple(x.shape[1:])}"
            words = f"cannot be applied to {what} ({one_line(error)})"
            words += _of_type(error, x)
            raise bad_model(words) from error
    _see_buffers(model, buffers, names[0])
    if not classes and several(y):
        classes = y.shape[-1]
    elif not classes and isinstance(outputs, Tensor) and outputs.ndim == y.ndim + 1:
        classes = 1 if y.is_floating_point() else outputs.shape[-1]
    shape = (len(y), classes) if several(y) else (*y.shape, classes or "C")
    if _shape(outputs) != shape:
        what = f"the {classes or 'C'} classes for labels of shape {tuple(y.shape)}"
        words = f"gives outputs of shape {_shape(outputs)} on {where}: scores of {what}"
        raise bad_model(f"{words} have shape {shape}")
    if not outputs.requires_grad:
        raise bad_model(f"gives outputs on {where} through which no gradient flows")
    try:
        losses = loss(outputs, y)
    except Exception as error:
        words = f"cannot be applied to {where} ({one_line(error)})"
        if y.is_floating_point() and y.ndim == 1:
            words += ", whose labels are numbers to be predicted, as by loss = 'squared-error' and "
            words += "metric = 'r2': classes must be whole numbers"
        elif not y.is_floating_point() and (strange := strange_labels(y, classes)):
            words += f": {strange}"
        raise bad_loss(words) from error
    if _shape(losses) != (len(y),) or not losses.requires_grad:
        words = f"gives {_shape(losses)} on {where}: it must be a tensor of shape {(len(y),)}"
        raise bad_loss(f"{words}, the loss of each sample, through which gradients flow")
    if not losses.isfinite().all():
        words = f"gives a loss that is not finite on {where}, before any training: mend it, the"
        raise bad_loss(f"{words} model or the scale of the data")
    try:
        torch.autograd.grad(losses.mean(), vector)
    except Exception as error:  # a user's layer or loss may raise anything in the backward pass
        raise bad_model(f"has no gradient on {where} ({one_line(error)})") from error
    return classes


def strange_labels(y: Tensor, classes: int) -> str:
    """Return what is wrong with labels (whole numbers) that are not all in 0 … C−1, or nothing."""
    low, high = map(int, y.aminmax())
    if low >= 0 and high < classes:
        return ""
    return f"labels are from {low} to {high}, and the {classes} classes from 0 to {classes - 1}"


def _see_buffers(model: nn.Module, after: Mapping[str, Tensor], name: str) -> None:
    """Refuse a model that learns buffers other than BatchNorm's: silos keep no state for them."""
    norms = [at for at, part in model.named_modules() if isinstance(part, _BatchNorm)]
    for at, buffer in model.named_buffers():
        learned = buffer.is_floating_point() and not torch.equal(buffer, after[at])
        if learned and at.rpartition(".")[0] not in norms:
            words = f"changes its buffer '{at}' in training, and silos keep none but BatchNorm's"
            raise _wrong("model", name, f"{words}: leave that layer out, or its running statistics")


def _of_type(error: Exception, x: Tensor) -> str:
    """Say what may be wrong with features, no float32, that a model cannot be applied to."""
    if x.is_floating_point():
        return "" if x.dtype == torch.float32 else f": features are {x.dtype}, so make them float32"
    if isinstance(error, IndexError):
        return f": tokens are up to {int(x.max())} there"
    if re.search(r"dtype|datatype|not implemented for|type \(", str(error)):
        return ": whole numbers are tokens, so make features float"
    return ""


def _shape(given: object) -> object:
    """Return the shape of a tensor, or the name of another type."""
    return tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
