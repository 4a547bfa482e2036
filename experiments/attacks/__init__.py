"""Byzantine peers: the rows that attackers send instead of gradients, from what they know.

The peers in a set B are the attackers. At round t they know the rows that they would honestly send,
g_i for i ∈ B. They also know the rows of every silo of the target's true cluster, including the
target's own mini-batch gradient. So the mean μ and coordinate-wise standard deviation σ of these
rows are the best possible knowledge of the gradient that the target wants. All rows obey the bound:
no row is longer than ``max-norm``, G (a longer row would be clipped, or the reply dropped).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Known:
    """The attackers' knowledge at a round."""

    round: int
    rounds: int
    """T, the rounds in which the target asks peers: attackers know which round is the last."""
    epoch: int
    """Rounds of an epoch."""
    own: Tensor
    """(b, d) the rows that the attackers would honestly send."""
    cluster: Tensor
    """(c, d) the honest rows of the target's true cluster, including the target's."""
    bound: float
    """G, the largest norm of a row."""
    rng: np.random.Generator
    """The attackers' own generator, a pure function of (seed, round)."""

    @property
    def mean(self) -> Tensor:
        """(d,) μ."""
        return self.cluster.mean(dim=0)

    @property
    def late(self) -> bool:
        """Whether two thirds of the rounds are over."""
        return self.round > 2 * self.rounds // 3


Attack = Callable[[Known], Tensor]
ALIE_Z, IPM_EPSILON, PULSE = 1.5, 0.5, 5


def at_norm(rows: Tensor, norm: float) -> Tensor:
    """Return rows (…, d) scaled to a norm; a row of zeros stays."""
    lengths = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return torch.where(lengths > 0, rows * (norm / lengths), rows)


def within(rows: Tensor, norm: float) -> Tensor:
    """Return rows (…, d); rows longer than ``norm`` are scaled to it."""
    lengths = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows * (norm / lengths).clamp(max=1.0)


def alike(row: Tensor, known: Known) -> Tensor:
    """Return the same row (d,) for each attacker, (b, d)."""
    return row.expand(len(known.own), -1)


def honest(known: Known) -> Tensor:
    """Return g_i, for the control ``none`` and for ``label-flip``, whose labels are C − 1 − y."""
    return known.own


def sign_flip(known: Known) -> Tensor:
    """−G g_i/‖g_i‖."""
    return at_norm(-known.own, known.bound)


def gaussian(known: Known) -> Tensor:
    """Return G z_i/‖z_i‖ with z_i standard normal: a random direction."""
    drawn = torch.from_numpy(known.rng.standard_normal(tuple(known.own.shape)))
    return at_norm(drawn.to(known.own), known.bound)


def alie(known: Known) -> Tensor:
    """μ − zσ, within G; σ of a single row is 0.

    G. Baruch, M. Baruch and Y. Goldberg, A Little Is Enough: Circumventing Defenses For Distributed
    Learning, NeurIPS 2019; z = 1.5 is the value of their experiments.
    """
    sigma = known.cluster.std(dim=0) if len(known.cluster) > 1 else torch.zeros_like(known.mean)
    return alike(within(known.mean - ALIE_Z * sigma, known.bound), known)


def ipm(known: Known) -> Tensor:
    """−εμ, ε = .5.

    C. Xie, S. Koyejo and I. Gupta, Fall of Empires: Breaking Byzantine-tolerant SGD by Inner
    Product Manipulation, UAI 2019.
    """
    return alike(within(-IPM_EPSILON * known.mean, known.bound), known)


def strike(known: Known) -> Tensor:
    """−Gμ/‖μ‖, the longest step against the target's descent that the bound allows."""
    return alike(at_norm(-known.mean, known.bound), known)


def mimic(known: Known) -> Tensor:
    """Return μ, the best gradient that is possible, unbiased with little noise: it earns weight."""
    return alike(within(known.mean, known.bound), known)


def copycat(known: Known) -> Tensor:
    """Mimic for two thirds of the rounds, then strike (our attack, as are all below)."""
    return (strike if known.late else mimic)(known)


def copycat_last(known: Known) -> Tensor:
    """Mimic until the last epoch, then strike."""
    return (strike if known.round > known.rounds - known.epoch else mimic)(known)


def copycat_pulse(known: Known) -> Tensor:
    """Strike in every fifth round."""
    return (strike if known.round % PULSE == 0 else mimic)(known)


def colluders(known: Known) -> Tensor:
    """For two thirds of the rounds, mimic in pairs whose biases cancel; then strike.

    A pair sends μ + v and μ − v, with v along μ and ‖v‖ = min(G/2, G − ‖μ‖). An attacker without a
    partner mimics. A pair's mean is unbiased, so ‖Σ αᵢ b̂ᵢ‖² does not oppose it before it strikes.
    This attack is for methods in which biases may cancel.
    """
    if known.late:
        return strike(known)
    rows = mimic(known).clone()
    paired = len(rows) - len(rows) % 2
    room = max(0.0, known.bound - float(torch.linalg.vector_norm(rows[0])))
    offset = at_norm(known.mean, min(known.bound / 2, room))
    rows[0:paired:2] += offset
    rows[1:paired:2] -= offset
    return rows


ATTACKS: dict[str, Attack] = {
    "none": honest, "sign-flip": sign_flip, "label-flip": honest, "gaussian": gaussian,
    "alie": alie, "ipm": ipm, "copycat": copycat, "copycat-last": copycat_last,
    "copycat-pulse": copycat_pulse, "colluders": colluders,
}  # fmt: skip
