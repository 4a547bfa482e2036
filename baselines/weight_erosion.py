"""Weight erosion: every silo starts with weight 1 and loses some each round, by its distance.

F. Grimberg, M.-A. Hartley, M. Jaggi and S. P. Karimireddy, Weight Erosion: an Update Aggregation
Scheme for Personalized Collaborative Machine Learning, DART 2020 (MICCAI). Round r, from a_i = 1::

    δ_i = ‖g^{(i)} − g^{(0)}‖ / ‖g^{(0)}‖
    a_i ← max(0, a_i − (1 + p_s ⌊(r − 1) b/n_i⌋) p_d δ_i)
    w_r ← w_{r−1} − η Opt(Σ a_i g^{(i)} / Σ a_i)

b is the batch size. ⌊(r − 1) b/n_i⌋ counts how often silo i's data were used, so a small silo
erodes faster. In the end only the target is left, and the method is Local: p_d must fit the number
of rounds. δ compares two mini-batches. Noise alone makes it about 1 between silos of the same data;
silos of other data erode by the excess over that.

The formula is from the code that the authors helped with (dgengler6/Weight-Erosion-Project,
compute_weight). That code forgets the division by ‖g^{(0)}‖; the paper has it. A silo that has lost
all its weight is not asked again. A silo that does not answer keeps its weight.
"""

from dataclasses import dataclass

import numpy as np

from spcacw_flwr.config.declare import key
from spcacw_flwr.methods.base import Weights
from spcacw_flwr.silos.protocol import Replies, Request

from .families import Averaged, distances


@dataclass(frozen=True)
class WeightErosionKeys:
    """Hyper-parameters of weight erosion."""

    distance_penalty: float = key(
        0.003,
        "p_d, weight lost in a round by a silo at relative distance 1; 0 is the plain mean. "
        "dgengler6/Weight-Erosion-Project has .04 for 30 rounds of one epoch.",
        least=0,
    )
    size_penalty: float = key(
        0.0, "p_s, how much faster a silo erodes with each use of all its data.", least=0
    )


class WeightErosion(Averaged):
    """Weights that only fall, and fall faster if a silo's gradients are farther away."""

    name = "weight-erosion"
    Keys = WeightErosionKeys

    def initial_weights(self) -> Weights:
        """Return 1/M; ``left`` holds the a_i."""
        self.left = np.ones(self.federation.num_silos)
        return super().initial_weights()

    def observe(self, request: Request, replies: Replies) -> None:
        """Erode the weights of the silos that answered; this round's step uses the new weights."""
        silos, own = list(replies.silos), replies.silos.index(self.target)
        norm = float(replies.gradients[own].double().square().sum()) ** 0.5
        if norm > 0:
            apart = distances(replies.gradients[own][None], replies.gradients)[0] / norm
            batch, sizes = self.config.training.batch_size, self.federation.sizes[silos]
            uses = np.floor((request.round - 1) * batch / sizes)
            lost = (1 + self.own.size_penalty * uses) * self.own.distance_penalty * apart
            self.left[silos] = np.maximum(0.0, self.left[silos] - lost)
        self.set_weights(self.left / self.left.sum(), request.round)
