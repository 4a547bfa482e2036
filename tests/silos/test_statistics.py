"""BatchNorm's statistics at evaluation, weighted accuracy, and L with statistics held fixed."""

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from spcacw_flwr.config.config import Config
from spcacw_flwr.silos.batches import batch_indices
from spcacw_flwr.silos.evaluation import buffers_at
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.setting import Setting, SiloData
from tests.conftest import make_pool, one_sentence


class Sorted(Setting):
    """Two silos of 24 samples, stored class by class; each class has its own mean."""

    name, num_classes, input_shape, group_kind = "sorted", 3, (4,), "cluster"
    groups = (0.0, 0.0)
    size, weight = 24, None

    def prepare(self):
        pass

    def train(self, silo):
        rng, y = torch.Generator().manual_seed(silo), torch.arange(self.size) * 3 // self.size
        return SiloData(torch.randn(self.size, 4, generator=rng) + y[:, None], y)

    def test(self, silo):
        data = self.train(silo + 10)
        return SiloData(data.x, data.y, self.weight)


def normed(shape, classes):
    """A user's model: can be pooled."""
    return nn.Sequential(
        nn.Linear(shape[0], 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, classes)
    )


class Own(nn.Module):
    """The same with a forward of its own, one layer twice under two names, and a frozen weight."""

    def __init__(self, shape, classes):
        super().__init__()
        self.body = normed(shape, classes)
        self.again = self.body[1]
        self.scale = nn.Parameter(torch.tensor(2.0), requires_grad=False)
        self.register_buffer("scratch", torch.zeros(1), persistent=False)

    def forward(self, x):
        return self.body(x * self.scale)


def pool_of(name="normed", **given) -> SiloPool:
    here = "tests.silos.test_statistics"
    keys = {"method": "spcacw", "batch_size": 8, "setting": f"{here}:Sorted"}
    return make_pool(Config.from_keys(**keys | {"model": f"{here}:{name}"} | given))


def test_statistics_by_hand():
    """Batches (0, 2) and (4, 8) of one feature: means 1 and 6, variances 2 and 8 (unbiased)."""
    model = nn.Sequential(nn.BatchNorm1d(1))
    before = {name: b.clone() for name, b in model.named_buffers()}
    found = buffers_at(model, {}, [torch.tensor([[0.0], [2.0]]), torch.tensor([[4.0], [8.0]])])
    assert found["0.running_mean"].tolist() == [3.5]
    assert found["0.running_var"].tolist() == [5.0]
    assert found["0.num_batches_tracked"] == 2
    assert model.training
    assert model[0].training
    assert model[0].momentum == 0.1
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name])


def test_a_silo_is_seen_once_in_an_order_of_its_seed_and_no_batch_is_short(monkeypatch):
    monkeypatch.setattr(Sorted, "size", 50)
    (parts, again, other) = ([*pool_of(seed=seed).data.shuffled(1)] for seed in (3, 3, 4))
    assert [len(part) for part in parts] == [9, 9, 8, 8, 8, 8]
    seen = torch.cat(parts)
    assert sorted(seen.tolist()) == sorted(pool_of().setting.train(1).x.tolist())
    assert torch.equal(seen, torch.cat(again))
    assert not torch.equal(seen, torch.cat(other))
    monkeypatch.setattr(Sorted, "size", 3)
    assert [len(part) for part in pool_of().data.shuffled(0)] == [3]


@pytest.mark.parametrize(("model", "weight"), [("normed", None), ("Own", torch.linspace(0, 1, 24))])
def test_evaluation_uses_the_silos_own_statistics_and_returns_a_model_that_can_be_loaded(
    model, weight, monkeypatch
):
    """READING 13: a test sample counts as its class does at the target, where it has a weight."""
    monkeypatch.setattr(Sorted, "weight", weight)
    pool = pool_of(model)
    vector = pool.initial_parameters() * 1.5
    state = torch.get_rng_state()
    figures, buffers = pool.evaluate(vector, 1)
    assert pool.evaluate(vector, 1).figures == figures
    assert torch.equal(state, torch.get_rng_state())
    other = pool.evaluate(vector, 0).buffers
    statistics = [name for name in buffers if name.endswith("running_mean")]
    assert statistics
    assert all(not torch.allclose(buffers[name], other[name]) for name in statistics)

    # Loaded into a fresh model, it is the model that was evaluated.
    fresh = pool_of(model, seed=9).model
    fresh.load_state_dict(pool.layout.unflatten(vector) | buffers)
    fresh.eval()
    data = pool.setting.test(1)
    outputs, share = fresh(data.x).detach(), torch.ones(24) if weight is None else weight
    right, share = (outputs.argmax(1) == data.y).float(), share / share.sum()
    losses = cross_entropy(outputs, data.y, reduction="none")
    assert figures["accuracy"] == pytest.approx(100 * float(right @ share), rel=1e-5)
    assert figures["log-loss"] == pytest.approx(float(losses @ share), rel=1e-5)


def test_statistics_are_near_those_of_the_silos_whole_data(monkeypatch):
    """Stored by class, batches in that order would have the variance within classes only."""
    monkeypatch.setattr(Sorted, "size", 2400)
    pool = pool_of()
    vector = pool.initial_parameters()
    buffers = pool.evaluate(vector, 0).buffers
    first = pool.layout.unflatten(vector)
    hidden = pool.setting.train(0).x @ first["0.weight"].t() + first["0.bias"]
    torch.testing.assert_close(buffers["1.running_mean"], hidden.mean(0))
    assert buffers["1.num_batches_tracked"] == 300
    ratio = buffers["1.running_var"] / hidden.var(0)
    assert ((ratio - 1).abs() < 0.02).all()


@pytest.mark.parametrize("model", ["normed", "Own"])
def test_smoothness_holds_the_batchs_statistics_fixed_and_drops_nothing(model):
    """L is the largest eigenvalue of the Hessian of a loss without BatchNorm's batch terms."""
    pool = pool_of(model, smoothness_iterations=500)
    vector = pool.initial_parameters()
    data, at = pool.setting.train(0), torch.from_numpy(batch_indices(0, 0, 2, 24, 8))
    x, y = data.x[at], data.y[at]
    weights = pool.layout.unflatten(vector)
    prefix, scale = ("", 1) if model == "normed" else ("body.", 2)
    hidden = scale * x @ weights[prefix + "0.weight"].t() + weights[prefix + "0.bias"]
    mean, var = hidden.mean(0), hidden.var(0)

    def loss(w):
        part = {name.removeprefix(prefix): p for name, p in pool.layout.unflatten(w).items()}
        below = scale * x @ part["0.weight"].t() + part["0.bias"]
        below = (below - mean) / (var + 1e-5).sqrt() * part["1.weight"] + part["1.bias"]
        return cross_entropy(below.relu() @ part["4.weight"].t() + part["4.bias"], y)

    largest = torch.linalg.eigvalsh(torch.func.hessian(loss)(vector)).abs().max().item()
    assert pool.smoothness(vector, 2, 0) == pytest.approx(largest, rel=0.02)
    assert pool.model.training


class Tokens(Sorted):
    """Sequences of five symbols."""

    num_classes, input_shape = 6, (5,)

    def train(self, silo):
        rng = torch.Generator().manual_seed(silo)
        x, y = torch.randint(6, (2, 24, 5), generator=rng)
        return SiloData(x, y)


def test_smoothness_and_accuracy_of_a_recurrent_model():
    """L is measured through the LSTM; accuracy counts every position."""
    tokens = {"setting": f"{__name__}:Tokens", "model": "char-lstm", "width": 1 / 128}
    pool = pool_of(smoothness_iterations=500, **tokens)
    vector = 2 * pool.initial_parameters()
    at = torch.from_numpy(batch_indices(0, 0, 2, 24, 8))
    data = pool.setting.train(0)

    def gradient(w):
        leaf = w.double().requires_grad_()
        model = pool_of(**tokens).model.double()
        outputs = functional_call(model, pool.layout.unflatten(leaf), (data.x[at],))
        loss = cross_entropy(outputs.flatten(0, 1), data.y[at].flatten())
        return torch.autograd.grad(loss, leaf)[0]

    columns, step = [], 1e-5
    for unit in torch.eye(len(vector), dtype=torch.double):  # central differences
        ahead, behind = gradient(vector + step * unit), gradient(vector - step * unit)
        columns.append((ahead - behind) / (2 * step))
    largest = torch.linalg.eigvalsh(torch.stack(columns)).abs().max().item()
    assert pool.smoothness(vector, 2, 0) == pytest.approx(largest, rel=0.02)

    test = pool.setting.test(0)
    pool.model.eval()
    outputs = functional_call(pool.model, pool.layout.unflatten(vector), (test.x,))
    expected = 100 * (outputs.argmax(2) == test.y).double().mean().item()
    assert pool.evaluate(vector, 0).figures["accuracy"] == pytest.approx(expected)


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize(("less", "words"), [(0, "0 to 2"), (1, "-1 to 1")])
def test_labels_that_are_no_classes_are_named(part, less, words, monkeypatch):
    given, found = Sorted.train(Sorted, 0), SiloData(torch.zeros(24, 4), torch.zeros(24).long())
    others = {"train": found, "test": found} | {part: SiloData(given.x, given.y - less)}
    monkeypatch.setattr(Sorted, "num_classes", 2)
    for name, data in others.items():
        monkeypatch.setattr(Sorted, name, lambda self, silo, data=data: data)
    with one_sentence(f"labels are from {words}, and the 2 classes from 0 to 1"):
        pool_of().describe()
