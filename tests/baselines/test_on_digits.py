"""Every method on real data: it learns, it is like no other, and at the ends of its keys it is."""

from functools import partial

import numpy as np
import pytest
import torch

from spcacw_flwr.config.registry import METHODS
from tests.baselines import on_digits
from tests.baselines.on_digits import distance, weights

trained = partial(on_digits.trained, epochs=8)

OTHERS = {name: (name, {}) for name in METHODS if not name.startswith("spcacw")} | {
    "per-fedavg": ("per-fedavg", {"alpha": 0.05}),
    "hessian-free": ("per-fedavg", {"alpha": 0.05, "order": "hessian-free"}),
}
RULES = [
    "oracle", "oracle-averaged", "feddisco", "fedcluster", "meritfed", "fedfomo",
    "fedfomo-gradient", "krum", "median", "centered-clipping",
]  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_it_learns_and_no_two_methods_are_one(name):
    """After 56 steps Local and FedAvg are 5 apart; rounding is 1e−5. Chance is 10 %."""
    runs = {other: trained(m, **{m: keys}) for other, (m, keys) in OTHERS.items()}
    result = runs.pop(name)
    assert result.accuracy[-1] > 40
    assert result.alpha.sum() == pytest.approx(1)
    assert (result.alpha >= 0).all()
    for other, run in runs.items():
        assert distance(result, run) > (0.1 if other in ("local", "fedavg") else 0.05), other


@pytest.mark.parametrize("method", RULES)
def test_partial_participation_trains(method):
    result = trained(method, participation=0.5)
    assert result.accuracy[-1] > 40
    assert np.isfinite(result.alpha).all()


@pytest.mark.parametrize("method", ["fedcluster", "meritfed", "fedfomo", "fedfomo-gradient"])
def test_selfish_rules_find_the_cluster(method):
    """Silos 0, 1 and 2 share the target's labels; 3/7 of the weight would be no finding."""
    alpha = trained(method, epochs=12).alpha
    assert alpha[:3].sum() > 0.6
    assert alpha[1:3].sum() > 0.1


PLAIN = {"momentum": 0.0, "weight_decay": 0.0}
FEDALA = {"eta": 0.0, "update-every": 1, "personal": "combined", "start-epochs": 1}
ENDS = [  # method, its keys, further keys of both runs, and what becomes of it
    ("feddisco", {"a": 0.0, "b": 0.0}, {}, "fedavg"),
    ("fedcluster", {"threshold": "fixed", "tau": 1e9}, {}, "fedavg"),
    ("meritfed", {"rho": 0.0}, {}, "fedavg"),
    ("krum", {"keep": 7}, {}, "fedavg"),
    ("centered-clipping", {"tau": 1e9}, {}, "fedavg"),
    ("apfl", {"alpha": 0.0}, {}, "fedavg"),  # v̄ = w
    ("fesem", {"clusters": 1, "update-every": 1}, PLAIN, "fedavg"),  # the mean of w − ηg_i
    ("fedala", FEDALA, PLAIN, "fedavg"),
    *[
        ("per-fedavg", {"alpha": 0.0, "order": order, "weights": "size"}, {"participation": p},
         "fedavg")
        for order in ("first", "hessian-free") for p in (1.0, 0.6)
    ],
    ("fedcluster", {"threshold": "fixed", "tau": 0.0}, {}, "local"),
    ("fedcluster", {"quantile": 0.1}, {}, "local"),
    ("oracle", {}, {"cluster_sizes": "1,3,3"}, "local"),
    ("oracle-averaged", {}, {"cluster_sizes": "1,3,3"}, "local"),
    ("fedamp", {"lambda": 0.0}, {}, "local"),
    ("fesem", {"clusters": 7}, {"momentum": 0.0}, "local"),  # it starts momentum afresh
]  # fmt: skip
TO_THE_BIT = [
    ("fedrep", {"head-tensors": 0}, {}, "fedavg"),
    ("fedrep", {"head-tensors": 0}, {"participation": 0.6}, "fedavg"),
    ("fedrep", {"head-tensors": 0}, {"clip": "aggregate"}, "fedavg"),
    ("pfedsim", {"warmup": 1.0}, {}, "fedavg"),
    ("ifca", {"clusters": 1}, {}, "fedavg"),
    ("apfl", {"alpha": 1.0}, {}, "local"),
    ("ditto", {"lambda": 0.0}, {}, "local"),
]


@pytest.mark.parametrize(("method", "own", "keys", "twin"), [*ENDS, *TO_THE_BIT])
def test_at_the_end_of_its_keys_it_is_another(method, own, keys, twin):
    """Silos are of one size. Sums in another order differ in float32's last bits."""
    run, other = (
        on_digits.trained(m, **t, **keys) for m, t in ((method, {method: own}), (twin, {}))
    )
    if (method, own, keys, twin) in TO_THE_BIT:
        assert torch.equal(weights(run), weights(other))
        for figure in ("accuracy", "loss"):
            assert [e[figure] for e in run.epochs] == [e[figure] for e in other.epochs]
    else:
        assert distance(run, other) < 1e-4
    if method not in ("apfl", "ditto", "fedamp"):  # whose α is not that of the target's model
        np.testing.assert_allclose(run.alpha, other.alpha, atol=1e-6)
