"""Per-FedAvg: which gradient is taken where, on which mini-batch."""

import torch
from torch import nn

from spcacw_flwr.config.config import Config
from spcacw_flwr.engine.loop import play
from spcacw_flwr.silos.batches import WHOLE
from tests.baselines.by_hand import PLAIN, close, converse, heard, make, replies_of
from tests.conftest import make_method, make_pool

CENTRES = torch.tensor([[0.0], [3.0]])
CURVATURES = {0: 1.0, 1: 2.0, 2: 4.0, WHOLE: 3.0}
"""Of the loss on each draw's mini-batch: f_i(w) = ½ A (w − c_i)², so that draws can be told."""


def silos(request):
    own = CENTRES[list(request.silos)]
    return replies_of(request, CURVATURES[request.draw] * (request.points - own))


def two(order="first", size=32, **keys):
    """w = 1, η = .5, a = .1; with 32 samples every round ends an epoch."""
    own = {"alpha": 0.1, "order": order}
    return make("per-fedavg", [1.0], (size, size), own, eta=0.5, **keys)


def test_first_order_by_hand():
    """w − c = (1, −2). Inner A = 2: v − c = .8 (w − c); outer A = 1: g = .8 (w − c), mean −.4.

    w ← 1 + .5·.4 = 1.2. Adaptation, A = 3: 1.2 − .1·3·(1.2 − 0) = .84.
    """
    method = two()
    asked = converse(method, 1, silos)
    close(method.parameters, [1.2])
    close(method.personal, [0.84])
    assert [(r.draw, r.silos) for r in asked] == [(1, (0, 1)), (0, (0, 1)), (WHOLE, (0,))]
    cost = {"target_gradients": 3, "floats": 2, "bytes": 8}
    assert method.epoch_report() == {"loss": 1.0, **cost}


def test_hessian_free_by_hand():
    """(I − aH) g = (1 − .1·4)·.8 (w − c) = .48 (w − c), mean −.24: w ← 1 + .5·.24 = 1.12."""
    method = two("hessian-free")
    asked = converse(method, 1, silos)
    close(method.parameters, [1.12], rtol=1e-4, atol=0)
    assert [request.draw for request in asked] == [1, 0, 2, 2, WHOLE]
    assert method.epoch_report()["target_gradients"] == 5
    # w ± δ g_i, with g_i = .8 (w − c_i) = (.8, −1.6) and δ = .001
    close(asked[2].points, [[1.0008], [0.9984]])
    close(asked[3].points, [[0.9992], [1.0016]])


def test_hessian_free_without_a_silo_that_falls_silent():
    """Silo 1 answers all but the last question: m_0 = .48 alone counts, with its ½."""

    def silent(request):
        replies = silos(request)
        return heard(replies, (0,)) if request.draw == 2 and request.points[0] < 1 else replies

    method = two("hessian-free")
    converse(method, 1, silent)
    close(method.parameters, [0.88], rtol=1e-4, atol=0)


def smooth(shape, classes):
    """A network without kinks: differences over a ReLU's are no second derivatives."""
    layers = nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, classes)
    return nn.Sequential(nn.Flatten(), *layers)


def test_hessian_free_is_autograds_hessian_on_real_data():
    """Without clipping, w − η mean_i (I − a H_i(w; D″)) g_i(w − a g_i(w; D); D′), by autograd."""
    a, table = 0.5, {"alpha": 0.5, "order": "hessian-free"}
    keys = {"method": "per-fedavg", "eta": 1.0, "model": f"{__name__}:smooth", **PLAIN}
    config = Config.from_keys(per_fedavg=table, **keys)
    pool = make_pool(config)
    method = make_method(config, pool)
    w = method.parameters.clone()
    play(pool, method, 1)

    def loss(silo, draw):
        (batch,) = pool.data.batches(1, [silo], draw)
        return lambda point: torch.nn.functional.cross_entropy(
            torch.func.functional_call(pool.model, pool.layout.unflatten(point), batch.x[0]),
            batch.y[0],
        )

    first_order, meta = torch.zeros_like(w), torch.zeros_like(w)
    for silo in range(7):
        outer, inner, third = (torch.func.grad(loss(silo, draw)) for draw in (0, 1, 2))
        g = outer(w - a * inner(w))
        first_order += g / 7
        meta += (g - a * torch.func.jvp(third, (w,), (g,))[1]) / 7
    step = w - method.parameters
    close(step, meta, rtol=0, atol=1e-4)
    assert (step - first_order).abs().max() > 1e-2


def test_the_inner_steps_are_plain():
    """Momentum and weight decay act on w alone: the second round's points are w − a g."""
    method = two(size=64, momentum=0.9, weight_decay=0.1)
    converse(method, 1, silos)
    w = method.parameters.clone()
    asked = converse(method, 2, silos)
    close(asked[1].points, w - 0.1 * 2 * (w - CENTRES))


def test_the_personal_model_is_adapted_once_an_epoch_and_is_the_rounds_inner_step_before():
    """Within an epoch it is v_0 = 1 − .1·2·(1 − 0) = .8: a run may end there."""
    method = two(size=64)
    assert [request.draw for request in converse(method, 1, silos)] == [1, 0]
    close(method.personal, [0.8])
    assert [request.draw for request in converse(method, 2, silos)] == [1, 0, WHOLE]
    assert method.personal != method.parameters
