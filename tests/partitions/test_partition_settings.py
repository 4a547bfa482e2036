"""Settings are found by name or import path; silos outside the setting are refused."""

import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from partitions import SETTINGS, PartitionKeys, Setting, SiloData, make_setting
from spcacw_flwr.keys import SpcacwError, check


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


def test_names_and_defaults_are_those_of_the_keys():
    assert list(SETTINGS) == ["digits-relabel", "mnist-relabel", "mnist-rotate"]
    fields = {field.name: field for field in dataclasses.fields(PartitionKeys)}
    for name, setting in SETTINGS.items():
        assert setting.name == name
        for key, value in setting.defaults.items():
            if key in fields:
                check(key, value, fields[key])
    for name, field in fields.items():
        check(name, field.default, field)
        assert len(field.metadata["doc"]) > 20


@pytest.mark.parametrize("silo", [-1, 7])
@pytest.mark.parametrize("method", ["train", "test", "oracle"])
def test_a_silo_that_does_not_exist_is_refused(make, method, silo):
    with pytest.raises(SpcacwError, match=rf"Silo {silo} .* from 0 to 6"):
        getattr(make("digits-relabel"), method)(silo)


def test_an_unknown_setting_lists_the_names_and_suggests_one():
    with pytest.raises(SpcacwError, match=r"did you mean mnist-rotate\?") as caught:
        make_setting("mnist-rotat", PartitionKeys(), 0)
    assert all(name in str(caught.value) for name in SETTINGS)
    with pytest.raises(SpcacwError) as caught:
        make_setting("zzz", PartitionKeys(), 0)
    assert "did you mean" not in str(caught.value)


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


def test_prepare_reads_the_data_and_making_a_setting_does_not(make, tmp_path, monkeypatch):
    def offline(*_, **__):
        raise OSError("offline")

    monkeypatch.setattr("torchvision.datasets.MNIST", offline)
    setting = make("mnist-relabel", data_dir=str(tmp_path / "empty"))
    assert not (tmp_path / "empty").exists()
    with pytest.raises(SpcacwError, match="data-dir"):
        setting.prepare()
    make("digits-relabel").prepare()


def test_partitions_import_neither_flower_nor_what_takes_seconds():
    code = (
        "import sys, partitions; bad = {'flwr', 'flwr_datasets', 'ray', 'torchvision', 'sklearn'}; "
        "sys.exit(' '.join(bad & set(sys.modules)) or 0)"
    )
    root = Path(inspect.getfile(Setting)).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
