"""Oracle: the target knows the silos of its true cluster and trains with their data.

The row "Oracle" of the paper's Table 1 trains on "the aggregated data of a client's true latent
cluster" (READING 16). It needs a setting that knows the true clusters. So it is a reference for
experiments and not a method for practice. It has two forms:

``oracle`` pools the data: each round is one mini-batch of b samples drawn from the whole cluster.
Silo i gives b_i of them (multivariate hypergeometric in the silos' sizes), the first b_i samples of
its own mini-batch. Its gradient has weight b_i/b. ``oracle-averaged`` takes a whole mini-batch from
each silo of the cluster and averages the gradients: α = 1/|C_0| on C_0. Its gradient has |C_0|
times the samples, and so less noise than training on the pooled data.

Where pooling is not exact:

* With ``clip = "silo"`` each silo's part is clipped to ``max-norm`` by itself, not the pooled
  mini-batch. With ``clip = "aggregate"`` the pooled gradient is clipped.
* BatchNorm normalises each silo's part by itself, and fails on a single sample. So a count of 1
  becomes 0 or 2 with equal chances, and a silo that gives many samples makes up the difference. All
  samples keep their chance of being drawn.
* A silo's last mini-batch of a pass is shorter. Other silos give the missing samples. If all silos
  are short at once, the pooled mini-batch is short too, as with Local.
* With participation p < 1, the pool of a round is the data of the silos that take part.

An epoch is still the target's own pass (READING 17), so all methods take equally many steps.
"""

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.methods.base import Method, WeightedGradients, Weights, weighted_sum
from spcacw_flwr.silos.batches import batch_length
from spcacw_flwr.silos.protocol import Request, Round
from spcacw_flwr.silos.streams import METHOD, stream

Counts = NDArray[np.int64]


def true_cluster(method: Method) -> list[int]:
    """Return the silos of the target's true cluster; SpcacwError if it does not know them."""
    cluster = list(method.federation.silos[method.target].oracle)
    if not cluster:
        raise SpcacwError(
            f"method = {method.name!r} needs a setting that knows the true cluster of target silo "
            f"{method.target}; choose another method, or a setting with clusters."
        )
    return cluster


def draw_counts(sizes: Counts, room: Counts, batch: int, rng: np.random.Generator) -> Counts:
    """Return how many of ``batch`` pooled samples come from each silo, (k,), at most its ``room``.

    They are drawn without replacement from silos of ``sizes`` samples. A 1 is avoided if possible.
    """
    drawn = rng.multivariate_hypergeometric(sizes, min(batch, int(sizes.sum())))
    counts = np.minimum(drawn, room)
    if missing := min(batch, int(room.sum())) - int(counts.sum()):
        counts += rng.multivariate_hypergeometric(room - counts, missing)
    for silo in range(len(counts)):
        if counts[silo] == 1:
            _pair_up(counts, room, silo, bool(rng.integers(2)))
    return counts


def _pair_up(counts: Counts, room: Counts, single: int, give: bool) -> None:
    """Change the count 1 of silo ``single`` to 0 or 2 in place, if the other counts allow it."""
    others = np.where(np.arange(len(counts)) == single, 0, counts)
    giver = int(others.argmax())
    taker = int(np.where(room > counts, others, 0).argmax())
    can_take = others[giver] >= 3 and room[single] >= 2
    can_give = others[taker] >= 1 and room[taker] > counts[taker]
    if can_give and (give or not can_take):
        counts[single], counts[taker] = 0, counts[taker] + 1
    elif can_take:
        counts[single], counts[giver] = 2, counts[giver] - 1


class Oracle(Method):
    """Oracle: mini-batches from the pooled data of the target's true cluster."""

    name = "oracle"
    alpha: Weights

    def initial_weights(self) -> Weights:
        """Return each silo's constant share of the cluster's data."""
        cluster, sizes = true_cluster(self), self.federation.sizes
        weights = np.zeros_like(sizes)
        weights[cluster] = sizes[cluster] / sizes[cluster].sum()
        return weights

    def round(self, round_: int) -> Round:
        """Ask each silo of the cluster for the gradient of its part of the mini-batch."""
        pool = self.sampled(round_, np.flatnonzero(self.alpha))
        counts = self.counts(round_, pool)
        asked = tuple(silo for silo in pool if counts[silo])
        samples = tuple(counts[silo] for silo in asked)
        replies = yield Request(round_, asked, self.parameters, samples=samples)
        given = np.array([counts[silo] for silo in replies.silos], dtype=float)
        if given.any():  # the target's count may be 0, and all silos asked may be silent
            step = weighted_sum(given / given.sum(), replies.gradients)
            self.optimiser.step(self.parameters, step)

    def counts(self, round_: int, pool: tuple[int, ...]) -> dict[int, int]:
        """Return how many samples of round t's mini-batch each silo of ``pool`` gives."""
        seed, batch = self.config.run.seed, self.config.training.batch_size
        sizes = np.array([self.federation.silos[silo].size for silo in pool])
        room = np.array([batch_length(round_, n, batch) for n in sizes])
        found = draw_counts(sizes, room, batch, stream(seed, METHOD, round_))
        return dict(zip(pool, found.tolist(), strict=True))


class AveragedOracle(WeightedGradients):
    """Oracle, averaged: whole mini-batches of the true cluster's silos, weighted equally."""

    name = "oracle-averaged"

    def initial_weights(self) -> Weights:
        """Return α = 1/|C_0| on the target's true cluster C_0."""
        cluster = true_cluster(self)
        weights = np.zeros(self.federation.num_silos)
        weights[cluster] = 1 / len(cluster)
        return weights
