"""From a setting, which deals out data that it knows as a whole, to one file for each silo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.silos.setting import Setting, write_silo


def export(setting: Setting, target: int, directory_of: Callable[[int], Path]) -> None:
    """Write each silo's data into ``directory_of(silo)``; of test data only the target's.

    Raises
    ------
    SpcacwError
        If the data cannot be had, or the setting augments them anew for each mini-batch.
    """
    if setting.augments:
        raise SpcacwError(
            f"{setting.name} changes its images at random for each mini-batch, which files cannot: "
            f"set {setting.name}.augmentation = false."
        )
    for silo in range(setting.num_silos):
        test = setting.test(silo) if silo == target else None
        write_silo(directory_of(silo), silo, setting.train(silo), test)


def exported(config: Config, setting: Setting) -> Config:
    """Return the configuration of the same training on exported files."""
    files = {
        "setting": "files", "data-dir": "", "silos": setting.num_silos, "silo": "",
        "classes": setting.num_classes, "input-shape": ",".join(map(str, setting.input_shape)),
    }  # fmt: skip
    return Config.from_flat(config.to_flat() | files)
