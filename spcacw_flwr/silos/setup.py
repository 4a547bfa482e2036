"""From a configuration to the setting that it names, checked."""

from __future__ import annotations

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.partition import PartitionKeys
from spcacw_flwr.config.registry import setting_class
from spcacw_flwr.silos.holdout import HeldOut
from spcacw_flwr.silos.privacy import mechanisms
from spcacw_flwr.silos.setting import Setting


def make_setting(name: str, keys: PartitionKeys, seed: int) -> Setting:
    """Make a setting: a pure function of its name, the keys and the seed (a whole number ≥ 0).

    Reads no data yet. Raises SpcacwError if there is no such setting, or it refuses the keys.
    """
    if keys.silo and name != "own":
        raise SpcacwError(
            f"silo = {keys.silo!r} needs setting = 'own', but setting = {name!r}: set one or the "
            "other."
        )
    setting: Setting = setting_class(name)(keys, seed)
    return setting


def setting_of(config: Config) -> Setting:
    """Return the setting that a configuration names, with ``holdout`` applied."""
    run = config.run
    setting = make_setting(run.setting, config.partition, run.seed)
    return HeldOut(setting, run.target, run.holdout) if run.holdout else setting


def checked_setting(config: Config) -> Setting:
    """Return the setting, after checking the keys that depend on its number of silos.

    Raises
    ------
    SpcacwError
        If ``target`` is not a silo, there would be more nodes than silos, or silos cannot be
        private as they are told to be.
    """
    setting, run = setting_of(config), config.run
    silos = setting.num_silos
    if run.target >= silos:
        raise SpcacwError(
            f"target = {run.target} is not a silo: {run.setting} has silos 0…{silos - 1}."
        )
    if run.nodes > silos:
        raise SpcacwError(
            f"nodes = {run.nodes} is more than the {silos} silos of {run.setting}: use 0 (one node "
            f"per silo) or at most {silos}."
        )
    mechanisms(config, silos)
    return setting
