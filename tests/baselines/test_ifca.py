"""IFCA: who chooses which cluster model, and what its members do to it."""

import pytest
import torch

from spcacw_flwr.config.config import Config
from spcacw_flwr.silos.protocol import LOSSES
from tests.baselines.by_hand import close, converse, make, play, quadratics
from tests.conftest import make_method, make_pool

SILOS = quadratics([[0.0], [1.0], [10.0]])


def two(models, weights="uniform", **keys):
    """Two cluster models of one parameter, η = .5; f_i = ½(w − c_i)²."""
    method = make("ifca", [0.0], own={"clusters": 2, "weights": weights}, eta=0.5, **keys)
    method.models = torch.tensor(models)[:, None]
    return method


@pytest.mark.parametrize(("weights", "first"), [("uniform", 1.25), ("size", 2 - 2.5 / 3)])
def test_a_round_by_hand(weights, first):
    """θ = (2, 8): silos 0 and 1 choose the first, silo 2 the second.

    θ_1: gradients 2 − 0 and 2 − 1; uniform mean 1.5, by sizes 64 and 32 (2·2 + 1)/3 = 5/3.
    θ_2: 8 − .5 (8 − 10) = 9.
    """
    method = two([2.0, 8.0], weights)
    judged, asked = converse(method, 1, SILOS)
    close(method.models, [[first], [9.0]])
    assert method.cluster.tolist() == [0, 0, 1]
    assert method.personal.item() == pytest.approx(first)
    # Losses and gradients are of one mini-batch; the published silo sends no losses.
    assert (judged.want, judged.draw, asked.draw) == (LOSSES, 0, 0)
    assert (judged.floats(), asked.floats()) == ((2, 0), (0, 1))
    converse(method, 2, SILOS)
    total = 1 / 2 if weights == "uniform" else 2 / 3
    assert method.alpha == pytest.approx([total, 1 - total, 0])
    report = method.epoch_report()
    assert (report["cluster"], report["clusters_used"]) == (0.0, 2.0)
    assert report["floats"] == 2 * 2 * 3


def test_every_cluster_has_a_momentum_of_its_own():
    """Round 1 as above. Round 2 takes half of .9·1.5 + .75 = 2.1, and of −.9·2 − 1 = −2.8."""
    method = two([2.0, 8.0], momentum=0.9)
    play(method, 2, SILOS)
    close(method.models, [[1.25 - 1.05], [9 + 1.4]])


def test_the_target_uses_its_current_choice():
    method = two([5.0, 0.4])
    assert method.personal.item() == 5.0
    converse(method, 1, SILOS)
    assert method.cluster.tolist() == [1, 1, 0]
    assert method.personal.item() == pytest.approx(0.4 - 0.5 * (0.4 - 0.5))


def test_a_cluster_without_members_keeps_its_model():
    """Weight decay and momentum would move it."""
    method = two([2.0, 100.0], momentum=0.9, weight_decay=0.5)
    method.optimiser.momentum[1] = torch.ones(1)
    converse(method, 1, SILOS)
    assert method.models[1].item() == 100.0


def test_all_may_choose_any_model():
    """Gradients 2, 1 and −8 at θ_2 = 2: it goes half of 5/3 up."""
    method = two([100.0, 2.0])
    converse(method, 1, SILOS)
    close(method.models[:, 0], [100.0, 2 + 5 / 6])


def test_initial_models_differ_and_have_one_law():
    """The trap: equal models tie for ever."""
    config = Config.from_keys(method="ifca")
    pool = make_pool(config)
    method, again = make_method(config, pool), make_method(config, pool)
    assert torch.equal(method.models[0], pool.initial_parameters())
    for parts in zip(*(pool.layout.unflatten(m).values() for m in method.models), strict=True):
        sets = [part.flatten().sort().values for part in parts]
        assert all(torch.equal(sets[0], other) for other in sets[1:])
    assert (torch.cdist(method.models, method.models) + 100 * torch.eye(4)).min() > 1
    assert torch.equal(again.models, method.models)
