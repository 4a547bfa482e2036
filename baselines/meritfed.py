"""MeritFed: weights learned by mirror descent on the target's loss one step ahead.

N. Tupitsa, S. Horváth, M. Takáč and E. Gorbunov, Federated Learning Can Find Friends That Are
Advantageous, arXiv:2402.05050 (later Selective Collaboration …, CPAL 2026). At round t, with the
silos' gradients g^{(i)} at w_{t−1} and α kept from the round before (at first uniform)::

    φ(α) = f_0(w_{t−1} − γ Σ α^{(i)} g^{(i)}),   ∂_i φ(α) = −γ ⟨∇f_0(w⁺), g^{(i)}⟩
    I times:  α^{(i)} ← α^{(i)} exp(+ρ γ ⟨g⁺, g^{(i)}⟩) / Z,   g⁺ on a fresh batch of f_0 at w⁺
    w_t ← w_{t−1} − η Opt(Σ α^{(i)} g^{(i)})

γ = η, the plain step; only the target's optimiser has momentum and weight decay. The exponent's
sign is + (a gradient in the direction of the target's lowers φ). The exponent holds both ρ and γ,
as in the authors' code (``mdlr_ * lr``), so α moves slowly if steps are small.

The batches of f_0 are further mini-batches of the target's *training* data (draws 1, …, I). The
authors' option to take them from the test set is unfit for a comparison on test data.

The plain recursion above omits two steps of the authors' code. That code replaces each iterate by a
running mean of the round's iterates (ten inner steps then move α about as far as three), and
divides ρ by 10 after 400 rounds. Tune ρ instead. If ρ is too small, the run ends near uniform
weights; if ρ is too large, a few noisy batches decide.

Silos clip their gradients to ``max-norm``: |⟨g⁺, g^{(i)}⟩| ≤ 1 for max-norm 1. Under partial
participation φ is that of the actual step, along Σ α^{(i)} g̃^{(i)} with g̃ = g z/p. A silo that
answers in a share p of the rounds moves 1/p times as much in each of them.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from spcacw_flwr.config.declare import key
from spcacw_flwr.methods.base import Weights, weighted_sum
from spcacw_flwr.silos.protocol import Request, Round

from .families import Averaged, spread


@dataclass(frozen=True)
class MeritFedKeys:
    """Hyper-parameters of MeritFed."""

    inner_steps: int = key(
        10,
        "I, steps of mirror descent in a round, a further gradient of the target each (authors' "
        "code, nazya/MeritFed 087eeb2: mdniters_ = 10 with mini-batches).",
        least=1,
    )
    rho: float = key(
        1.0,
        "ρ, step size of mirror descent, times η in the exponent: how fast α leaves the uniform "
        "weights (authors' mdlr_ = .1); 1 is the middle of our grid.",
        least=0,
    )


def mirror_step(alpha: Weights, inner_products: Weights, rate: float) -> Weights:
    """Return α ⊙ exp(rate ⟨g⁺, g^{(i)}⟩) / Z, all (M,)."""
    exponents = rate * inner_products
    moved = alpha * np.exp(exponents - exponents.max())  # no overflow; Z cancels the shift
    return moved / moved.sum()


class MeritFed(Averaged):
    """MeritFed: mirror descent on the target's loss after the step."""

    name = "meritfed"
    Keys = MeritFedKeys

    def round(self, round_: int) -> Round:
        """Ask all silos (with chance p), learn α by I more questions to the target, then step."""
        replies = yield Request(round_, self.sampled(round_), self.parameters)
        silos, gradients = list(replies.silos), replies.gradients.clone()
        factors, eta = self.factors(replies.silos), self.config.training.eta
        for draw in range(1, self.own.inner_steps + 1):
            step = weighted_sum(self.alpha[silos] * factors, gradients)
            trial = self.parameters - eta * step
            answer = yield Request(round_, (self.target,), trial, draw=draw)
            found = factors * products(gradients, answer.gradients[0])
            inner_products = spread(found, silos, self.federation)
            self.alpha = mirror_step(self.alpha, inner_products, self.own.rho * eta)
        self.optimiser.step(self.parameters, weighted_sum(self.alpha[silos] * factors, gradients))
        if self.ends_epoch(round_):
            self.set_weights(self.alpha, round_)


def products(rows: Tensor, vector: Tensor) -> Weights:
    """Return ⟨x^{(i)}, y⟩, (k,), for the rows x^{(i)} of a (k, d) tensor."""
    found: Weights = (rows @ vector).double().cpu().numpy()
    return found
