"""How one backward pass through a shared model yields a gradient for each silo.

All silos share the model w_t, so their samples can pass through it as one batch; only the weights'
gradients must be kept apart (and batch statistics and masks, where a layer has them). That is a
product per silo in place of one over all samples: the same arithmetic as an ordinary pooled
backward pass. The idea is that of per-example gradients (I. Goodfellow, Efficient per-example
gradient computations, arXiv 1510.01799), with a silo's batch in the place of an example.

A layer takes part by a rule (:mod:`spcacw_flwr.silos.rules`), which sees activations (k·b, …), the
batches of k silos one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spcacw_flwr.silos.rules import Rule, Shared, rule_of


def leaves(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield name and module of the layers of nested ``nn.Sequential``, in the order of the pass."""
    if type(model).forward is nn.Sequential.forward:
        for name, child in model._modules.items():  # named_children() leaves out repeated modules
            assert child is not None
            yield from leaves(child, f"{prefix}{name}.")
    else:
        yield prefix, model


def can_pool(model: nn.Module) -> bool:
    """Say whether one pooled pass gives the gradients of all silos.

    True for nested ``nn.Sequential`` of known layers: another module's ``forward`` could mix
    samples of different silos.
    """
    if any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()):
        return False
    found: list[str] = []
    for prefix, layer in leaves(model):
        if rule_of(layer) is None:
            return False
        found += [prefix + name for name, _ in layer.named_parameters(recurse=False)]
    # A parameter that two layers share appears once among the model's and twice among the layers'.
    own = list(model.named_parameters())
    return found == [name for name, _ in own] and all(weight.requires_grad for _, weight in own)


@dataclass(frozen=True)
class Step:
    """A layer of a pooled pass."""

    module: nn.Module
    rule: Rule
    names: dict[str, str]
    """The layer's own name of each of its parameters, and the model's."""


def steps_of(model: nn.Module) -> list[Step]:
    """Return the layers of a model that :func:`can_pool`, in the order of the pass."""
    steps = []
    for prefix, module in leaves(model):
        rule = rule_of(module)
        assert rule is not None  # can_pool saw to that
        own = [name for name, _ in module.named_parameters(recurse=False)]
        steps.append(Step(module, rule, {name: prefix + name for name in own}))
    return steps


def pooled_pass(
    steps: Sequence[Step],
    weights: dict[str, Tensor],
    rows: dict[str, Tensor],
    x: Tensor,
    silos: int,
    seed_of: Callable[[int], int],
) -> Tensor:
    """Return the outputs (k·b, …) for inputs (k·b, …) of k = ``silos`` silos.

    Their backward pass fills ``rows``, which is keyed by the names of the model's parameters, as
    ``weights`` is. ``seed_of`` gives the seed of what silo 0…k−1 draws.
    """
    anchor = torch.zeros((), device=x.device, requires_grad=True)
    noise = []
    if any(step.rule.draws for step in steps):
        noise = [torch.Generator().manual_seed(seed_of(k)) for k in range(silos)]
    for step in steps:
        own = {name: weights[full] for name, full in step.names.items()}
        into = {name: rows[full] for name, full in step.names.items()}
        x = step.rule.apply(step.module, x, Shared(silos, own, into, anchor, noise))
    return x


def bytes_kept(steps: Sequence[Step], weights: dict[str, Tensor], x: Tensor) -> int:
    """Return what a pooled pass of samples keeps in memory for its backward pass."""
    kept = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        pooled_pass(steps, weights, weights, x.clone(), 1, int)
    return kept
