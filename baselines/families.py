"""What methods share: averages and distances, and four families of methods.

The family of silos that own models is in ``personal``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError, key
from spcacw_flwr.methods.base import Method, WeightedGradients, Weights, weighted_sum
from spcacw_flwr.silos.protocol import Federation, Replies, Request, Round

UNIFORM, SIZE = "uniform", "size"
AVERAGES = (UNIFORM, SIZE)
"""The values of a key ``weights``."""


def average_weights(federation: Federation, weights: str) -> Weights:
    """Return 1/M for every silo (``uniform``), or its share n_i / Σ n of the samples (``size``)."""
    if weights == SIZE:
        return federation.shares
    return np.full(federation.num_silos, 1 / federation.num_silos)


def distances(origins: Tensor, models: Tensor, p: float = 2) -> Weights:
    """Return ‖u_i − w_j‖_p, (n, k), of origins (n, d) and models (k, d); 0 where they are equal."""
    # The other mode computes ‖u‖² − 2⟨u, w⟩ + ‖w‖² and loses digits by cancellation.
    found = torch.cdist(origins, models, p=p, compute_mode="donot_use_mm_for_euclid_dist")
    return found.double().cpu().numpy()


def spread(values: Weights, silos: Sequence[int], federation: Federation) -> Weights:
    """Return the values (k,) of ``silos`` as values (M,) of all silos; other silos get 0."""
    everyone = np.zeros(federation.num_silos)
    everyone[list(silos)] = values
    return everyone


@dataclass(frozen=True)
class GlobalKeys:
    """The key of all methods that keep a personal model next to a global one."""

    weights: str = key(
        UNIFORM,
        "Weights of the silos in the global model: uniform, as in the authors' code (Ditto: "
        "litian96/ditto 26d9b29, APFL: MLOPTPSU/FedTorch ab8068d), or size, n_i / Σ n.",
        choices=AVERAGES,
    )


class Averaged(WeightedGradients):
    """One shared model. The key ``weights`` sets the first weights; without it, ``average``."""

    average = UNIFORM

    def initial_weights(self) -> Weights:
        """Return 1/M, or the shares of the samples."""
        return average_weights(self.federation, getattr(self.own, "weights", self.average))


class BesideGlobal(Averaged):
    """A global model w that all silos train as in FedAvg, and the target's own model v_0.

    v_0 takes a second gradient on the same mini-batch and has a momentum buffer of its own. No
    peer's v_i is ever read, so peers have none.
    """

    def __init__(self, config: Config, federation: Federation, parameters: Tensor) -> None:
        super().__init__(config, federation, parameters)
        self.v = self.parameters.clone()

    @property
    def personal(self) -> Tensor:
        """(d,) the target's own model."""
        return self.v


@dataclass(frozen=True)
class HeadKeys:
    """The key of all methods that split the network."""

    head_tensors: int = key(
        2,
        "Tensors of the head h_i, the last ones in the order of model.parameters(); 2 are the "
        "weight and bias of the last layer; 0: no head.",
        least=0,
    )


class SplitNetwork(Averaged):
    """w_i = [φ; h_i]: a shared body (d_φ,), and ``heads`` (M, d_h) of the silos, which start equal.

    A head is the last tensors of the flat vector. Silos keep no state, so the method keeps all
    heads and sends silo i [φ; h_i]. In the published protocols a head never leaves its silo, and
    ``traffic`` of the requests counts it so. A silo clips its whole gradient; the head's or body's
    part is taken afterwards. A fixed part takes no step at all. With a step of the whole vector and
    zeros in that part of the gradient, momentum and weight decay would move the part.

    Raises SpcacwError when made if no tensor would be left for the body.
    """

    average = SIZE

    def __init__(self, config: Config, federation: Federation, parameters: Tensor) -> None:
        super().__init__(config, federation, parameters)
        assert federation.layout is not None  # every engine knows its model
        self.layout = federation.layout
        sizes, tensors = self.layout.sizes, self.own.head_tensors
        if tensors >= len(sizes):
            raise SpcacwError(
                f"head-tensors = {tensors} leaves nothing to share: the model has {len(sizes)} "
                f"tensors, so use at most {len(sizes) - 1}."
            )
        self.body_size = sum(sizes[: len(sizes) - tensors])
        self.heads = parameters[self.body_size :].repeat(federation.num_silos, 1)

    @property
    def body(self) -> Tensor:
        """(d_φ,) the shared body, a view."""
        return self.parameters[: self.body_size]

    @property
    def personal(self) -> Tensor:
        """[φ; h_0]."""
        return self.joined(self.body, [self.target])[0]

    def joined(self, bodies: Tensor, silos: Sequence[int]) -> Tensor:
        """Return [φ; h_i] (k, d) for ``silos``; ``bodies`` is one φ (d_φ,) or a row for each."""
        heads = self.heads[list(silos)]
        return torch.cat((bodies.expand(len(heads), -1), heads), dim=1)

    def step_heads(self, replies: Replies) -> None:
        """Step the heads of the silos that answered."""
        gradients = replies.gradients[:, self.body_size :].clone()
        for silo, gradient in zip(replies.silos, gradients, strict=True):
            self.optimiser.step(self.heads[silo], gradient, ("head", silo))


class ClusterModels(Method):
    """Cluster models ``models`` (k, d); a silo trains its cluster's model, (M,) ``cluster``.

    The target uses its cluster's model. The log has the weights of the silos in that model's steps.
    """

    def __init__(self, config: Config, federation: Federation, parameters: Tensor) -> None:
        super().__init__(config, federation, parameters)
        self.models = self.parameters[None].clone()
        self.average = average_weights(federation, getattr(self.own, "weights", SIZE))
        self.cluster: NDArray[np.int64] = np.zeros(federation.num_silos, dtype=int)

    @property
    def personal(self) -> Tensor:
        """(d,) the model of the target's cluster."""
        return self.models[self.cluster[self.target]]

    def points(self, silos: Sequence[int]) -> Tensor:
        """Return the models of ``silos``, (k, d); (d,) if all share one, for a batched call."""
        cluster = self.cluster[list(silos)]
        return self.models[cluster[0] if len(set(cluster.tolist())) == 1 else cluster]

    def step(self, replies: Replies) -> None:
        """Step each cluster's model on the mean gradient of its silos that answered."""
        cluster, average = (of[list(replies.silos)] for of in (self.cluster, self.average))
        for one in np.unique(cluster).tolist():
            weights = average * (cluster == one)
            gradient = weighted_sum(weights / weights.sum(), replies.gradients)
            self.optimiser.step(self.models[one], gradient, one)

    def log_cluster(self, round_: int) -> None:
        """Set the weights at the end of an epoch."""
        if self.ends_epoch(round_):
            members = self.average * (self.cluster == self.cluster[self.target])
            self.set_weights(members / members.sum(), round_)


class RoundWeights(Method):
    """The weights of a round come from what the silos sent in that round.

    They are noisy, so the log has their mean over an epoch, with 0 where a silo did not answer.
    Under partial participation these rules use only the silos that answered, and their number k
    replaces M. There is no factor 1/p, because the weights of a round already sum to 1 over these
    silos.
    """

    def __init__(self, config: Config, federation: Federation, parameters: Tensor) -> None:
        super().__init__(config, federation, parameters)
        self._noted: list[Weights] = []

    def note(self, round_: int, silos: tuple[int, ...], weights: Weights) -> None:
        """Note the weights (k,) that ``silos`` had in round t."""
        self._noted.append(spread(weights, silos, self.federation))
        if self.ends_epoch(round_):
            self.set_weights(np.mean(self._noted, axis=0), round_)
            self._noted.clear()


class GradientRule(RoundWeights):
    """One gradient of every silo at the shared w_t, one aggregate of them, one step."""

    def aggregate(self, gradients: Tensor, own: int) -> tuple[Weights, Tensor]:
        """Return the weights (k,) of the gradients' rows, and their aggregate, a new (d,) tensor.

        ``own`` is the target's row.
        """
        raise NotImplementedError

    def round(self, round_: int) -> Round:
        """Ask every silo (with chance p) at w_{t−1}, and step along the aggregate."""
        replies = yield Request(round_, self.sampled(round_), self.parameters)
        own = replies.silos.index(self.target)
        weights, gradient = self.aggregate(replies.gradients, own)
        self.optimiser.step(self.parameters, gradient)
        self.note(round_, replies.silos, weights)
