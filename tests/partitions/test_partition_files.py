"""A silo's data in a file of its own: the same data, and nothing needed but the node's own file."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.keys import PartitionKeys
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.flower.federation import export, exported
from spcacw_flwr.partitions.relabel import DigitsRelabel
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.setting import SiloData, silo_file, write_silo
from spcacw_flwr.silos.setup import checked_setting, make_setting, setting_of

DATA = SiloData(torch.rand(5, 2, 2), torch.tensor([0, 1, 2, 0, 1]))


def files(directory, **changes):
    keys = {"data_dir": str(directory), "silos": 3, "classes": 3, **changes}
    return make_setting("files", PartitionKeys(**keys), 0)


def test_what_is_written_is_read(tmp_path):
    tested = SiloData(DATA.x[:2], DATA.y[:2], torch.tensor([1.0, 3.0]))
    write_silo(tmp_path, 0, DATA, tested)
    write_silo(tmp_path, 1, SiloData(DATA.x, DATA.y, independent=2.5), None)
    setting = files(tmp_path)
    setting.prepare()
    assert (setting.num_silos, setting.input_shape) == (3, (2, 2))
    torch.testing.assert_close(setting.train(1).x, DATA.x, rtol=0, atol=0)
    assert setting.train(1).y.tolist() == DATA.y.tolist()
    assert (setting.train(0).independent, setting.train(1).independent) == (None, 2.5)
    test = setting.test(0)
    assert test.weight is not None
    assert (len(test.y), test.weight.tolist()) == (2, [1.0, 3.0])
    assert setting.oracle(0) == []
    with pytest.raises(SpcacwError, match=r"silo-1.safetensors has no test.x"):
        setting.test(1)


def test_a_node_needs_its_own_file_alone(tmp_path):
    write_silo(tmp_path, 2, DATA, None)
    config = Config.from_keys(
        setting="files", data_dir=str(tmp_path), silos=3, classes=3, input_shape="2,2"
    )
    setting = checked_setting(config)
    setting.prepare()
    (info,) = SiloPool(config, setting, (2,)).describe()
    assert (info.silo, info.size, info.label_counts) == (2, 5, (2, 2, 1))
    assert (info.group, info.oracle) == (None, ())


def test_files_that_cannot_be_used_are_refused(tmp_path):
    with pytest.raises(SpcacwError, match=r"There is no .*silo-0.safetensors: set data-dir"):
        files(tmp_path).prepare()
    silo_file(tmp_path, 0).write_bytes(b"not at all")
    with pytest.raises(SpcacwError, match="cannot be read: "):
        files(tmp_path).prepare()
    save_file(
        {"train.x": DATA.x, "train.y": DATA.y, "test.x": DATA.x.clone()}, silo_file(tmp_path, 0)
    )
    with pytest.raises(SpcacwError, match=r"holds test.x, train.x, train.y: it must hold"):
        files(tmp_path).prepare()
    save_file({"train.x": DATA.x, "train.y": DATA.y + 1}, silo_file(tmp_path, 0))
    with pytest.raises(SpcacwError, match=r"Silo 0 of .* label 3, outside 0 … 2"):
        files(tmp_path).prepare()


def test_a_file_that_its_reader_may_not_read_is_not_called_missing(tmp_path, monkeypatch):
    """As safetensors does. Root may read all."""

    def refused(path, *mode):
        raise PermissionError(13, "Permission denied", str(path))

    write_silo(tmp_path, 0, DATA, DATA)
    silo_file(tmp_path, 0).chmod(0)
    if os.access(silo_file(tmp_path, 0), os.R_OK):
        monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(SpcacwError, match=r"cannot be read: .*Permission denied"):
        files(tmp_path).prepare()


def test_training_on_exported_files_is_training_on_the_setting(tmp_path):
    config = Config.from_keys(samples_per_silo=64, epochs=2, compare_alone=False)
    setting = checked_setting(config)
    setting.prepare()
    export(setting, config.run.target, lambda _: tmp_path)
    assert len(list(tmp_path.iterdir())) == 7
    flat = exported(config, setting).to_flat() | {"data-dir": str(tmp_path)}
    found, expected = simulate(Config.from_flat(flat)), simulate(config)
    assert found.accuracy == expected.accuracy
    assert found.alpha.tolist() == expected.alpha.tolist()
    for name, part in expected.parameters.items():
        assert torch.equal(found.parameters[name], part)


class Whole(DigitsRelabel):
    """A setting that minds no key, with 5 training and 2 test samples a silo."""

    def train(self, silo):
        return DATA

    def test(self, silo):
        return DATA.rows(np.arange(2))


@pytest.mark.parametrize(("told", "kept"), [((4, 1), (0, 0)), ((5, 2), (5, 2)), ((0, 0), (0, 0))])
def test_a_setting_that_minds_no_number_of_samples_is_exported_whole(told, kept):
    config = Config.from_keys(samples_per_silo=told[0], test_samples=told[1])
    found = exported(config, Whole(config.partition, 0)).partition
    assert (found.samples_per_silo, found.test_samples) == kept


def test_what_is_drawn_for_each_batch_cannot_be_exported(tmp_path):
    config = Config.from_keys(setting="cifar100-clusters")
    with pytest.raises(SpcacwError, match="augmentation = false"):
        export(setting_of(config), 0, lambda _: tmp_path)
