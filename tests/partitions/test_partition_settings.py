"""Settings are found by name or import path; silos outside the setting are refused."""

import pytest
import torch

from spcacw_flwr.config.config import fields
from spcacw_flwr.config.declare import SpcacwError, check
from spcacw_flwr.config.keys import PartitionKeys
from spcacw_flwr.config.registry import SETTINGS, setting_class
from spcacw_flwr.silos.setting import Setting, SiloData
from spcacw_flwr.silos.setup import make_setting
from tests.conftest import one_sentence
from tests.partitions.conftest import rows
from tests.test_walls import python


class OneSilo(Setting):
    """A user's own setting, found by its import path."""

    name = "one-silo"
    num_classes = 2
    input_shape = (1,)
    group_kind = "cluster"

    @property
    def groups(self):
        return [0.0]

    def prepare(self):
        pass

    def train(self, silo):
        self.check_silo(silo)
        return SiloData(torch.zeros(1, 1), torch.ones(1, dtype=torch.int64))

    test = train


class Unfinished(Setting):
    pass


def test_settings_are_called_by_their_names_and_keys_are_explained_and_allow_their_defaults():
    assert [setting_class(name).name for name in SETTINGS] == list(SETTINGS)
    for name, (_, field) in fields().items():
        check(name, field.default, field)
        assert len(field.metadata["doc"]) > 20


@pytest.mark.parametrize("silo", [-1, 7])
@pytest.mark.parametrize("method", ["train", "test", "oracle"])
def test_a_silo_that_does_not_exist_is_refused(make, method, silo):
    with pytest.raises(SpcacwError, match=rf"Silo {silo} .* from 0 to 6"):
        getattr(make("digits-relabel"), method)(silo)


def test_an_unknown_setting_lists_the_names_and_suggests_one():
    with one_sentence("did you mean mnist-rotate?", *SETTINGS):
        make_setting("mnist-rotat", PartitionKeys(), 0)
    with one_sentence("setting = 'zzz' is unknown: it must be"):
        make_setting("zzz", PartitionKeys(), 0)


def test_a_users_own_setting_by_import_path():
    setting = make_setting(f"{__name__}:OneSilo", PartitionKeys(), 5)
    assert isinstance(setting, OneSilo)
    assert (setting.seed, setting.num_silos, setting.oracle(0)) == (5, 1, [0])
    assert setting.train(0).label_counts(3).tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("no_such_package.x:Y", "cannot be imported"),
        (f"{__name__}:Missing", "cannot be imported"),
        ("::", "cannot be imported"),
        ("json:dumps", "is no setting"),
        ("json:JSONDecoder", "is no setting"),
        (f"{__name__}:Unfinished", "is no setting"),
    ],
)
def test_a_bad_import_path_is_refused(path, why):
    with pytest.raises(SpcacwError, match=why):
        make_setting(path, PartitionKeys(), 0)


def test_prepare_reads_the_data_and_making_a_setting_does_not(make, tmp_path, monkeypatch, offline):
    setting = make("mnist-relabel", data_dir=str(tmp_path / "empty"))
    assert not (tmp_path / "empty").exists()
    with pytest.raises(SpcacwError, match="data-dir"):
        setting.prepare()
    make("digits-relabel").prepare()


def test_partitions_import_neither_flower_nor_what_takes_seconds():
    python("""
import sys
for hidden in ("flwr", "flwr_datasets", "ray", "torchvision", "sklearn", "datasets", "PIL"):
    sys.modules[hidden] = None
from spcacw_flwr.config.registry import SETTINGS, setting_class
for name in SETTINGS:
    setting_class(name)
""")


def test_averages_follow_the_weights_and_positions_count_alike_within_a_sample():
    x, y = torch.zeros(3, 2), torch.tensor([0, 1, 1])
    hits = torch.tensor([True, False, True])
    assert SiloData(x, y).mean(hits) == pytest.approx(2 / 3)
    weighted = SiloData(x, y, torch.tensor([1.0, 0.0, 3.0]))
    assert weighted.mean(hits) == 1.0
    assert weighted.mean(torch.tensor([1.0, 9.0, 2.0])) == pytest.approx(7 / 4)
    # Two positions a sample: ½, 0 and 1 right.
    each = torch.tensor([[True, False], [False, False], [True, True]])
    assert SiloData(x, y).mean(each) == pytest.approx(1 / 2)
    assert weighted.mean(each) == pytest.approx((1 / 2 + 3) / 4)


def test_labels_of_sequences_are_counted_at_every_position():
    y = torch.tensor([[0, 1], [1, 3]])
    assert SiloData(y, y).label_counts(5).tolist() == [1, 2, 0, 1, 0]


@pytest.mark.parametrize("name", ["digits-relabel", "mnist-rotate"])
def test_a_test_set_can_be_a_sample_that_the_seed_draws(make, name):
    few, again, other = (make(name, seed=s, test_samples=50) for s in (0, 0, 1))
    assert torch.equal(few.test(1).x, again.test(1).x)
    assert not torch.equal(few.test(1).x, other.test(1).x)
    drawn = set(rows(few.test(1).x))
    assert len(drawn) == 50
    assert drawn <= set(rows(make(name).test(1).x))
    assert torch.equal(make(name, test_samples=10**6).test(1).x, make(name).test(1).x)
    # The training data do not notice.
    assert torch.equal(few.train(1).x, make(name).train(1).x)


def test_no_number_of_samples_gives_each_silo_as_many_as_there_are(make):
    setting = make("digits-relabel", samples_per_silo=0, cluster_sizes="3,2,1")
    assert [len(setting.train(i).y) for i in range(6)] == [233] * 6
    with pytest.raises(SpcacwError, match="1400 training images, but 1401 silos × 1"):
        make("digits-relabel", samples_per_silo=0, cluster_sizes="1401")


def test_the_number_of_silos_may_be_said_twice_but_not_differently(make):
    assert make("digits-relabel", silos=7).num_silos == 7
    with one_sentence("silos = 5 contradicts cluster-sizes = '3,2,2'"):
        make("digits-relabel", silos=5)
    with one_sentence("silos = 19 contradicts cluster-sizes"):
        make("cifar100-clusters", data_dir="-", silos=19)
    for name in ("mnist-rotate", "shakespeare", "files"):
        with one_sentence("silos = 0", "set silos"):
            make(name, data_dir="-", silos=0)
