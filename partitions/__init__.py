"""Who holds what: the training and test data of each silo in a heterogeneity setting.

The settings follow the experiments of SP-CACW (Kiselman & Levy, arXiv 2606.29322). A user's own
data come as a function, see ``own``; a user's own :class:`Setting` is named by its import path,
``package.module:Class``. ``flower`` has the same splits as Partitioners of flwr-datasets.
"""

from __future__ import annotations

import inspect

from partitions.clusters import Cifar100Clusters
from partitions.files import SiloFiles
from partitions.own import OwnSilos
from partitions.relabel import DigitsRelabel, MnistRelabel
from partitions.rotate import MnistRotate
from partitions.shakespeare import Shakespeare
from partitions.types import PartitionKeys, Setting, SiloData
from spcacw_flwr.keys import SpcacwError, did_you_mean, import_by_path

__all__ = [
    "SETTINGS",
    "PartitionKeys",
    "Setting",
    "SiloData",
    "make_setting",
    "setting_class",
]

SETTINGS: dict[str, type[Setting]] = {
    setting.name: setting
    for setting in (
        DigitsRelabel, MnistRelabel, MnistRotate, Cifar100Clusters, Shakespeare, OwnSilos,
        SiloFiles,
    )
}  # fmt: skip


def setting_class(name: str) -> type[Setting]:
    """Return the class of a setting by its name, or by its import path ``package.module:Class``.

    Raises SpcacwError if there is no such setting.
    """
    if name in SETTINGS:
        return SETTINGS[name]
    if ":" in name:
        return _imported(name)
    hint = did_you_mean(name, SETTINGS)
    raise SpcacwError(
        f"There is no setting {name!r}{hint}: choose one of {', '.join(SETTINGS)}, or name your "
        "own Setting as package.module:Class."
    )


def make_setting(name: str, keys: PartitionKeys, seed: int) -> Setting:
    """Make a setting: a pure function of its name, the keys and the seed (a whole number ≥ 0).

    Reads no data yet. Raises SpcacwError if there is no such setting, or it refuses the keys.
    """
    if keys.silo and name != OwnSilos.name:
        raise SpcacwError(
            f"silo = {keys.silo!r} needs setting = 'own', but setting = {name!r}: set one or the "
            "other."
        )
    return setting_class(name)(keys, seed)


def _imported(path: str) -> type[Setting]:
    found = import_by_path(path, "setting")
    if not (
        isinstance(found, type) and issubclass(found, Setting) and not inspect.isabstract(found)
    ):
        raise SpcacwError(
            f"{path!r} is no setting: name a class that derives from partitions.Setting and "
            "defines its abstract methods."
        )
    return found
