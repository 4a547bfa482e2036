"""FedALA by hand: what is mixed, how W learns, and when it stops."""

import itertools

import numpy as np
import pytest
import torch

from spcacw_flwr.config.config import Config
from spcacw_flwr.engine.loop import play as play_for_real
from spcacw_flwr.silos.batches import WHOLE
from spcacw_flwr.silos.protocol import Replies
from tests.baselines.by_hand import close, converse, heard, make, replies_of, sending, shaped
from tests.baselines.on_digits import trained, weights
from tests.conftest import make_method, make_pool

TRAINED = [[-1.0, -1.0], [-3.0, -5.0]]
"""Gradients that, with η = 1, make models (1, 1) and (3, 5)."""


def two_silos(sizes=(32, 32), **own):
    own = {"update-every": 1, "layer-idx": 1, "start-epochs": 1, "personal": "combined"} | own
    return make("fedala", sizes=sizes, own=own, layout=shaped(body=(1,), head=(1,)), eta=1.0)


def by_draw(*rows):
    """Return silos that send the first rows where they train, the others on whole batches."""
    return lambda request: sending(rows[request.draw and request.draw - WHOLE + 1])(request)


def test_meeting_by_hand():
    """Models (1, 1) and (3, 5), mean (2, 3); the head alone is mixed, w − v = 2 and −2 there.

    W = 1, so v̂ = (2, 3) for both. ∇L(v̂) = .2 and .1 at the heads: W = 1 − .2 · 2 = .6, and
    1 + .1 · 2, clipped to 1. v̂_0 = (2, 1 + 2 · .6) = (2, 2.2). The bodies are w's, whatever their
    gradient. Of v̂_0's two parameters w counts 1 and .6: s = .8, α = (.2 + .8/2, .8/2).
    """
    made = two_silos()
    asked = converse(made, 1, by_draw(TRAINED, [[9.0, 0.2], [9.0, 0.1]]))
    assert [(r.draw, r.floats()) for r in asked] == [(0, (2, 2)), (WHOLE, (0, 0))]
    close(asked[1].points, [[2.0, 3.0], [2.0, 3.0]])
    close(made.mixing, [[0.6], [1.0]])
    close(made.models, [[2.0, 2.2], [2.0, 3.0]])
    close(made.trained, [1.0, 1.0])
    np.testing.assert_allclose(made.alpha, [0.6, 0.4])
    assert made.epoch_report()["mixing"] == pytest.approx(0.6)


def test_weights_are_kept_and_v_hat_follows_them():
    """A second mini-batch of the first phase is asked at v̂ as W then is."""
    made = two_silos(**{"start-epochs": 2})
    rows = TRAINED, [[0.0, 0.2], [0.0, 0.0]], [[0.0, 0.1], [0.0, 0.0]]
    asked = converse(made, 1, by_draw(*rows))
    close(asked[2].points[0], [2.0, 2.2])
    close(made.mixing[0], [0.4])


def test_passes_of_silos_of_different_size():
    """80 % of 100 and of 32 samples: 3 and 1 batches of 32; later meetings make one pass."""
    made = two_silos(sizes=(100, 32), **{"start-epochs": 2})
    first, second = (converse(made, t, sending(torch.zeros(2, 2))) for t in (1, 2))
    assert [r.silos for r in first[1:]] == [(0, 1)] * 2 + [(0,)] * 4
    assert [r.silos for r in second[1:]] == [(0, 1)] + [(0,)] * 2


@pytest.mark.parametrize(
    ("losses", "passes"),
    [
        (itertools.repeat(2.0), 11),  # settled as soon as more than ten are known
        (itertools.chain([9.0, 9.0], itertools.repeat(0.0)), 11),  # the last ten count, 9 is first
        (itertools.cycle([0.0, 1.0]), 15),  # never: the cap, where the authors' loop goes on
    ],
)
def test_first_phase_ends_when_losses_settle_or_at_the_cap(losses, passes):
    made = two_silos(**{"start-epochs": 15})

    def silo(request):
        loss = torch.full((len(request.silos),), float(next(losses)))
        return Replies(request.silos, torch.zeros(len(request.silos), 2), loss)

    assert len(converse(made, 1, silo)) == 1 + passes


def test_a_silo_that_falls_silent_while_it_learns_keeps_its_weights():
    made = two_silos(**{"start-epochs": 3})

    def silo(request):
        rows = torch.tensor(TRAINED if request.draw == 0 else [[0.0, 0.1], [0.0, -0.1]])
        replies = replies_of(request, rows[list(request.silos)])
        return heard(replies, (0,)) if request.draw == WHOLE + 1 else replies

    asked = converse(made, 1, silo)
    assert [r.silos for r in asked] == [(0, 1)] * 3 + [(0,)]
    close(made.mixing, [[0.4], [0.8]])


@pytest.mark.parametrize(("layers", "top"), [(1, 10), (2, 10 + 640), (0, None), (99, None)])
def test_layer_idx_counts_tensors(layers, top):
    """The MLP of 64 hidden units ends in a (10, 64) weight and a bias of 10."""
    config = Config.from_keys(method="fedala", fedala={"layer-idx": layers})
    made = make_method(config, make_pool(config))
    assert made.mixing.shape[1] == (len(made.parameters) if top is None else top)


def test_weights_of_zero_that_do_not_learn_are_local():
    config = Config.from_keys(method="fedala", epochs=3, fedala={"layer-idx": 0, "eta": 0.0})
    pool = make_pool(config)
    made = make_method(config, pool)
    made.mixing.zero_()
    for t in range(1, 22):
        play_for_real(pool, made, t)
    close(made.personal, weights(trained("local")), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(made.alpha, np.eye(7)[0], atol=1e-12)
