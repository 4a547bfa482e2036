"""Passes of a model on a GPU, recorded once as a CUDA graph and then replayed.

A silo's pass is hundreds of kernels, each shorter than the time that Python takes to launch it. A
graph launches the kernels of all silos at once, on several streams, because one silo's kernels fill
only a part of the GPU (benchmarks/gpu.csv). The graph computes what the loop over silos computes:
each silo draws from its own generator, with the same seed as in the loop.

A model's Python code runs only while the model is recorded, and never again. So only models made
of known layers are recorded.
"""

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

log = logging.getLogger(__name__)

KNOWN = "torch.nn.", "torchvision.models.", "spcacw_flwr.silos.models"
"""Module prefixes of layers that do in each pass what they did in the first."""
STREAMS = 5
"""Silos whose kernels may run at the same time."""
SPARE = 4
"""The most unneeded silos a graph may compute before a smaller graph is recorded instead."""
OFTEN = 3
"""Passes with one batch shape before recording, which takes a second, is worth it."""

Key = tuple[object, ...]
Pass = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(w, x, y) → gradient (d,) and loss of one silo; it draws from PyTorch's generator."""


class Replay:
    """A recorded function of tensors that draws no random numbers.

    A call returns what the function would return, in tensors that the next call overwrites. Inputs
    may have fewer rows than in the recording: the other rows then keep their old values.
    """

    def __init__(self, function: Callable[..., Any], *inputs: Tensor) -> None:
        self.inputs = [one.detach().clone() for one in inputs]
        self.graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        here = torch.cuda.current_stream()
        stream.wait_stream(here)
        with torch.cuda.stream(stream):  # a first pass looks for the fastest kernels, and may wait
            function(*self.inputs)
        here.wait_stream(stream)
        with torch.cuda.graph(self.graph):
            self.found = function(*self.inputs)

    def __call__(self, *inputs: Tensor) -> Any:
        """Return what the function does."""
        for own, new in zip(self.inputs, inputs, strict=True):
            (own[: len(new)] if new.ndim else own).copy_(new)
        self.graph.replay()
        return self.found


class Recorded:
    """The recorded passes of up to k silos, on batches shaped as ``x`` and ``y`` (k, b, …)."""

    def __init__(self, one: Pass, vector: Tensor, x: Tensor, y: Tensor) -> None:
        self.vector, self.x, self.y = vector.detach().clone(), x.clone(), y.clone()
        self.graph, here = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        chances = torch.cuda.default_generators[vector.device.index]
        self.chances = [chances.clone_state() for _ in x]
        streams = [torch.cuda.Stream() for _ in range(min(STREAMS, len(x)))]
        for stream in streams:  # a first pass looks for the fastest kernels, and may wait
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                one(self.vector, self.x[0], self.y[0])
            here.wait_stream(stream)
        for own in self.chances:
            self.graph.register_generator_state(own)
        kept, self.found = chances.graphsafe_get_state(), []
        try:
            with torch.cuda.graph(self.graph):
                here = torch.cuda.current_stream()
                for stream in streams:
                    stream.wait_stream(here)
                for k, own in enumerate(self.chances):
                    with torch.cuda.stream(streams[k % len(streams)]):
                        chances.graphsafe_set_state(own)
                        self.found.append(one(self.vector, self.x[k], self.y[k]))
                for stream in streams:
                    here.wait_stream(stream)
        finally:
            chances.graphsafe_set_state(kept)

    def __call__(
        self, vector: Tensor, x: Tensor, y: Tensor, rows: Tensor, seed_of: Callable[[int], int]
    ) -> Tensor:
        """Do what :meth:`~.gradients.SiloGradients.__call__` does, for k silos or fewer."""
        self.vector.copy_(vector)
        self.x[: len(x)].copy_(x)
        self.y[: len(y)].copy_(y)
        for k in range(len(x)):
            self.chances[k].manual_seed(seed_of(k))
        self.graph.replay()
        gradients, losses = zip(*self.found[: len(x)], strict=True)
        torch._foreach_copy_(list(rows), list(gradients))
        return torch.stack(losses)


class Graphs:
    """A model's graphs, keyed by what they compute, the batch shape and the number of silos."""

    def __init__(self, model: nn.Module) -> None:
        self.made: dict[Key, Any] = {}
        self.seen: Counter[Key] = Counter()
        names = {f"{type(module).__module__}." for module in model.modules()}
        self.on = all(name.startswith(KNOWN) for name in names)
        self.refused: set[object] = set()

    def of(
        self, kind: Callable[..., Any], one: Callable[..., Any], vector: Tensor, x: Tensor,
        y: Tensor, *more: Tensor,
    ) -> Any:  # fmt: skip
        """Return ``one`` for mini-batches (k, b, …) at w (d,), as a Recorded or a Replay.

        The graph may hold more silos. None means: call ``one`` itself.
        """
        silos, key = len(x), self._key(one, x[0], y[0], vector.ndim)
        for (*made, size), graph in self.made.items():
            if tuple(made) == key and silos <= size <= silos + SPARE:  # type: ignore[operator]
                return graph
        return self._make((*key, silos), x[0], y[0], lambda: kind(one, vector, x, y, *more))

    def replay(
        self, function: Callable[..., Any], x: Tensor, y: Tensor, *others: Tensor
    ) -> Replay | None:
        """Do the same as :meth:`of` for a function of one mini-batch (b, …) and other tensors."""
        key = self._key(function, x, y)
        return self.made.get(key) or self._make(key, x, y, lambda: Replay(function, x, y, *others))

    @staticmethod
    def _key(function: Callable[..., Any], x: Tensor, y: Tensor, *more: object) -> Key:
        precision = torch.backends.fp32_precision  # type: ignore[attr-defined]
        return function.__name__, precision, x.shape, y.shape, *more

    def _make(self, key: Key, x: Tensor, y: Tensor, make: Callable[[], Any]) -> Any:
        """Record what a key names, if batches of the shape of ``x`` and ``y`` (b, …) are common."""
        if not (self.on and x.is_cuda) or key[0] in self.refused:
            return None
        shape = x.shape, y.shape
        self.seen[shape] += 1  # short last batches are rare, and their lengths differ
        if self.seen[shape] < OFTEN or 4 * self.seen[shape] < self.seen.total():
            return None
        try:
            graph = self.made[key] = make()
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0]
            log.warning("What silos compute cannot all be recorded for this GPU, so that it is "
                        "launched afresh, with the same result (%s)", reason)  # fmt: skip
            self.refused.add(key[0])
            return None
        return graph
