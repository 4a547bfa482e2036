"""The loop over silos on a GPU, recorded once as a CUDA graph and then replayed.

A silo's pass is hundreds of kernels, each shorter than the time that Python takes to launch it. A
graph launches those of all silos at once, on several streams, for one silo's kernels fill but a
part of the GPU (benchmarks/gpu.csv). It computes what the loop does: each silo draws from a
generator of its own, that starts from the same seed.

What a model does in Python happens while it is recorded, and never again, so that only models of
known layers are.
"""

import logging
from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor, nn

log = logging.getLogger(__name__)

KNOWN = "torch.nn.", "torchvision.models.", "spcacw_flwr.silos.models"
"""Where the layers come from that do in each pass what they did in the first."""
STREAMS = 5
"""Silos whose kernels may run at the same time."""
SPARE = 4
"""Silos that a graph may compute in vain, rather than that a smaller one is recorded."""
OFTEN = 3
"""Passes before a shape of batch is worth the second that recording takes."""

Pass = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(w, x, y) → the gradient (d,) and the loss of one silo, drawing from PyTorch's generator."""


class Recorded:
    """The passes of up to k silos on batches of one shape; ``x`` and ``y`` (k, b, …) are such."""

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
        """As :meth:`~.gradients.SiloGradients.__call__`, for k silos or fewer."""
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
    """The graphs of a model, by the shape of a batch and the number of silos."""

    def __init__(self, model: nn.Module, one: Pass) -> None:
        self.one, self.made = one, dict[tuple[object, ...], Recorded]()
        self.seen: Counter[tuple[object, ...]] = Counter()
        names = {f"{type(module).__module__}." for module in model.modules()}
        self.on = all(name.startswith(KNOWN) for name in names)

    def of(self, vector: Tensor, x: Tensor, y: Tensor) -> Recorded | None:
        """Return the graph for mini-batches (k, b, …) at w (d,); None where the loop is to run."""
        if not (self.on and vector.is_cuda):
            return None
        shape, silos = (x.shape[1:], y.shape[1:]), len(x)
        for key, graph in self.made.items():
            if key[:2] == shape and silos <= len(graph.x) <= silos + SPARE:
                return graph
        self.seen[shape] += 1  # short last batches of a pass are rare, and each of its own length
        if self.seen[shape] < OFTEN or 4 * self.seen[shape] < self.seen.total():
            return None
        try:
            graph = self.made[*shape, silos] = Recorded(self.one, vector, x, y)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0]
            log.warning("The silos' passes cannot be recorded for this GPU, so that each is "
                        "launched afresh, with the same result (%s)", reason)  # fmt: skip
            self.on = False
            return None
        return graph
