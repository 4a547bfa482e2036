"""Data of a user's own: what is accepted, and the one sentence for each thing that is not."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.keys import PartitionKeys
from spcacw_flwr.engine.loop import see_classes
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.flower.client_app import Own
from spcacw_flwr.silos.protocol import Federation, SiloInfo
from spcacw_flwr.silos.setting import SiloData
from spcacw_flwr.silos.setup import make_setting, setting_of
from tests.conftest import make_pool

X, Y = torch.rand(6, 2, 2), torch.tensor([0, 1, 2, 0, 1, 2])
GOOD = (X, Y)
returned = {}
"""What the function of this test returns, by silo; silos that are not in it are good."""


def load(silo):
    answer = returned.get(silo, (GOOD, GOOD))
    if isinstance(answer, Exception):
        raise answer
    return answer


class Samples(Dataset):
    """Pairs of NumPy arrays and Python numbers, as Datasets often have."""

    def __init__(self, xs, ys):
        self.xs, self.ys = xs, ys

    def __len__(self):
        return len(self.xs)

    def __getitem__(self, i):
        return np.asarray(self.xs[i]), int(self.ys[i])


class Endless(IterableDataset):
    def __iter__(self):
        yield from GOOD


@pytest.fixture(autouse=True)
def _nothing_returned():
    returned.clear()


def own(**changes):
    keys = {"silo": f"{__name__}:load", "silos": 3, "classes": 3, **changes}
    return make_setting("own", PartitionKeys(**keys), 0)


def test_labels_may_be_true_and_false():
    returned[0] = ((X, Y > 0), (X, Y > 0))
    assert own(classes=2).train(0).y.tolist() == [0, 1, 1, 0, 1, 1]


@pytest.mark.parametrize("kind", [torch.bool, torch.float64])
def test_a_sample_may_have_several_labels(kind):
    many = torch.stack([Y > 0, Y > 1, Y < 2], 1).to(kind)
    returned[0] = ((X, many), (X, many))
    found = own().train(0).y
    assert found.dtype == torch.float32
    assert found.tolist() == many.float().tolist()


def test_tensors_and_datasets_are_the_same():
    returned[1] = (TensorDataset(X, Y), Samples(X.double().numpy(), Y))
    returned[2] = ([X.double().numpy(), Y.int().numpy()], (X.tolist(), Y.tolist()))
    returned[0] = (SiloData(X, Y), SiloData(X, Y))
    setting = own(silos=4)
    setting.prepare()
    assert (setting.num_silos, setting.num_classes, setting.input_shape) == (4, 3, (2, 2))
    assert (setting.groups, setting.oracle(1)) == ([None] * 4, [])
    returned[3] = (SiloData(X.double().numpy(), Y.numpy()), SiloData(X.tolist(), Y.tolist()))
    for silo in range(4):
        for data in (setting.train(silo), setting.test(silo)):
            assert (data.x.dtype, data.y.dtype) == (torch.float32, torch.int64)
            torch.testing.assert_close(data.x, X)
            assert torch.equal(data.y, Y)
    assert setting.train(1) is setting.train(1)


def test_what_requires_a_gradient_is_read_without_it():
    """As features of a network of one's own do."""
    x, numbers = X.clone().requires_grad_(), Y.double().requires_grad_()
    samples = TensorDataset(x, numbers)
    returned[0] = (samples, SiloData(x, numbers, torch.ones(6, requires_grad=True)))
    setting = own(classes=1)
    train, test = setting.train(0), setting.test(0)
    assert not any(part.requires_grad for part in (train.x, train.y, test.x, test.y, test.weight))


def test_samples_may_be_fewer_and_the_seed_draws_them():
    x, weight = torch.arange(100.0)[:, None], torch.arange(100.0)
    whole = (SiloData(x, x[:, 0], independent=50.0), SiloData(x, x[:, 0], weight))
    returned.update({0: whole, 1: whole})
    some = {"classes": 1, "samples_per_silo": 40, "test_samples": 10}
    setting = own(**some)
    train, test = setting.train(0), setting.test(0)
    assert (len(train.y), train.independent, len(test.y)) == (40, 20, 10)
    assert train.y.tolist() == train.x[:, 0].tolist() == sorted(set(train.y.tolist()))
    assert test.weight.tolist() == test.y.tolist()
    assert train.y.tolist() == own(**some).train(0).y.tolist() != list(range(40))
    more = own(**some | {"samples_per_silo": 60, "test_samples": 0})
    assert set(train.y.tolist()) < set(more.train(0).y.tolist())
    assert len(more.test(0).y) == 100
    assert train.y.tolist() != setting.train(1).y.tolist()


def test_an_app_of_ones_own_uses_all_samples():
    data = (torch.rand(300, 2), torch.zeros(300).long())
    returned[0] = (data, data)
    config = Own(load, lambda: None, None).put_into(Config.from_keys(test_samples=7, silos=3))
    setting = setting_of(config)
    assert (len(setting.train(0).y), len(setting.test(0).y)) == (300, 300)


@pytest.mark.filterwarnings("error")
def test_pandas_tables_are_read():
    table = pd.DataFrame({"age": [61.0, 47.0, 55.0], "sick": [1, 0, 1]}, index=[7, 3, 9])
    part = table[["age"]], table["sick"]
    returned[0] = (part, part)
    train, test = own(classes=2).train(0), own(classes=2).test(0)
    assert train.x.tolist() == test.x.tolist() == [[61], [47], [55]]
    assert train.y.tolist() == test.y.tolist() == [1, 0, 1]
    returned[0] = ((table.assign(age=["old", "?", "?"])[["age"]], table["sick"]), part)
    with pytest.raises(SpcacwError, match="training data cannot be made into tensors"):
        own(classes=2).train(0)


AB = pd.DataFrame({"a": [1.0, 2, 3], "b": [4.0, 5, 6]})


def test_columns_of_tables_are_brought_into_the_order_of_the_first_table():
    """At another silo, in its test, and with several labels in columns."""
    kinds = pd.DataFrame({"ill": [0, 1, 0], "old": [True, True, False]})
    plain, turned = (AB, kinds), (AB[["b", "a"]], kinds[["old", "ill"]])
    returned.update(
        {0: (plain, turned), 1: (SiloData(*turned), SiloData(*plain)), 2: (turned, None)}
    )
    setting = own(classes=2)
    found = [setting.train(0), setting.test(0), setting.train(1), setting.test(1), setting.train(2)]
    for data in found:
        assert data.x.tolist() == AB.to_numpy().tolist()
        assert data.y.tolist() == kinds.astype(float).to_numpy().tolist()


@pytest.mark.parametrize(("other", "what"), [
    (AB.rename(columns={"b": "c"}), "columns 'b', 'c'"), (AB[["a"]], "column 'b'"),
    (AB.set_axis(["a", "a"], axis=1), "columns 'a', 'b'"),
])  # fmt: skip
def test_tables_with_other_columns_are_refused_by_their_names(other, what):
    y = Y[:3]
    returned.update({0: ((AB, y), (AB, y)), 1: ((other, y), (other, y)), 2: ((AB, y), (other, y))})
    setting = own()
    setting.train(0)
    with pytest.raises(SpcacwError, match=f"^Silo 1 of [^ ]* differs from silo 0 in {what}: give"):
        setting.train(1)
    with pytest.raises(
        SpcacwError, match=f"^Silo 2 .*, test data, .* the training data in {what}:"
    ):
        setting.train(2)


def test_a_tables_true_and_false_are_numbers():
    """As get_dummies makes them; other columns without numbers are named."""
    x = pd.get_dummies(AB.assign(town=["x", "y", "x"]))
    for table in (x, x[["town_x", "town_y"]]):
        returned[0] = ((table, Y[:3]), (table, Y[:3]))
        found = own().train(0).x
        assert (found.dtype, found[:, -1].tolist()) == (torch.float32, [0, 1, 0])
    odd = AB.assign(town=["x", "y", 1], day=pd.Timestamp(0))
    returned[0] = ((odd, Y[:3]), GOOD)
    with pytest.raises(
        SpcacwError, match=r"\(TypeError: not only numbers are in columns 'town', 'day'\): x and"
    ):
        own().train(0)


@pytest.mark.parametrize("classes", [0, 1, 2])
def test_a_missing_label_is_named(classes):
    returned[0] = ((X, Y.double().where(Y < 2, torch.nan)), GOOD)
    with pytest.raises(
        SpcacwError, match=r"^Silo 0 of .*, training data: label 2 is missing or inf"
    ):
        own(classes=classes).train(0)


@pytest.mark.parametrize(("part", "classes", "what"), [
    ((torch.full_like(X, -30), Y), 3, "a feature with a root mean square of 30,"),
    ((X, 5000.0 + 0 * Y), 1, "labels with a root mean square of 5e+03,"),
])  # fmt: skip
def test_what_is_not_scaled_is_told_once(caplog, part, classes, what):
    returned.update({0: (part, part), 1: (part, part)})
    for setting in (own(classes=classes), own(classes=classes)):
        setting.train(0)
        setting.train(1)
    (told,) = caplog.messages
    assert f"Silo 0 of {setting._source} has {what}" in told


def test_the_first_silo_that_is_not_scaled_is_named_if_another_is(caplog):
    """As one hospital that writes another unit."""
    metres = (X + 200, Y)
    returned.update({1: (metres, metres), 2: (metres, metres)})
    setting = own()
    for silo in range(3):
        setting.train(silo)
    (told,) = caplog.messages
    assert told.startswith("Silo 1 of ")


def test_scaled_features_and_tokens_are_told_nothing(caplog):
    own().train(0)
    returned[0] = ((torch.full((6, 9), 79), Y), None)
    own().train(0)
    assert not caplog.messages


@pytest.mark.parametrize("setting", ["own", "files", "hf"])
def test_all_samples_are_used_unless_a_key_says_otherwise(setting):
    assert Config.from_keys(setting=setting).partition.samples_per_silo == 0


def test_tokens_with_a_label_at_every_position():
    tokens = torch.randint(0, 80, (4, 9))
    for silo in range(3):
        returned[silo] = ((tokens, tokens), (tokens.int(), tokens))
    data = own(classes=80).train(2)
    assert data.x.dtype == torch.int64
    assert data.y.shape == (4, 9)


def test_a_node_with_its_own_silo_only_names_the_shape():
    returned[0] = FileNotFoundError("not on this node")
    setting = own(input_shape="2,2")
    setting.prepare()
    assert len(setting.train(1).y) == 6
    with pytest.raises(SpcacwError, match=r"Silo 0 .*FileNotFoundError: not on this node"):
        setting.train(0)


MANY = torch.stack([Y > 0, Y > 1, Y < 2], 1)
BAD = [
    (None, "is a NoneType: the function must return"),
    ((GOOD, GOOD, GOOD), "is a tuple of 3"),
    ((X, GOOD), r"training data is a Tensor: a silo is \(train, test\), each"),
    ((GOOD, (X, Y, Y)), r"test data is a tuple of 3: a silo is"),
    ((GOOD, ("text", Y)), r"test data cannot be made into tensors .*: x and y must be numbers"),
    (
        ((X, ["ill", "well"] * 3), GOOD),
        r"tensors \(TypeError: not only numbers are in y\): x and y must be "
        "numbers, and none may be missing: number what is text",
    ),
    (((X, Y[:, None]), GOOD), r"labels have shape \(6, 1\), not \(n,\) as one label a sample has"),
    (((X, Y[:5]), GOOD), "training data: 6 inputs and 5 labels"),
    (((X[:0], Y[:0]), GOOD), "training data: 0 inputs and 0 labels"),
    ((GOOD, (X[:0], Y[:0])), "test data: 0 inputs and 0 labels"),
    ((GOOD, TensorDataset(X[:0], Y[:0])), "test data: 0 inputs"),
    (((X[:, 0, 0], Y), GOOD), r"inputs have shape \(6,\)"),
    (((X.where(Y[:, None, None] < 2, torch.nan), Y), GOOD), "input 2 has a value .* not a number"),
    (((X.double() * 1e39, Y), GOOD), "infinite or not a number in float32"),
    ((((X * 255).byte(), Y), GOOD), "torch.uint8.*scale images to float"),
    (((X, Y.float()), GOOD), "labels are torch.float32"),
    (((X, torch.stack([Y, Y])), GOOD), "6 inputs and 2 labels"),
    (((X, torch.stack([Y, Y], 1)), GOOD), r"labels have shape \(6, 2\)"),
    (((X, torch.stack([Y, Y], 1) > 0), GOOD), r"classes = 3 .* \(n, 3\), but these are \(6, 2\)"),
    (((X, torch.stack([Y, Y, Y], 1) / 2), GOOD), "each 0 or 1, or false and true, but one is 0.5"),
    (((X, Y + 1), GOOD), "a label 3, outside 0 … 2"),
    ((GOOD, (X, Y - 1)), "test data: there is a label -1"),
    ((GOOD, (torch.rand(6, 2, 3), Y)), r"trains on inputs of shape \(2, 2\).*tested on \(2, 3\)"),
    (((torch.rand(6, 2, 3), Y),) * 2, r"inputs of shape \(2, 3\), not \(2, 2\) as silo 0 has"),
    ((GOOD, (X, MANY)), r"trains on labels of .* and torch.int64, but is tested on \(3,\) and"),
    (((X, MANY), (X, MANY)), r"labels of shape \(3,\) and .*, not \(\) and .* as silo 0 has: all"),
    ((Endless(), GOOD), "training data is a Dataset without a length"),
    ((Samples([[1.0], [1.0, 2.0]], [0, 1]), GOOD), "a Dataset that cannot be read as pairs"),
    ((Samples([[1.0]], ["x"]), GOOD), "ValueError"),
    ((SiloData(X, Y, independent=7.0), GOOD), "independent is 7, but there are 6 samples"),
    ((SiloData(X, Y, independent=0.0), GOOD), "independent is 0,"),
    ((SiloData(X.to_sparse(), Y), GOOD), "cannot be loaded .NotImplementedError: .*Sparse"),
    ((SiloData(X, Y, independent="six"), GOOD), "cannot be loaded .TypeError"),
    ((SiloData(X, Y, torch.ones(6)), GOOD), "training data: .* weights, which tests alone have"),
    ((GOOD, SiloData(X, Y, torch.zeros(6))), "must be 6 finite numbers, none below 0 and not all"),
    ((GOOD, SiloData(X, Y, torch.arange(6) - 1.0)), "test data: weights, .* none below 0"),
    ((GOOD, SiloData(X, Y, torch.tensor([1, 1, 1, 1, 1, torch.nan]))), "must be 6 finite numbers"),
    ((GOOD, SiloData(X, Y, torch.ones(5))), r"test data: weights, of shape \(5,\), must be 6"),
    (KeyError("patients.csv"), r"cannot be loaded .KeyError: 'patients.csv', test_.*py line \d+"),
    (ValueError("two\nlines"), "ValueError: two lines"),
]


@pytest.mark.parametrize(("answer", "why"), BAD)
def test_what_is_wrong_is_one_sentence_that_names_the_silo(answer, why):
    returned[1] = answer
    with pytest.raises(SpcacwError, match=rf"^Silo 1 of .*{why}[^\n]*$"):
        own().train(1)


def test_tokens_at_one_silo_and_numbers_at_another_are_refused():
    numbers = (X.flatten(1), Y)
    tokens = (numbers[0].long(), Y)
    returned.update({0: (numbers, numbers), 1: (tokens, tokens)})
    with pytest.raises(SpcacwError, match=r"^Silo 1 .* and torch.int64, not .* as silo 0 has: all"):
        own().train(1)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"silo": ""}, "set silo = 'package.module:function'"),
        ({"silos": 0}, "set silos"),
        ({"input_shape": "1,x"}, "input-shape = '1,x'"),
        ({"silo": "no_such:thing"}, "silo function 'no_such:thing' cannot be imported"),
        ({"silo": "math:pi"}, "is a float, not a function"),
    ],
)
def test_bad_keys_are_refused(changes, why):
    with pytest.raises(SpcacwError, match=why):
        own(**changes).prepare()


def test_a_silo_function_without_its_setting_is_refused():
    with pytest.raises(SpcacwError, match="needs setting = 'own'"):
        make_setting("digits-relabel", PartitionKeys(silo="a:b"), 0)


def test_what_is_wrong_is_said_before_training():
    returned[2] = ((X, Y + 7), GOOD)
    config = Config.from_keys(setting="own", silo=f"{__name__}:load", silos=3, classes=3)
    with pytest.raises(SpcacwError, match=r"Silo 2 .* a label 7"):
        make_pool(config).describe()


@pytest.mark.parametrize(("classes", "words"), [(2, False), (3, False), (4, True)])
def test_more_classes_than_labels_are_remarked_on(classes, words, caplog):
    """The default is 10, which a user with two classes may not know."""
    pair = X, Y % 2
    returned.update(dict.fromkeys(range(3), (pair, pair)))
    keys = {"setting": "own", "silo": f"{__name__}:load", "silos": 3, "classes": classes}
    simulate(Config.from_keys(**keys, epochs=1, compare_alone=False))
    said = "No silo has a label above 1, and the model has outputs for 4: set classes = 2"
    assert caplog.text.count(said) == words


@pytest.mark.parametrize("counts", [((0, 0), (0, 0)), ((1, 1, 0, 0), (1, 1)), ((1, 1), ())])
def test_label_counts_that_tell_nothing_are_no_error(counts, caplog):
    """Strangers' counts may be of any length, or 0; a private silo gives none."""
    silos = tuple(SiloInfo(i, 9, told) for i, told in enumerate(counts))
    see_classes(Federation(silos, 0, 3))
    assert caplog.text == ""


def test_classes_that_only_peers_have_are_not_remarked_on(caplog):
    """Nor when the target, whose labels are 0 and 1, trains alone."""
    others = X, Y % 2 + 2
    returned.update(dict.fromkeys((1, 2), (others, others)))
    returned[0] = 2 * ((X, Y % 2),)
    keys = {"setting": "own", "silo": f"{__name__}:load", "silos": 3, "classes": 4}
    simulate(Config.from_keys(**keys, epochs=1))
    assert "No silo has a label" not in caplog.text


def test_numbers_for_labels_are_told_their_loss():
    numbers = (X, Y / 2)
    returned.update(dict.fromkeys(range(3), (numbers, numbers)))
    keys = {"setting": "own", "silo": f"{__name__}:load", "silos": 3, "classes": 1}
    with pytest.raises(SpcacwError, match=r"'cross-entropy' .* by loss = 'squared-error' and met"):
        make_pool(Config.from_keys(**keys)).describe()


def test_the_example():
    """Hospital 0 learns from its peers, and not from the one that swaps the labels."""
    config = Config.from_keys(
        setting="own", silo="examples.own_data:load", silos=4, classes=2, epochs=20
    )
    result = simulate(config)
    assert result.alpha[3] < 0.1 < 0.3 < result.alpha[:3].sum()
    assert result.accuracy[-1] > 90
    assert result.accuracy[-1] >= result.accuracy_alone[-1] - 2
